// In a build with CUDA; otherwise no_cuda_device.cpp.
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/cuda_kernels.h"
#include "protocols/check.h"

namespace seer::cuda {
namespace {

constexpr int32_t kComputeMajorMin = 8;  // bf16 mma, cp.async

/// How long a launch of a graph may take before drop_graphs() goes on without it.
constexpr std::chrono::seconds kLaunchTime{2};

/// Errors after which CUDA refuses this process every further call to the GPU.
bool ends_process_use(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContextIsDestroyed: return true;
    default: return false;
  }
}
std::string text_of(cudaError_t error) {
  return cat(cudaGetErrorName(error), ": ", cudaGetErrorString(error),
             ends_process_use(error) ? "; this process cannot use the GPU any more: it must be started again" : "");
}

dim3 dim_of(Grid grid) {
  return {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z)};
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int32_t index, DeviceProperties properties) : index_(index), properties_(std::move(properties)) {}

  /// Makes streams and events, and lets kernels use as much shared memory as they say, as far as the GPU has it.
  Status open() {
    keep("opening the device", cudaSetDevice(index_));
    for (cudaStream_t& stream : streams_) keep("a stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_) keep("an event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    for (int32_t i = 0; i < static_cast<int32_t>(KernelId::kCount); ++i) {
      const auto kernel = static_cast<KernelId>(i);
      if (info_of(kernel).shared_bytes > properties_.shared_bytes_max) continue;
      keep(info_of(kernel).name, cudaFuncSetAttribute(kernel_entry(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                      info_of(kernel).shared_bytes));
    }
    return status();
  }

  ~CudaDevice() override {
    cudaSetDevice(index_);
    // Nothing may run on memory that is freed below. Not the whole GPU: another engine of it may be making a graph, which that ends.
    for (cudaStream_t stream : streams_)
      if (stream != nullptr) cudaStreamSynchronize(stream);
    drop_graphs();
    for (cudaEvent_t event : events_)
      if (event != nullptr) cudaEventDestroy(event);
    for (cudaStream_t stream : streams_)
      if (stream != nullptr) cudaStreamDestroy(stream);
    for (void* p : device_memory_) cudaFree(p);
    for (void* p : pinned_memory_) cudaFreeHost(p);
  }

  const DeviceProperties& properties() const override { return properties_; }

  Result<std::byte*> allocate(int64_t bytes) override {
    return allocated(bytes, "device", device_memory_, [](void** p, size_t n) { return cudaMalloc(p, n); });
  }
  Result<std::byte*> allocate_pinned(int64_t bytes) override {
    return allocated(bytes, "pinned host", pinned_memory_, [](void** p, size_t n) { return cudaHostAlloc(p, n, cudaHostAllocPortable); });
  }

  void copy_in(Stream stream, void* to, const void* host, int64_t bytes) override {
    run("a copy to the device",
        [&] { return cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, at(stream)); });
  }
  void copy_out(Stream stream, void* host, const void* from, int64_t bytes) override {
    run("a copy from the device",
        [&] { return cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, at(stream)); });
  }
  void clear(Stream stream, void* to, int64_t bytes) override {
    run("clearing memory", [&] { return cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), at(stream)); });
  }
  void launch_raw(Stream stream, KernelId kernel, Grid grid, const void* args, size_t args_bytes) override {
    const KernelInfo& info = info_of(kernel);
    SEER_CHECK(args_bytes == info.args_bytes, info.name, args_bytes);
    void* arguments[] = {const_cast<void*>(args)};  // CUDA copies them
    cudaLaunchAttribute begins_early{};  // before the kernel before has ended: kernels wait for that themselves
    begins_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    begins_early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim_of(grid);
    config.blockDim = dim3(static_cast<unsigned>(info.threads));
    config.dynamicSmemBytes = static_cast<size_t>(info.shared_bytes);
    config.stream = at(stream);
    config.attrs = &begins_early;
    config.numAttrs = properties_.begins_early ? 1 : 0;
    run(info.name, [&] { return cudaLaunchKernelExC(&config, kernel_entry(kernel), arguments); });
  }
  void call(Stream stream, HostCall&) override { SEER_CHECK(native_stream(stream) == nullptr); }

  void begin_graph() override {
    run("beginning a graph", [&] { return cudaStreamBeginCapture(at(Stream::kSteps), cudaStreamCaptureModeThreadLocal); });
  }
  /// Also on a device that has failed: NCCL waits for the ends of graphs that have its gathers.
  std::optional<GraphId> end_graph() override {
    cudaSetDevice(index_);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaError_t made = cudaStreamEndCapture(at(Stream::kSteps), &graph);
    if (made == cudaSuccess && status().ok()) made = cudaGraphInstantiate(&exec, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (made == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // it is dealt with
      return std::nullopt;
    }
    keep("ending a graph", made);
    const std::lock_guard lock(graphs_mutex_);
    if (exec != nullptr && !status().ok()) cudaGraphExecDestroy(std::exchange(exec, nullptr));  // others have been dropped, or will be
    graphs_.push_back(exec);
    return graphs_.size() - 1;
  }
  /// May block until gathers of this graph or of another GPU's end: whoever ends them calls drop_graphs() first.
  void launch_graph(GraphId graph) override {
    const std::lock_guard lock(graphs_mutex_);
    if (graphs_[graph] != nullptr) run("a graph", [&] { return cudaGraphLaunch(graphs_[graph], at(Stream::kSteps)); });
    if (!status().ok()) destroy_graphs();
  }
  void drop_graphs() override {
    const std::unique_lock lock(graphs_mutex_, kLaunchTime);
    if (lock) destroy_graphs();
  }

  /// Takes the next event that is over. Uploads of weights record very many while a step is under way.
  EventId record(Stream stream) override {
    EventId event = ++last_event_;
    run("an event", [&] {
      cudaError_t found = cudaEventQuery(at(event));
      for (int32_t tried = 1; found == cudaErrorNotReady && tried < kEventsOpen; ++tried) found = cudaEventQuery(at(event = ++last_event_));
      return found == cudaSuccess ? cudaEventRecord(at(event), at(stream)) : found;
    });
    return event;
  }
  void wait_on(Stream stream, EventId event) override {
    if (event > 0) run("waiting for an event", [&] { return cudaStreamWaitEvent(at(stream), at(event), 0); });
  }
  Status wait(EventId event) override {
    if (event > 0) run("the device", [&] { return cudaEventSynchronize(at(event)); });
    return status();
  }
  /// CUDA has no wait with a limit. A sleep of 20 us is short beside a step.
  bool wait_for(EventId event, int64_t us_max) override {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us_max);
    while (event > 0 && status().ok()) {
      cudaError_t found = cudaSuccess;
      run("the device", [&] {
        found = cudaEventQuery(at(event));
        return found == cudaErrorNotReady ? cudaSuccess : found;
      });
      if (found != cudaErrorNotReady) return true;
      if (std::chrono::steady_clock::now() >= until) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }
  Status status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  bool drain(Stream stream, int64_t us_max) override {
    cudaSetDevice(index_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(us_max);
    bool runs = true, late = false;
    while (runs && !late) {
      runs = cudaStreamQuery(at(stream)) == cudaErrorNotReady;  // after any other error nothing runs
      late = std::chrono::steady_clock::now() >= until;
      if (runs && !late) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return !runs;
  }
  void fail_with(const Error& why) override {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = why;
  }
  void* native_stream(Stream stream) override { return at(stream); }

 private:
  cudaStream_t at(Stream stream) const { return streams_[static_cast<size_t>(stream)]; }
  /// An event that was reused since was over then: who waits for it waits for a later one instead.
  cudaEvent_t at(EventId event) const { return events_[event % events_.size()]; }

  /// REQUIRES: graphs_mutex_ is held.
  void destroy_graphs() {
    for (cudaGraphExec_t& graph : graphs_)
      if (graph != nullptr) cudaGraphExecDestroy(std::exchange(graph, nullptr));
  }

  template <class Call>
  void run(const char* what, Call call) {
    if (!status().ok()) return;
    cudaSetDevice(index_);  // of the calling thread
    keep(what, call());
  }
  void keep(const char* what, cudaError_t error) {
    if (error == cudaSuccess) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = fail(Code::kUnavailable, "cuda: ", properties_.name, ": ", what, " failed: ", text_of(error));
  }

  template <class Call>
  Result<std::byte*> allocated(int64_t bytes, const char* kind, std::vector<void*>& list, Call call) {
    cudaSetDevice(index_);
    void* memory = nullptr;
    const cudaError_t error = call(&memory, static_cast<size_t>(bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();  // a failed allocation does not spoil the device
      return fail(Code::kFull, "cuda: ", properties_.name, ": no ", kind, " memory for ", bytes, " bytes: ", text_of(error));
    }
    list.push_back(memory);
    return static_cast<std::byte*>(memory);
  }

  const int32_t index_;
  const DeviceProperties properties_;
  mutable std::mutex mutex_;  // guards the next
  Status status_;
  std::array<cudaStream_t, 2> streams_{};
  std::array<cudaEvent_t, kEventsOpen> events_{};
  std::atomic<EventId> last_event_ = 0;
  std::timed_mutex graphs_mutex_;  // guards the next
  std::vector<cudaGraphExec_t> graphs_;  // null: it failed, or was dropped
  std::vector<void*> device_memory_, pinned_memory_;
};

Result<DeviceProperties> properties_of(int32_t index) {
  cudaDeviceProp found;
  DeviceProperties properties;
  size_t free_bytes = 0, all_bytes = 0;
  cudaFuncAttributes kernel{};
  for (const cudaError_t error : {cudaGetDeviceProperties(&found, index), cudaSetDevice(index), cudaMemGetInfo(&free_bytes, &all_bytes),
                                  cudaFuncGetAttributes(&kernel, kernel_entry(KernelId::k_gemm_groups_64_64))})
    if (error != cudaSuccess) return fail(Code::kUnavailable, "cuda: device ", index, ": ", text_of(error));
  return DeviceProperties{.name = found.name,
                          .memory_bytes = static_cast<int64_t>(all_bytes),
                          .free_bytes = static_cast<int64_t>(free_bytes),
                          .compute_major = found.major,
                          .compute_minor = found.minor,
                          .multiprocessors = found.multiProcessorCount,
                          .shared_bytes_max = static_cast<int32_t>(found.sharedMemPerBlockOptin),
                          .group_mma = found.major == 9 && kernel.ptxVersion == 90,  // else it was compiled from PTX of another
                          .begins_early = found.major >= 9 && kernel.ptxVersion >= 90,      // of older PTX no kernel waits
                          .index = index};
}

}  // namespace

bool has_cuda_engine() { return true; }

Result<std::shared_ptr<void>> pin_host_memory(std::span<std::byte> bytes) {
  const cudaError_t error = cudaHostRegister(bytes.data(), bytes.size(), cudaHostRegisterPortable);
  if (error != cudaSuccess) {
    cudaGetLastError();  // as in allocated()
    return fail(Code::kFull, "cuda: ", bytes.size(), " bytes of host memory cannot be pinned: ", text_of(error));
  }
  return std::shared_ptr<void>(bytes.data(), [](void* memory) { cudaHostUnregister(memory); });
}

Result<int32_t> count_cuda_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver)
    return fail(Code::kUnavailable, "cuda: this machine has no NVIDIA driver, or one too old for CUDA ", CUDART_VERSION / 1000, ".",
                CUDART_VERSION % 1000 / 10);
  if (error != cudaSuccess && error != cudaErrorNoDevice) return fail(Code::kUnavailable, "cuda: ", text_of(error));
  return static_cast<int32_t>(count);
}

Result<std::unique_ptr<Device>> open_cuda_device(int32_t index) {
  SEER_ASSIGN_OR_RETURN(const int32_t count, count_cuda_devices());
  if (index < 0 || index >= count) return fail(Code::kUnavailable, "cuda: no device ", index, ", this machine has ", count);
  SEER_ASSIGN_OR_RETURN(const DeviceProperties properties, properties_of(index));
  if (properties.compute_major < kComputeMajorMin)
    return fail(Code::kUnavailable, "cuda: ", properties.name, " has compute capability ", properties.compute_major, ".",
                properties.compute_minor, ", at least ", kComputeMajorMin, ".0 is needed");
  auto device = std::make_unique<CudaDevice>(index, properties);
  SEER_RETURN_IF_ERROR(device->open());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace seer::cuda
