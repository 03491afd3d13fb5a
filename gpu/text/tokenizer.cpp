#include "gpu/text/tokenizer.h"

#include <algorithm>

#include "gpu/text/tokenizer_bpe.h"
#include "gpu/text/tokenizer_sentencepiece.h"
#include "protocols/hash.h"

namespace seer {

uint64_t pieces_hash(const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return 0;
  uint64_t hash = 1;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) hash = hash_pair(hash, hash_bytes(tokenizer->piece(id)));
  return std::max<uint64_t>(1, hash);
}

Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const std::filesystem::path& folder) {
  std::error_code ignored;  // a file that cannot be looked at counts as missing
  if (std::filesystem::exists(folder / "tokenizer.json", ignored)) return load_bpe_tokenizer(folder / "tokenizer.json");
  if (std::filesystem::exists(folder / "tokenizer.model", ignored)) return load_sentencepiece_tokenizer(folder);
  return fail(Code::kNotFound, "no tokenizer.json and no tokenizer.model in ", folder.string());
}

}  // namespace seer
