// UcxConnection: a one-way connection to the worker of another process. UcxConnections: makes those of one worker, and ends them.
// Made by ucx_transport.cpp and ucx_gets.cpp; ucx_borrower.cpp and ucx_lender.cpp use them too. On the thread of the worker.
//
// Each side of a conversation has a connection of its own to the worker address of the other. UCX can also answer over the
// connection that a message came by, and can queue messages and send large ones by rendezvous. For all three, the workers first
// exchange "wireup" messages, and UCX 1.13 aborts the process if the peer dies while the answer to one is queued (ucp_request.c:
// "got REP message"). UCX sends no wireup message for a message that it can hand to the socket at once, whole. So messages are
// sent only in that way: UCX takes one now, or not at all, and the sender tries again after the worker made progress. UCX never
// holds memory of the sender.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/ucx_handles.h"

namespace seer {

/// Sizes of a message: UCX hands over no more at once.
constexpr size_t kUcxHeaderBytesMax = 256, kUcxDataBytesMax = 256 << 10;

class UcxConnection {
 public:
  UcxConnection() = default;
  UcxConnection(const UcxConnection&) = delete;
  UcxConnection& operator=(const UcxConnection&) = delete;

  /// Sends an active message, or nothing: false if UCX takes none now, or the connection is lost.
  /// REQUIRES: neither is too large.
  bool send(unsigned id, std::span<const std::byte> header, std::span<const std::byte> data);
  ucp_ep_h endpoint() const { return endpoint_; }
  /// UCS_OK, or why UCX gave it up.
  ucs_status_t lost() const { return lost_; }

 private:
  friend class UcxConnections;
  ucp_ep_h endpoint_ = nullptr;
  ucs_status_t lost_ = UCS_OK;
  void* closing_ = nullptr;  // the request that closes it
};

class UcxConnections {
 public:
  /// Settings for the context of a worker that sends messages. `devices`: as in UCX_NET_DEVICES.
  static UcxContext::Settings settings(const std::string& devices);

  /// The worker must outlive it.
  explicit UcxConnections(ucp_worker_h worker) : worker_(worker) {}

  /// Sends the largest message from the worker to itself. kUnavailable: this version of UCX hands over less at once.
  Status check_sending(const std::string& own_address);

  /// Does not wait for the peer.
  Result<std::unique_ptr<UcxConnection>> connect(const std::string& address);
  /// What was sent and has not arrived may be lost.
  void close(std::unique_ptr<UcxConnection> connection);

  /// Frees those that are closed by now. To be called while some are closing: that does not always raise an event.
  void end_closed();
  bool has_closing() const { return !closing_.empty(); }

 private:
  const ucp_worker_h worker_;
  std::vector<std::unique_ptr<UcxConnection>> closing_;  // UCX may still report errors to them
};

}  // namespace seer
