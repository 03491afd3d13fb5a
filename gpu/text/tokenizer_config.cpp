#include "gpu/text/tokenizer_config.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "gpu/text/json_text.h"

namespace seer {
namespace {

Result<nlohmann::json> read_object(const std::filesystem::path& file) {
  SEER_ASSIGN_OR_RETURN(nlohmann::json read, read_json_file(file));
  if (!read.is_null() && !read.is_object()) return fail(Code::kInvalidArgument, file.string(), ": expected a JSON object");
  return read;
}

}  // namespace

Result<nlohmann::json> read_json_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return nlohmann::json();
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return parse_json(text, file.string(), RepeatedKeys::kLastCounts);
}

Result<nlohmann::json> read_tokenizer_config(const std::filesystem::path& folder) {
  SEER_ASSIGN_OR_RETURN(nlohmann::json config, read_object(folder / "tokenizer_config.json"));
  if (config.contains("added_tokens_decoder")) return config;
  SEER_ASSIGN_OR_RETURN(const nlohmann::json named, read_object(folder / "special_tokens_map.json"));
  for (const auto& [name, token] : named.items()) config[name] = token;
  return config;
}

}  // namespace seer
