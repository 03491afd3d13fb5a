// Device: what the CUDA engine needs of a GPU: memory, two streams, events, copies and launches. Implemented by CUDA
// (cuda_device.h) and, for tests without a GPU, by an emulation (tests/simt/simt_device.h).
//
// Work on a stream runs in order; streams run side by side, ordered by events only. Errors are kept, as in CUDA: after the first
// one nothing runs any more, and status() and wait() return it. So callers queue all of a step and look once.
//
// Thread-safe: each stream is queued to by one thread at a time, while others wait.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "gpu/cuda/kernel_args.h"
#include "protocols/result.h"

namespace seer::cuda {

struct DeviceProperties {
  std::string name;
  int64_t memory_bytes = 0, free_bytes = 0;  // when the device was opened
  int32_t compute_major = 0, compute_minor = 0;
  int32_t multiprocessors = 1;
  int32_t shared_bytes_max = 0;  // of a block
  bool group_mma = false;     // wgmma, and kernels built for it
  bool begins_early = false;  // a kernel may begin before the one before it has ended: kernels are built to wait
  int32_t index = 0;  // CUDA's
};

struct Grid {
  int32_t x = 1, y = 1, z = 1;
};

/// Code of the host that runs in the order of a stream. It must not use the device.
class HostCall {
 public:
  virtual ~HostCall() = default;
  /// May block. An error becomes that of the device.
  virtual Status run() = 0;
};

enum class Stream : uint8_t { kSteps, kCopies };
using EventId = uint64_t;  // of a record(); 0: none, which is always over
using GraphId = size_t;    // of an end_graph()

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceProperties& properties() const = 0;

  /// Device memory, freed with the device; its contents are undefined. Errors: kFull.
  virtual Result<std::byte*> allocate(int64_t bytes) = 0;
  /// Host memory that copies can use in the background, freed with the device. Errors: kFull.
  virtual Result<std::byte*> allocate_pinned(int64_t bytes) = 0;

  /// Host memory is read or written when the copy runs: it stays valid and untouched until an event after it is over.
  virtual void copy_in(Stream stream, void* to, const void* host, int64_t bytes) = 0;
  virtual void copy_out(Stream stream, void* host, const void* from, int64_t bytes) = 0;
  virtual void clear(Stream stream, void* to, int64_t bytes) = 0;
  /// Copies the arguments. REQUIRES: args_bytes is that of the kernel; the grid is not empty.
  virtual void launch_raw(Stream stream, KernelId kernel, Grid grid, const void* args, size_t args_bytes) = 0;
  template <class Args>
  void launch(Stream stream, KernelId kernel, Grid grid, const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args>);
    launch_raw(stream, kernel, grid, &args, sizeof args);
  }

  /// REQUIRES: `call` outlives the device's work, and native_stream() is null: CUDA runs such calls one at a time.
  virtual void call(Stream stream, HostCall& call) = 0;

  /// From begin_graph() to end_graph() work on the steps' stream does not run but becomes a graph, which one call launches as often as
  /// wanted. It is kept with the device. None: there is no memory for it.
  virtual void begin_graph() = 0;
  virtual std::optional<GraphId> end_graph() = 0;
  virtual void launch_graph(GraphId graph) = 0;
  /// Frees all graphs, also one that is being made; those that run go on to their ends. By any thread. Does not wait for a launch that
  /// blocks, which frees them itself when it ends. REQUIRES: the device has failed, so that none is launched any more.
  virtual void drop_graphs() = 0;

  /// Marks this place in the stream. REQUIRES: fewer than kEventsOpen are not over.
  virtual EventId record(Stream stream) = 0;
  /// What is queued on the stream from now on runs after the event.
  virtual void wait_on(Stream stream, EventId event) = 0;
  /// Blocks until the event is over. Returns status().
  virtual Status wait(EventId event) = 0;
  /// Waits at most this long. False: it is not over, and there is no error.
  virtual bool wait_for(EventId event, int64_t us_max) = 0;
  /// The first error, kUnavailable: the device cannot be used any more.
  virtual Status status() const = 0;
  /// Makes this the error, if there is none yet. Who waits for an event goes on, while what was queued before may still run.
  virtual void fail_with(const Error& why) = 0;
  /// Waits at most this long until nothing of the stream runs any more. False: something still does. REQUIRES: the device has failed.
  virtual bool drain(Stream stream, int64_t us_max) = 0;
  /// CUDA's own handle of a stream, for libraries that queue work themselves; null: the device is not CUDA's.
  virtual void* native_stream(Stream stream) = 0;

  static constexpr int32_t kEventsOpen = 256;
};

}  // namespace seer::cuda
