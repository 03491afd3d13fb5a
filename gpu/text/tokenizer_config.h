// What the small JSON files of a model folder say of its tokenizer.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

#include "protocols/result.h"

namespace seer {

/// A file's JSON; null if there is no such file. Errors: kInvalidArgument (it is not JSON).
Result<nlohmann::json> read_json_file(const std::filesystem::path& file);

/// tokenizer_config.json. Where it lists no added tokens, special_tokens_map.json has the last word on bos_token and the like, as in
/// transformers 4. An object, or null if the folder has neither. Errors: kInvalidArgument (a file is not a JSON object).
Result<nlohmann::json> read_tokenizer_config(const std::filesystem::path& folder);

}  // namespace seer
