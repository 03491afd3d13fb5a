#include "protocols/cluster.h"

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace seer {
namespace {

std::string quoted(const std::string& name) {
  constexpr size_t kShown = 60;
  return name.size() <= kShown ? cat('"', name, '"') : cat('"', name.substr(0, kShown), "...\"");
}

constexpr const char* kLayoutOptions = ": --kv-dtype, --block-tokens, --device and, with GPUs, --tensor-parallel and their kind must be the same";

std::string hex(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, hash);
  return text;
}

}  // namespace

std::vector<std::string> role_names(NodeRoles roles) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kNodeRoleNames.size(); ++i)
    if (roles.has(static_cast<NodeRole>(i))) names.emplace_back(kNodeRoleNames[i]);
  return names;
}

std::string model_name(std::string_view folder) {
  if (folder.empty()) return {};
  std::error_code failed;  // the folder of this process is gone
  std::filesystem::path path = std::filesystem::absolute(folder, failed).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.has_filename() ? path.filename().string() : path.string();
}

std::string endings_text(std::span<const int32_t> eos_ids, int64_t context_tokens_max) {
  std::string text = "EOS";
  for (const int32_t id : eos_ids) text += cat(' ', id);
  return cat(text, ", context ", context_tokens_max);
}

Status check_identity(std::string_view who, const ClusterIdentity& found, const ClusterIdentity& expected) {
  const auto refuse = [&](const char* field, const auto& is, const auto& should_be) {
    return fail(Code::kInvalidArgument, who, " is refused: its ", field, " is ", is, ", expected ", should_be);
  };
  if (found.protocol != expected.protocol) return refuse("protocol number", found.protocol, expected.protocol);
  if (found.model != expected.model) return refuse("model", quoted(found.model), quoted(expected.model));
  if (found.shape != 0 && expected.shape != 0 && found.shape != expected.shape)
    return refuse("config.json's checksum", hex(found.shape), hex(expected.shape));
  if (!found.endings.empty() && !expected.endings.empty() && found.endings != expected.endings)
    return refuse("end of responses", quoted(found.endings), quoted(expected.endings));
  if (found.tokenizer != 0 && expected.tokenizer != 0 && found.tokenizer != expected.tokenizer)
    return refuse("tokenizer's checksum", hex(found.tokenizer), hex(expected.tokenizer));
  const WeightVersion any{};
  if (found.version != any && expected.version != any && found.version != expected.version)
    return refuse("weight version", found.version, expected.version);
  if (found.kv_layout != expected.kv_layout) return refuse("KV layout", hex(found.kv_layout), cat(hex(expected.kv_layout), kLayoutOptions));
  if (found.weights != 0 && expected.weights != 0 && found.weights != expected.weights)
    return refuse("weights' checksum", hex(found.weights), hex(expected.weights));
  return {};
}

}  // namespace seer
