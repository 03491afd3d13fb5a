// WeightFetch: the bytes of new weights on their way from a server to this machine, in memory. Says which parts to ask for, and puts
// them in order: one may overtake another when the route to the server changes. Used by node_actor. Single owner, not thread-safe.
//
// Invariant: at most kWindowParts parts were asked for and are not in their place, so this bounds what lies in queues and sockets.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "gpu/model/weight_memory.h"
#include "protocols/actors.h"

namespace seer {

class WeightFetch {
 public:
  static constexpr uint64_t kWindowParts = 4;

  /// `what` has a source. Errors: kIo: the system gives no memory.
  static Result<WeightFetch> begin(const NewWeights& what);

  /// The offset of the next part to ask for; none: the window is full, or all parts were asked for. Each is returned once.
  std::optional<uint64_t> next();
  /// A part that is there, or was not asked for, is ignored: an earlier try asked for it. Errors: kCorrupt: it has another size, or
  /// all of them have another checksum than the server told; kIo.
  Status take(const WeightPart& part);
  bool is_whole() const { return memory_->bytes() == bytes_; }
  /// REQUIRES: is_whole().
  std::shared_ptr<const WeightMemory> memory() const { return memory_; }

 private:
  WeightFetch(std::shared_ptr<WeightMemory> memory, const NewWeights& what)
      : memory_(std::move(memory)), bytes_(what.bytes), crc_expected_(what.crc) {}

  Status append(const std::string& bytes);

  std::shared_ptr<WeightMemory> memory_;
  std::map<uint64_t, std::string> early_;  // [offset] parts that wait for one in front of them
  uint64_t bytes_ = 0, asked_bytes_ = 0;
  uint32_t crc_expected_ = 0, crc_ = 0;  // the second of what has come
};

}  // namespace seer
