#include "simt/simt_device.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "gpu/cpu/denormals.h"
#include "protocols/check.h"
#include "simt/simt.h"
#include "simt/simt_kernels.h"

namespace simt {
namespace {

using namespace seer;        // NOLINT: this file is the seam between both
using namespace seer::cuda;

// The emulation has one machine, which devices use in turn.
std::mutex& machine_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::map<std::string, KernelCount>& kernel_counts() {
  static std::map<std::string, KernelCount> counts;
  return counts;
}
void add_counts(const char* kernel) {
  KernelCount& sum = kernel_counts()[kernel];
  ++sum.launches;
  for (const SiteCount& c : take_counts()) {
    if (c.shared) {
      sum.wavefronts += static_cast<int64_t>(c.units);
      sum.wavefronts_least += static_cast<int64_t>(c.units_min);
    } else {
      (c.write ? sum.written_bytes : sum.read_bytes) += static_cast<int64_t>(c.bytes);
      sum.sectors += static_cast<int64_t>(c.units);
      sum.sectors_least += static_cast<int64_t>(c.units_min);
    }
    const double ratio = static_cast<double>(c.units) / static_cast<double>(c.units_min);
    double& worst = sum.worst[c.place + (c.shared ? " shared" : " global") + (c.write ? " write" : " read")];
    worst = std::max(worst, ratio);
  }
}

class SimtDevice final : public Device {
 public:
  explicit SimtDevice(const SimtConfig& config) : config_(config), random_(config.seed * 2 + 1) {
    properties_ = {.name = "simt", .memory_bytes = config.memory_bytes, .free_bytes = config.memory_bytes, .compute_major = 8,
                   .multiprocessors = 4, .shared_bytes_max = 227 << 10,
                   .group_mma = config.group_mma && kernels_have_group_mma(), .index = config.index};
  }
  ~SimtDevice() override {
    const std::lock_guard lock(machine_mutex());
    for (void* p : device_memory_) device_free(p);
    for (std::byte* p : pinned_memory_) std::free(p);
  }

  const DeviceProperties& properties() const override { return properties_; }

  Result<std::byte*> allocate(int64_t bytes) override {
    const std::lock_guard lock(machine_mutex());
    if (allocations_++ == config_.fail_allocation || allocated_bytes_ + bytes > config_.memory_bytes)
      return fail(Code::kFull, "simt: no memory for ", bytes, " bytes, ", config_.memory_bytes - allocated_bytes_, " are free");
    allocated_bytes_ += bytes;
    return static_cast<std::byte*>(device_memory_.emplace_back(device_alloc(static_cast<size_t>(bytes))));
  }
  Result<std::byte*> allocate_pinned(int64_t bytes) override {
    const std::lock_guard lock(machine_mutex());
    return pinned_memory_.emplace_back(static_cast<std::byte*>(std::malloc(static_cast<size_t>(bytes))));
  }

  void copy_in(Stream stream, void* to, const void* host, int64_t bytes) override {
    put(stream, {.run = [=] { copy_to_device(to, host, static_cast<size_t>(bytes)); }});
  }
  void copy_out(Stream stream, void* host, const void* from, int64_t bytes) override {
    put(stream, {.run = [=] { copy_from_device(host, from, static_cast<size_t>(bytes)); }});
  }
  void clear(Stream stream, void* to, int64_t bytes) override {
    put(stream, {.run = [=] { fill_device(to, 0, static_cast<size_t>(bytes)); }});
  }
  void launch_raw(Stream stream, KernelId kernel, Grid grid, const void* args, size_t args_bytes) override {
    const KernelInfo& info = info_of(kernel);
    SEER_CHECK(args_bytes == info.args_bytes, info.name, args_bytes);
    SEER_CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0, info.name, grid.x, grid.y, grid.z);
    const auto* bytes = static_cast<const std::byte*>(args);
    put(stream, {.run = [this, kernel, grid, copy = std::vector<std::byte>(bytes, bytes + args_bytes)] { run(kernel, grid, copy); }});
  }

  void call(Stream stream, HostCall& call) override { put(stream, {.calls = &call}); }

  void begin_graph() override {
    const std::lock_guard lock(machine_mutex());
    SEER_CHECK(!recording_);
    recording_ = true;
    graphs_.emplace_back();
  }
  std::optional<GraphId> end_graph() override {
    const std::lock_guard lock(machine_mutex());
    SEER_CHECK(recording_);
    recording_ = false;
    if (std::ssize(graphs_) > config_.graphs_max) {
      graphs_.pop_back();
      return std::nullopt;
    }
    return graphs_.size() - 1;
  }
  void launch_graph(GraphId graph) override {
    const std::lock_guard lock(machine_mutex());
    for (const Piece& piece : graphs_[graph]) at(Stream::kSteps).push_back(piece);
  }

  void drop_graphs() override {
    const std::lock_guard lock(machine_mutex());
    SEER_CHECK(!status_.ok());
    for (std::deque<Piece>& graph : graphs_) graph.clear();
  }

  EventId record(Stream stream) override {
    const std::lock_guard lock(machine_mutex());
    const EventId event = ++last_event_;
    at(stream).push_back({.records = event});
    is_over_.push_back(false);
    return event;
  }
  void wait_on(Stream stream, EventId event) override {
    const std::lock_guard lock(machine_mutex());
    at(stream).push_back({.waits_for = event});
  }
  Status wait(EventId event) override {
    constexpr int64_t kAnHourUs = 3'600'000'000;
    SEER_CHECK(wait_for(event, kAnHourUs), event);
    return status();
  }
  bool wait_for(EventId event, int64_t us_max) override {
    const FlushDenormals flush;  // as kernels are compiled for a GPU
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us_max);
    bool over = false, late = false;
    while (!over && !late) {
      std::unique_lock lock(machine_mutex());  // per piece, so that others can queue work
      over = is_over(event);
      if (!over && !run_some_piece(lock)) changed_.wait_until(lock, until);
      late = std::chrono::steady_clock::now() >= until;
    }
    return over;
  }
  Status status() const override {
    const std::lock_guard lock(machine_mutex());
    return status_;
  }
  void fail_with(const Error& why) override {
    const std::lock_guard lock(machine_mutex());
    if (status_.ok()) status_ = why;
    changed_.notify_all();
  }
  /// Pieces do not run any more, and one that runs holds the mutex.
  bool drain(Stream, int64_t) override {
    const std::lock_guard lock(machine_mutex());
    SEER_CHECK(!status_.ok());
    return true;
  }
  void* native_stream(Stream) override { return config_.says_native ? this : nullptr; }

 private:
  struct Piece {
    std::function<void()> run = {};
    HostCall* calls = nullptr;
    EventId records = 0, waits_for = 0;
  };
  struct Queue {
    std::deque<Piece> pieces;
    bool calls = false;  // its first piece, taken off already, is a call that has not returned
  };

  std::deque<Piece>& at(Stream stream) { return streams_[static_cast<size_t>(stream)].pieces; }
  void put(Stream stream, Piece piece) {
    const std::lock_guard lock(machine_mutex());
    (recording_ && stream == Stream::kSteps ? graphs_.back() : at(stream)).push_back(std::move(piece));
    changed_.notify_all();
  }
  bool is_over(EventId event) const { return event == 0 || is_over_[event - 1]; }
  bool can_run(const Queue& stream) const {
    const bool hangs = hung_ == &stream && status_.ok();
    return !stream.pieces.empty() && !stream.calls && !hangs && is_over(stream.pieces.front().waits_for);
  }

  /// The first piece of a random stream that may go on. False: there is none.
  bool run_some_piece(std::unique_lock<std::mutex>& lock) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const size_t first = random_ >> 33 & 1;
    Queue& stream = streams_[can_run(streams_[first]) ? first : 1 - first];
    if (!can_run(stream)) {
      SEER_CHECK(hung_ || streams_[0].calls || streams_[1].calls, "simt: streams wait for each other");
      return false;
    }
    const Piece piece = std::move(stream.pieces.front());
    stream.pieces.pop_front();
    if (piece.records > 0) is_over_[piece.records - 1] = true;
    if (piece.run && status_.ok()) piece.run();
    if (hangs_) hung_ = std::exchange(hangs_, false) ? &stream : hung_;
    if (piece.calls && status_.ok()) {
      stream.calls = true;
      lock.unlock();
      const Status called = piece.calls->run();
      lock.lock();
      stream.calls = false;
      if (status_.ok()) status_ = called;
    }
    changed_.notify_all();
    return true;
  }

  void run(KernelId kernel, Grid grid, const std::vector<std::byte>& args) {
    const KernelInfo& info = info_of(kernel);
    if (launches_++ == config_.fail_launch) {
      status_ = fail(Code::kUnavailable, "simt: launch ", launches_ - 1, " (", info.name, ") fails as the configuration asks");
      return;
    }
    hangs_ = launches_ - 1 == config_.hang_launch;
    run_kernel(kernel, grid, args.data());
    if (options().count) add_counts(info.name);
    for (const Finding& finding : take_findings())
      if (status_.ok()) status_ = fail(Code::kUnavailable, "simt: ", info.name, ": ", finding.kind, " at ", finding.text);
  }

  const SimtConfig config_;
  DeviceProperties properties_;
  uint64_t random_;
  Status status_;
  std::array<Queue, 2> streams_;
  std::condition_variable changed_;  // what can run, or the status
  const Queue* hung_ = nullptr;      // this stream never goes on
  bool hangs_ = false;               // set by the launch that hangs its stream
  bool recording_ = false;
  std::vector<std::deque<Piece>> graphs_;
  std::vector<bool> is_over_;  // by event
  EventId last_event_ = 0;
  int64_t allocated_bytes_ = 0, allocations_ = 0, launches_ = 0;
  std::vector<void*> device_memory_;
  std::vector<std::byte*> pinned_memory_;
};

}  // namespace

std::map<std::string, KernelCount> take_kernel_counts() {
  const std::lock_guard lock(machine_mutex());
  for (auto& [name, count] : kernel_counts()) std::erase_if(count.worst, [](const auto& w) { return w.second <= 1.05; });
  return std::exchange(kernel_counts(), {});
}

std::unique_ptr<Device> make_simt_device(const SimtConfig& config) { return std::make_unique<SimtDevice>(config); }
int32_t simt_devices_max() { return 1 << 10; }

}  // namespace simt
