// UcxFetch: the state of a fetch and of each of its blocks. Part of ucx_transport.cpp, on its thread. Plain data.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "storage/kv_transport.h"

namespace seer {

using UcxClock = std::chrono::steady_clock;

/// State of one block of a fetch.
enum class UcxBlockState : uint8_t {
  kWaiting,    // to be asked for
  kAsked,      // the answer has not come, or not all of it
  kGranted,    // to be copied out of the mapped slab, or to be got
  kGetting,    // UCX writes it to the slot
  kOver,       // has its status
};

/// A call of KvTransport::fetch(): how far each of its blocks is.
struct UcxFetch {
  std::vector<Fetch> fetches;
  int64_t timeout_us = 0;
  UcxClock::time_point end;  // then it is looked at whether it is late
  FetchEvents events;
  UcxClock::time_point came = {};  // when something of it was asked for, or came, last
  std::vector<UcxBlockState> states = std::vector<UcxBlockState>(fetches.size(), UcxBlockState::kWaiting);
  std::vector<Status> statuses = std::vector<Status>(fetches.size());
  size_t left = fetches.size();  // blocks that are not over
  size_t gets = 0;               // open: UCX may write to slots of these blocks
};

/// One block of a fetch.
struct UcxBlock {
  std::shared_ptr<UcxFetch> operation;
  size_t index = 0;
  const Fetch& fetch() const { return operation->fetches[index]; }
  UcxBlockState& state() const { return operation->states[index]; }
};

}  // namespace seer
