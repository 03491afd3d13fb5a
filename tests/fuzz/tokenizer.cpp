// A tokenizer.json, and optionally a zero byte and a text that is taken apart and put together again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gpu/text/tokenizer_bpe.h"

using namespace seer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const auto tokenizer = parse_bpe_tokenizer(input.substr(0, end), "tokenizer.json");
  if (!tokenizer.ok()) return 0;
  const std::string_view text =
      end == input.npos ? std::string_view("A03 B09 sum\n h\xc3\xa9llo <|im_start|> 12345 \xff") : input.substr(end + 1);
  const auto ids = (*tokenizer)->encode(text, {.add_special = true});
  if (!ids.ok()) return 0;
  (void)(*tokenizer)->decode(*ids, {.skip_special = true});
  for (const int32_t id : *ids) (void)(*tokenizer)->piece(id);
  return 0;
}
