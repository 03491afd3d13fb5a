// The tokenizer of a tokenizer.json of model type BPE, as Hugging Face tokenizers runs it: added tokens, normalizer,
// pre-tokenizer, merges, post-processor, decoder. A feature that this does not know is refused by name at load;
// `truncation` and `padding` concern batches, and are ignored.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "gpu/text/json_at.h"
#include "gpu/text/tokenizer.h"

namespace seer {

/// With what tokenizer_config.json beside the file says of BOS and EOS, where Hugging Face goes by it.
Result<std::shared_ptr<const Tokenizer>> load_bpe_tokenizer(const std::filesystem::path& file);

/// The same from the files' contents. `name` names the file in errors.
Result<std::shared_ptr<const Tokenizer>> parse_bpe_tokenizer(std::string_view json, const std::string& name, const JsonAt& config);
Result<std::shared_ptr<const Tokenizer>> parse_bpe_tokenizer(std::string_view json, const std::string& name);

}  // namespace seer
