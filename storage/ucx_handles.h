// Owners of UCX objects, move-only or unmovable. Used by ucx_transport.cpp only. A context may be used by any thread; a
// worker and its endpoints belong to one thread.
#pragma once
#include <sys/eventfd.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "protocols/check.h"
#include "protocols/result.h"

namespace seer {

inline Error ucx_error(Code code, const char* what, ucs_status_t status) {
  return fail(code, "UCX: ", what, ": ", ucs_status_string(status));
}

/// Sends the log of UCX to stderr. By default it goes to stdout, where a program's results are.
inline void log_ucx_to_stderr() {
  static std::once_flag once;
  std::call_once(once, [] {
    ucs_log_push_handler([](const char*, unsigned, const char*, ucs_log_level_t level, const ucs_log_component_config_t*,
                            const char* format, va_list arguments) {
      if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_CONTINUE;
      char text[512];
      (void)std::vsnprintf(text, sizeof text, format, arguments);
      (void)std::fprintf(stderr, "UCX: %s\n", text);
      return UCS_LOG_FUNC_RC_STOP;
    });
  });
}

/// Wakes a thread that polls.
class WakeFd {
 public:
  WakeFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { SEER_CHECK(fd_ >= 0, fd_); }
  ~WakeFd() { close(fd_); }
  WakeFd(const WakeFd&) = delete;
  WakeFd& operator=(const WakeFd&) = delete;
  void wake() { (void)eventfd_write(fd_, 1); }
  void clear() {
    eventfd_t count = 0;
    (void)eventfd_read(fd_, &count);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

class UcxContext {
 public:
  /// Names and values as in UCX_NAME=value in the environment, where SEER_UCX_... overrides UCX_..., which other programs read too.
  using Settings = std::vector<std::pair<const char*, std::string>>;
  static Result<std::shared_ptr<UcxContext>> create(const Settings& settings, uint64_t features) {
    log_ucx_to_stderr();
    ucp_config_t* config = nullptr;
    if (const ucs_status_t s = ucp_config_read("SEER", nullptr, &config); s != UCS_OK)
      return ucx_error(Code::kIo, "reading its configuration", s);
    ucs_status_t s = UCS_OK;
    for (const auto& [name, value] : settings)
      if (s == UCS_OK) s = ucp_config_modify(config, name, value.c_str());
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = features;
    params.mt_workers_shared = 1;  // slabs are made and freed on other threads than the worker's
    ucp_context_h handle = nullptr;
    if (s == UCS_OK) s = ucp_init(&params, config, &handle);
    ucp_config_release(config);
    if (s != UCS_OK) return ucx_error(Code::kUnavailable, cat("starting with ", settings.front().second).c_str(), s);
    return std::shared_ptr<UcxContext>(new UcxContext(handle));
  }
  ~UcxContext() { ucp_cleanup(handle_); }
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;
  ucp_context_h get() const { return handle_; }

 private:
  explicit UcxContext(ucp_context_h handle) : handle_(handle) {}
  ucp_context_h handle_;
};

class UcxWorker {
 public:
  static Result<std::unique_ptr<UcxWorker>> create(std::shared_ptr<UcxContext> context) {
    ucp_worker_params_t params{};
    params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made by one thread, then used by another
    ucp_worker_h handle = nullptr;
    if (const ucs_status_t s = ucp_worker_create(context->get(), &params, &handle); s != UCS_OK)
      return ucx_error(Code::kIo, "making a worker", s);
    return std::unique_ptr<UcxWorker>(new UcxWorker(std::move(context), handle));
  }
  ~UcxWorker() { ucp_worker_destroy(handle_); }
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;
  ucp_worker_h get() const { return handle_; }
  Result<std::string> address() const {
    ucp_address_t* address = nullptr;
    size_t size = 0;
    if (const ucs_status_t s = ucp_worker_get_address(handle_, &address, &size); s != UCS_OK)
      return ucx_error(Code::kIo, "the address of a worker", s);
    std::string bytes(reinterpret_cast<const char*>(address), size);
    ucp_worker_release_address(handle_, address);
    return bytes;
  }

 private:
  UcxWorker(std::shared_ptr<UcxContext> context, ucp_worker_h handle) : context_(std::move(context)), handle_(handle) {}
  std::shared_ptr<UcxContext> context_;
  ucp_worker_h handle_;
};

/// The key of a peer's slab.
class UcxRemoteKey {
 public:
  static Result<std::unique_ptr<UcxRemoteKey>> create(ucp_ep_h endpoint, const std::string& key) {
    ucp_rkey_h handle = nullptr;
    if (const ucs_status_t s = ucp_ep_rkey_unpack(endpoint, key.data(), &handle); s != UCS_OK)
      return ucx_error(Code::kIo, "the key of a slab", s);
    return std::unique_ptr<UcxRemoteKey>(new UcxRemoteKey(handle));
  }
  ~UcxRemoteKey() { ucp_rkey_destroy(handle_); }
  UcxRemoteKey(const UcxRemoteKey&) = delete;
  UcxRemoteKey& operator=(const UcxRemoteKey&) = delete;
  ucp_rkey_h get() const { return handle_; }

 private:
  explicit UcxRemoteKey(ucp_rkey_h handle) : handle_(handle) {}
  ucp_rkey_h handle_;
};

/// Where a peer's slab is mapped here while this lives.
class UcxMapping {
 public:
  static Result<std::unique_ptr<UcxMapping>> create(ucp_ep_h endpoint, const std::string& key, uint64_t remote_base) {
    std::unique_ptr<UcxMapping> mapping(new UcxMapping);
    SEER_ASSIGN_OR_RETURN(mapping->key_, UcxRemoteKey::create(endpoint, key));
    void* base = nullptr;
    if (const ucs_status_t s = ucp_rkey_ptr(mapping->key_->get(), remote_base, &base); s != UCS_OK)
      return ucx_error(Code::kIo, "mapping a shared slab", s);
    mapping->base_ = static_cast<const std::byte*>(base);
    return mapping;
  }
  const std::byte* base() const { return base_; }

 private:
  UcxMapping() = default;
  std::unique_ptr<UcxRemoteKey> key_;
  const std::byte* base_ = nullptr;
};

}  // namespace seer
