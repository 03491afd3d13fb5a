#include "simt/simt_device.h"

#include <algorithm>
#include <array>
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
    properties_ = {.name = "simt", .memory_bytes = config.memory_bytes, .free_bytes = config.memory_bytes, .compute_major = 8};
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
    put(stream, [=] { copy_to_device(to, host, static_cast<size_t>(bytes)); });
  }
  void copy_out(Stream stream, void* host, const void* from, int64_t bytes) override {
    put(stream, [=] { copy_from_device(host, from, static_cast<size_t>(bytes)); });
  }
  void clear(Stream stream, void* to, int64_t bytes) override {
    put(stream, [=] { fill_device(to, 0, static_cast<size_t>(bytes)); });
  }
  void launch_raw(Stream stream, KernelId kernel, Grid grid, const void* args, size_t args_bytes) override {
    const KernelInfo& info = info_of(kernel);
    SEER_CHECK(args_bytes == info.args_bytes, info.name, args_bytes);
    SEER_CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0, info.name, grid.x, grid.y, grid.z);
    const auto* bytes = static_cast<const std::byte*>(args);
    put(stream, [this, kernel, grid, copy = std::vector<std::byte>(bytes, bytes + args_bytes)] { run(kernel, grid, copy); });
  }

  void begin_graph() override {
    const std::lock_guard lock(machine_mutex());
    SEER_CHECK(!recording_);
    recording_ = true;
    graphs_.emplace_back();
  }
  GraphId end_graph() override {
    const std::lock_guard lock(machine_mutex());
    SEER_CHECK(recording_);
    recording_ = false;
    return graphs_.size() - 1;
  }
  void launch_graph(GraphId graph) override {
    const std::lock_guard lock(machine_mutex());
    for (const std::function<void()>& run : graphs_[graph]) at(Stream::kSteps).push_back({.run = run});
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
    const FlushDenormals flush;  // as kernels are compiled for a GPU
    while (true) {
      const std::lock_guard lock(machine_mutex());  // per piece, so that others can queue work
      if (over(event)) return status_;
      run_some_piece();
    }
  }
  Status status() const override {
    const std::lock_guard lock(machine_mutex());
    return status_;
  }

 private:
  struct Piece {
    std::function<void()> run = {};
    EventId records = 0, waits_for = 0;
  };

  std::deque<Piece>& at(Stream stream) { return streams_[static_cast<size_t>(stream)]; }
  void put(Stream stream, std::function<void()> run) {
    const std::lock_guard lock(machine_mutex());
    if (recording_ && stream == Stream::kSteps)
      graphs_.back().push_back(std::move(run));
    else
      at(stream).push_back({.run = std::move(run)});
  }
  bool over(EventId event) const { return event == 0 || is_over_[event - 1]; }

  /// The first piece of a random stream that may go on.
  void run_some_piece() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const size_t first = random_ >> 33 & 1;
    for (const size_t i : {first, 1 - first}) {
      std::deque<Piece>& stream = streams_[i];
      if (stream.empty() || !over(stream.front().waits_for)) continue;
      const Piece piece = std::move(stream.front());
      stream.pop_front();
      if (piece.records > 0) is_over_[piece.records - 1] = true;
      if (piece.run && status_.ok()) piece.run();
      return;
    }
    SEER_CHECK(false, "simt: streams wait for each other");
  }

  void run(KernelId kernel, Grid grid, const std::vector<std::byte>& args) {
    const KernelInfo& info = info_of(kernel);
    if (launches_++ == config_.fail_launch) {
      status_ = fail(Code::kUnavailable, "simt: launch ", launches_ - 1, " (", info.name, ") fails as the configuration asks");
      return;
    }
    run_kernel(kernel, grid, args.data());
    if (options().count) add_counts(info.name);
    for (const Finding& finding : take_findings())
      if (status_.ok()) status_ = fail(Code::kUnavailable, "simt: ", info.name, ": ", finding.kind, " at ", finding.text);
  }

  const SimtConfig config_;
  DeviceProperties properties_;
  uint64_t random_;
  Status status_;
  std::array<std::deque<Piece>, 2> streams_;
  bool recording_ = false;
  std::vector<std::vector<std::function<void()>>> graphs_;
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

}  // namespace simt
