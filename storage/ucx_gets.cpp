#include "storage/ucx_gets.h"

#include <uct/api/uct.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

namespace seer {
namespace {

/// UCX logs an error when it is asked for a transport that no device here has, so it is only asked if there is a device.
bool has_rdma_device() {
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (uct_query_components(&components, &count) != UCS_OK) return false;
  const bool has = std::any_of(components, components + count, [](uct_component_h component) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    return uct_component_query(component, &attributes) == UCS_OK && std::string_view(attributes.name) == "ib" &&
           attributes.md_resource_count > 0;
  });
  uct_release_component_list(components);
  return has;
}

std::string info_of(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return "";
  ucp_ep_print_info(endpoint, stream);
  (void)std::fclose(stream);
  std::string info(text, size);
  std::free(text);
  return info;
}

}  // namespace

std::string ucx_get_transport(const std::string& endpoint_info) {
  std::istringstream lines(endpoint_info);
  std::vector<std::string> names;  // of transports, by lane
  unsigned carrier = 0;
  for (std::string line; std::getline(lines, line);) {
    unsigned lane = 0, resource = 0;
    char name[32] = {};
    if (std::sscanf(line.c_str(), "# lane[%u]: %u:%31[^/]", &lane, &resource, name) == 3) names.push_back(name);
    if (std::sscanf(line.c_str(), "# get[%u]:", &lane) == 1) carrier = lane;
  }
  return carrier < names.size() ? names[carrier] : "";
}

Result<std::unique_ptr<UcxGets>> UcxGets::create(const std::string& transports, const std::string& devices) {
  if (transports.empty()) return fail(Code::kUnavailable, "gets are off");
  const bool has_tcp = transports.find("tcp") != transports.npos;
  if (!has_tcp && !has_rdma_device()) return fail(Code::kUnavailable, "no RDMA device here");
  UcxContext::Settings settings = {{"TLS", transports}, {"NET_DEVICES", devices}};
  if (has_tcp) settings.emplace_back("CONN_NB", "y");  // UcxConnections::settings() says why
  SEER_ASSIGN_OR_RETURN(auto context, UcxContext::create(settings, UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP));
  std::unique_ptr<UcxGets> gets(new UcxGets);
  gets->slabs_ = std::make_shared<UcxSlabs>(context);
  SEER_ASSIGN_OR_RETURN(gets->worker_, UcxWorker::create(std::move(context)));
  gets->connections_.emplace(gets->worker_->get());
  SEER_ASSIGN_OR_RETURN(gets->address_, gets->worker_->address());
  if (const ucs_status_t s = ucp_worker_get_efd(gets->worker_->get(), &gets->event_fd_); s != UCS_OK)
    return ucx_error(Code::kIo, "the event descriptor of a worker", s);
  return gets;
}

Result<std::unique_ptr<UcxGetLink>> UcxGets::connect(const std::string& address, const std::string& key) {
  auto link = std::make_unique<UcxGetLink>();
  SEER_ASSIGN_OR_RETURN(link->connection_, connections_->connect(address));
  auto remote = UcxRemoteKey::create(link->connection_->endpoint(), key);
  if (!remote.ok()) {
    close(std::move(link));
    return remote.error();
  }
  link->key_ = *std::move(remote);
  link->transport_ = ucx_get_transport(info_of(link->connection_->endpoint()));
  return link;
}

void UcxGets::get(UcxGetLink& link, const UcxBlock& block, uint64_t remote_address) {
  const auto at = link.gets_.insert(link.gets_.end(), UcxGetLink::Get{.owner = this, .link = &link, .block = block});
  at->self = at;
  ++block.operation->gets;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.user_data = &*at;
  params.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    ucp_request_free(request);
    auto& get = *static_cast<UcxGetLink::Get*>(user_data);
    get.owner->on_ended(get, status);
  };
  const std::span<std::byte> to = block.fetch().to;
  void* const request =
      ucp_get_nbx(link.connection_->endpoint(), to.data(), to.size(), remote_address, link.key_->get(), &params);
  if (!UCS_PTR_IS_PTR(request)) on_ended(*at, UCS_PTR_STATUS(request));
}

void UcxGets::on_ended(UcxGetLink::Get& get, ucs_status_t status) {
  ended_.push_back({std::move(get.block), status, get.link->connection_ == nullptr});
  get.link->gets_.erase(get.self);
}

std::optional<UcxGets::Ended> UcxGets::take_ended() {
  if (ended_.empty()) return std::nullopt;
  Ended ended = std::move(ended_.front());
  ended_.pop_front();
  --ended.block.operation->gets;
  return ended;
}

void UcxGets::close(std::unique_ptr<UcxGetLink> link) {
  connections_->close(std::move(link->connection_));
  closing_.push_back(std::move(link));
}

void UcxGets::end_closed() {
  connections_->end_closed();
  std::erase_if(closing_, [](const std::unique_ptr<UcxGetLink>& link) { return link->gets_.empty(); });
}

void UcxGets::stop() {
  for (const auto& link : closing_) link->key_.reset();  // the worker owns its memory
  worker_.reset();
  for (const auto& link : closing_)
    while (!link->gets_.empty()) on_ended(link->gets_.front(), UCS_ERR_CANCELED);
  closing_.clear();
}

}  // namespace seer
