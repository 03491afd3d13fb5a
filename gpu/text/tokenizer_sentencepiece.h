// The tokenizer of a SentencePiece tokenizer.model, through the library. If the library is not built in, the answer is
// kUnavailable with what to install.
//
// As in the library: bytes that are not UTF-8 are encoded as U+FFFD; control symbols (`<s>`) written in a text stay
// text, user-defined symbols become their id; decode() gives U+FFFD for byte tokens that do not make up UTF-8, where
// piece() gives the byte. Control symbols append nothing. EncodeOptions::add_special follows `add_bos_token` and
// `add_eos_token` in the folder's tokenizer_config.json; without these nothing is added.
#pragma once
#include <filesystem>
#include <memory>

#include "gpu/text/tokenizer.h"

namespace seer {

Result<std::shared_ptr<const Tokenizer>> load_sentencepiece_tokenizer(const std::filesystem::path& folder);

}  // namespace seer
