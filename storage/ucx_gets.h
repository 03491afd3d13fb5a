// UcxGets: reads blocks out of the memory of other processes by UCX's get, and registers memory of this one so that others can
// read it. Part of ucx_transport.cpp: slabs() and address() may be called by any thread, the rest by its thread.
//
// It has a UCX context and a worker of its own, over transports that read remote memory in hardware. There, the owner's process
// takes no part in a get, and the network card refuses an address outside the registered slab. UCX can also emulate gets over
// other transports (TCP): the owner's worker copies the bytes, and a wrong address kills the owner. So these are only used where
// the configuration names them, for tests and measurements.
//
// What is always true:
//  (1) each get that was begun comes back from take_ended() once. Until then UCX may write to its slot, afterwards it does not;
//  (2) close() makes the open gets of a link end soon, with an error, whatever the peer does: UCX first stops the network card
//      (it puts the queue pair into its error state and waits until the card has flushed it), then it ends the gets;
//  (3) a link that is closed lives here until its gets have ended.
#pragma once
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/ucx_connection.h"
#include "storage/ucx_fetch.h"
#include "storage/ucx_slabs.h"

namespace seer {

/// The transport that carries gets, out of what UCX prints about an endpoint. UCX 1.13 tells it only in a text for people:
///   #   lane[0]:  2:rc_mlx5/mlx5_0:1.0 md[1]  -> md[1]/ib/sysdev[0] am am_bw#0
///   #    get[0]: 0..<bcopy>..16384..<zcopy>..(inf)
/// The second line names the lane of gets. It is missing where UCX emulates them, over its only lane. Empty: another text.
std::string ucx_get_transport(const std::string& endpoint_info);

class UcxGets;

/// A connection to another process for gets from one slab.
class UcxGetLink {
 public:
  /// UCS_OK, or why UCX gave it up.
  ucs_status_t lost() const { return connection_->lost(); }
  size_t open_count() const { return gets_.size(); }  // gets
  /// The transport that carries the gets, as UCX names it: "rc_mlx5".
  const std::string& transport() const { return transport_; }

 private:
  friend class UcxGets;
  struct Get {
    UcxGets* owner = nullptr;
    UcxGetLink* link = nullptr;
    UcxBlock block;
    std::list<Get>::iterator self = {};  // in gets_
  };
  std::unique_ptr<UcxConnection> connection_;
  std::unique_ptr<UcxRemoteKey> key_;
  std::string transport_;
  std::list<Get> gets_;  // open; UCX holds their addresses
};

class UcxGets {
 public:
  /// `transports`, `devices`: as in UCX_TLS and UCX_NET_DEVICES. kUnavailable: there are none of these here.
  static Result<std::unique_ptr<UcxGets>> create(const std::string& transports, const std::string& devices);

  const std::shared_ptr<UcxSlabs>& slabs() const { return slabs_; }
  /// The address of the worker: a peer needs it and a key of slabs().
  const std::string& address() const { return address_; }
  int event_fd() const { return event_fd_; }

  /// Does not wait for the peer. kUnavailable: the two hosts have no transport in common.
  Result<std::unique_ptr<UcxGetLink>> connect(const std::string& address, const std::string& key);
  /// Reads the block from this address in the peer's memory.
  void get(UcxGetLink& link, const UcxBlock& block, uint64_t remote_address);
  void close(std::unique_ptr<UcxGetLink> link);

  /// False: UCX had nothing to do.
  bool progress() { return ucp_worker_progress(worker_->get()) != 0; }
  /// False: something came meanwhile, so the thread must not sleep.
  bool arm() { return ucp_worker_arm(worker_->get()) == UCS_OK; }
  /// Frees what is closed by now; to be called now and then while has_closing().
  void end_closed();
  bool has_closing() const { return !closing_.empty() || connections_->has_closing(); }
  /// Ends the worker, and with it the gets that are open.
  void stop();

  struct Ended {
    UcxBlock block;
    ucs_status_t status = UCS_OK;
    bool was_closed = false;  // the link, before: an error says nothing about the peer then
  };
  /// The next get that has ended, in the order in which they did.
  std::optional<Ended> take_ended();

 private:
  UcxGets() = default;
  void on_ended(UcxGetLink::Get& get, ucs_status_t status);

  std::shared_ptr<UcxSlabs> slabs_;
  std::optional<UcxConnections> connections_;  // of the worker, which may report errors to them while it is destroyed
  std::deque<Ended> ended_;
  std::vector<std::unique_ptr<UcxGetLink>> closing_;
  std::unique_ptr<UcxWorker> worker_;
  std::string address_;
  int event_fd_ = -1;
};

}  // namespace seer
