#include "storage/ucx_slabs.h"

#include <unistd.h>

#include <fstream>

#include "protocols/check.h"

namespace seer {

std::string ucx_host_name() {
  std::string name;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> name;
  for (const char* space : {"/proc/self/ns/ipc", "/proc/self/ns/pid"}) {
    char text[64];
    const ssize_t size = readlink(space, text, sizeof text);
    name += cat(" ", std::string_view(text, size > 0 ? static_cast<size_t>(size) : 0));
  }
  return name;
}

namespace {

std::span<std::byte> where(ucp_mem_h memory) {
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
  const ucs_status_t s = ucp_mem_query(memory, &attributes);
  SEER_CHECK(s == UCS_OK, ucs_status_string(s));
  return {static_cast<std::byte*>(attributes.address), attributes.length};
}

}  // namespace

Result<Slab> UcxSlabs::allocate(int64_t bytes) {
  SEER_CHECK(bytes > 0, bytes);
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS | UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
  params.length = static_cast<size_t>(bytes);
  params.flags = UCP_MEM_MAP_ALLOCATE;
  ucp_mem_h memory = nullptr;
  if (const ucs_status_t s = ucp_mem_map(context_->get(), &params, &memory); s != UCS_OK)
    return ucx_error(Code::kIo, cat("allocating ", bytes, " bytes of shared memory").c_str(), s);
  Slab slab(where(memory), [slabs = shared_from_this(), memory](std::span<std::byte> freed) { slabs->release(freed.data(), memory); });
  SEER_RETURN_IF_ERROR(remember(slab.bytes().data(), memory));
  return slab;
}

Result<std::shared_ptr<void>> UcxSlabs::register_slab(std::span<std::byte> bytes) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
  params.address = bytes.data();
  params.length = bytes.size();
  ucp_mem_h memory = nullptr;
  if (const ucs_status_t s = ucp_mem_map(context_->get(), &params, &memory); s != UCS_OK)
    return ucx_error(Code::kIo, cat("registering ", bytes.size(), " bytes").c_str(), s);
  std::shared_ptr<void> registration(memory, [slabs = shared_from_this(), base = bytes.data()](void* registered) {
    slabs->release(base, static_cast<ucp_mem_h>(registered));
  });
  SEER_RETURN_IF_ERROR(remember(bytes.data(), memory));
  return registration;
}

std::string UcxSlabs::key_of(const std::byte* base) const {
  const std::lock_guard lock(mutex_);
  const auto it = keys_.find(base);
  return it == keys_.end() ? "" : it->second;
}

Status UcxSlabs::remember(const std::byte* base, ucp_mem_h memory) {
  void* key = nullptr;
  size_t key_bytes = 0;
  if (const ucs_status_t s = ucp_rkey_pack(context_->get(), memory, &key, &key_bytes); s != UCS_OK)
    return ucx_error(Code::kIo, "the key of a slab", s);
  const std::lock_guard lock(mutex_);
  keys_[base] = std::string(static_cast<const char*>(key), key_bytes);
  ucp_rkey_buffer_release(key);
  return {};
}

void UcxSlabs::release(const std::byte* base, ucp_mem_h memory) {
  {
    const std::lock_guard lock(mutex_);
    keys_.erase(base);
  }
  ucp_mem_unmap(context_->get(), memory);
}

}  // namespace seer
