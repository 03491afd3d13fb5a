// In a build with NCCL's header; otherwise no_nccl_communicator.cpp. The library is loaded when it is needed, so that the program
// runs without it.
#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "gpu/cuda/peers.h"

namespace seer::cuda {
namespace {

/// The functions of the library that are called, by their names there.
struct Nccl {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclCommInitAll) init_all = nullptr;
  decltype(&::ncclCommGetAsyncError) async_error = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
};

Result<Nccl> load_nccl() {
  // It stays loaded: it starts threads.
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return fail(Code::kUnavailable, "nccl: ", ::dlerror());
  Nccl nccl;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  if (find(nccl.get_version, "ncclGetVersion") && find(nccl.error_string, "ncclGetErrorString") &&
      find(nccl.init_all, "ncclCommInitAll") && find(nccl.async_error, "ncclCommGetAsyncError") && find(nccl.abort, "ncclCommAbort") &&
      find(nccl.all_gather, "ncclAllGather"))
    return nccl;
  return fail(Code::kUnavailable, "nccl: libnccl.so.2 is too old");
}

const Result<Nccl>& nccl_library() {
  static const Result<Nccl> library = load_nccl();
  return library;
}

class NcclCommunicator final : public PeerCommunicator {
 public:
  NcclCommunicator(int32_t rank, Device& device, std::shared_ptr<Peers> peers, const Nccl& nccl, ncclComm_t comm)
      : PeerCommunicator(rank, device, std::move(peers)), nccl_(nccl), comm_(comm) {}
  ~NcclCommunicator() override { end_gathers(); }  // unlike ncclCommDestroy, this waits for no peer

  void all_gather(std::byte* memory, int64_t bytes) override {
    const std::lock_guard lock(mutex_);
    const ncclComm_t comm = comm_;
    if (comm == nullptr || !device_.status().ok()) return;
    const auto stream = static_cast<cudaStream_t>(device_.native_stream(Stream::kSteps));
    keep(nccl_.all_gather(memory + rank_ * bytes, memory, static_cast<size_t>(bytes), ncclUint8, comm, stream));
  }

 protected:
  Status check() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return {};  // a gather is being queued: its own result is kept
    const ncclComm_t comm = comm_;
    ncclResult_t found = ncclSuccess;
    if (comm == nullptr || (nccl_.async_error(comm, &found) == ncclSuccess && (found == ncclSuccess || found == ncclInProgress))) return {};
    return error(found);
  }
  /// A gather that a peer never joins may block who queues it. Then it is aborted nevertheless, which lets it go on. Not under the lock:
  /// NCCL waits here until a graph that is being made is dropped, too.
  void end_gathers() override {
    ncclComm_t comm = nullptr;
    {
      const std::unique_lock lock(mutex_, kQueueTime);
      comm = comm_.exchange(nullptr);
    }
    if (comm != nullptr) nccl_.abort(comm);
  }

 private:
  void keep(ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress) device_.fail_with(error(result));
  }
  Error error(ncclResult_t result) const { return fail(Code::kUnavailable, "nccl: ", name(), ": ", nccl_.error_string(result)); }

  static constexpr std::chrono::seconds kQueueTime{2};  // a gather that is not blocked is queued long before

  const Nccl nccl_;
  std::timed_mutex mutex_;  // one thread gathers, another waits and aborts
  std::atomic<ncclComm_t> comm_;
};

}  // namespace

Result<std::string> nccl_version() {
  const Result<Nccl>& nccl = nccl_library();
  if (!nccl.ok()) return nccl.error();
  int version = 0;
  if (nccl->get_version(&version) != ncclSuccess) return fail(Code::kUnavailable, "nccl: its version is not known");
  return cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

Result<std::vector<std::unique_ptr<Communicator>>> make_nccl_communicators(std::span<Device* const> devices,
                                                                           const CommunicatorConfig& config) {
  const Result<Nccl>& nccl = nccl_library();
  if (!nccl.ok()) return nccl.error();
  std::vector<int> indices;
  for (Device* device : devices) indices.push_back(device->properties().index);
  std::vector<ncclComm_t> comms(devices.size());
  if (const ncclResult_t made = nccl->init_all(comms.data(), static_cast<int>(comms.size()), indices.data()); made != ncclSuccess)
    return fail(Code::kUnavailable, "nccl: connecting ", devices.size(), " GPUs: ", nccl->error_string(made));
  const auto peers = std::make_shared<Peers>(static_cast<int32_t>(devices.size()), config.timeout_us);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (size_t i = 0; i < devices.size(); ++i)
    communicators.push_back(std::make_unique<NcclCommunicator>(static_cast<int32_t>(i), *devices[i], peers, *nccl, comms[i]));
  return communicators;
}

}  // namespace seer::cuda
