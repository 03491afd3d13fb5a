// What UcxTransport puts on the wire: the address of a published arena, and the headers of its two active messages. Numbers
// are in the byte order of the machine; both ends run the same build on the same kind of processor (little endian).
//
//   address  "ucx5:" then in hex: | crc32c of the rest 4 | tag 16 | node 4 | epoch 8 | slab base 8 | slab bytes 8 |
//            5 x (length 4, bytes) |. The five are the host's name; the address of the UCX worker that takes messages; the key
//            with which the slab is mapped; the address of the worker for gets; the key with which the slab is read by get.
//            An empty key: it cannot be read in that way.
//   request  kRequest: WireRequest; then the address of the asker's UCX worker, to which the replies go, and a WireSlot for each
//            block that is asked for. The blocks have one size and consecutive ids, so that one message, and one wake-up of the
//            receiver, serves several small blocks.
//   reply    kReply: WireReply; then
//              kBytes  bytes of the block with that id, from an offset on; a large block comes in several replies, in order
//              kGrant  an offset in the arena (8) for each block from that id on
//              error   its sentence, for the block with that id
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "protocols/ids.h"
#include "protocols/result.h"

namespace seer {

/// A number that nobody can guess, in the address of each transport and in every message to and from it: a process without
/// the address cannot read its blocks. It does not stop anyone who can read the network traffic.
using UcxTag = std::array<uint64_t, 2>;
UcxTag new_ucx_tag();

struct UcxAddress {
  UcxTag tag = {};
  NodeId node;
  uint64_t epoch = 0;
  uint64_t slab_base = 0;   // of the arena, in the owner's memory
  uint64_t slab_bytes = 0;
  std::string host;         // equal for processes that can share memory
  std::string worker;
  std::string slab_key;     // empty: the slab is not shared
  std::string get_worker;
  std::string get_key;      // empty: the slab is not registered for gets
  bool operator==(const UcxAddress&) const = default;
};
std::string write_ucx_address(const UcxAddress& address);
/// kInvalidArgument: not such an address, or damaged.
Result<UcxAddress> read_ucx_address(std::string_view text);

enum class WireKind : uint32_t { kRequest = 1, kReply = 2 };  // also the ids of the active messages
enum class WireWant : uint32_t {
  kBytes = 1,  // send the block
  kGrant = 2,  // say where it is: the asker maps the slab, or gets the block
};

constexpr size_t kWireSlotsMax = 64;         // in a request
constexpr size_t kWireAskerBytesMax = 8192;  // address of a worker, with all networks of its host

struct WireRequest {
  UcxTag tag = {};
  uint64_t id = 0;    // of the first block; chosen by the asker, comes back in the reply
  uint64_t link = 0;  // rises when the asker connects again: replies to earlier requests are no longer wanted
  uint64_t epoch = 0;
  uint64_t block_bytes = 0;
  uint32_t node = 0;
  WireWant want = WireWant::kBytes;
  uint32_t asker_bytes = 0;  // of the asker's address
  uint32_t data_crc = 0;     // of all that follows the header: UCX does not check an address that it is given
};
static_assert(sizeof(WireRequest) == 64);

struct WireSlot {
  uint64_t generation = 0;
  uint32_t slot = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(WireSlot) == 16);

struct WireReply {
  UcxTag tag = {};
  uint64_t id = 0;
  uint64_t offset = 0;  // of the bytes in the block
  uint32_t code = 0;    // of the error; 0: none
  uint32_t reserved = 0;
};
static_assert(sizeof(WireReply) == 40);

}  // namespace seer
