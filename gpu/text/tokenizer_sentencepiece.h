// The tokenizer of a SentencePiece tokenizer.model, through the library. If the library is not built in, the answer is
// kUnavailable with what to install.
//
// As in the library: bytes that are not UTF-8 are encoded as U+FFFD, and user-defined symbols become their id. Unlike there, byte tokens
// that do not make up UTF-8 are decoded as these bytes, since more may follow.
// As in Hugging Face's LlamaTokenizer: a text is first cut at control symbols (`<s>`) and at the tokens that
// `added_tokens_decoder` in tokenizer_config.json or added_tokens.json name; `legacy` false there leaves out the space
// before the text behind each. EncodeOptions::add_special follows `add_bos_token` and `add_eos_token`; without these
// the model's BOS is added, if it has one, and no EOS.
#pragma once
#include <filesystem>
#include <memory>

#include "gpu/text/tokenizer.h"

namespace seer {

Result<std::shared_ptr<const Tokenizer>> load_sentencepiece_tokenizer(const std::filesystem::path& folder);

}  // namespace seer
