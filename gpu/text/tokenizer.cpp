#include "gpu/text/tokenizer.h"

#include "gpu/text/tokenizer_bpe.h"
#include "gpu/text/tokenizer_sentencepiece.h"

namespace seer {

Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const std::filesystem::path& folder) {
  std::error_code ignored;  // a file that cannot be looked at counts as missing
  if (std::filesystem::exists(folder / "tokenizer.json", ignored)) return load_bpe_tokenizer(folder / "tokenizer.json");
  if (std::filesystem::exists(folder / "tokenizer.model", ignored)) return load_sentencepiece_tokenizer(folder);
  return fail(Code::kNotFound, "no tokenizer.json and no tokenizer.model in ", folder.string());
}

}  // namespace seer
