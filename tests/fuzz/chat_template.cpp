// A chat template, a zero byte, and the JSON context that it renders: a model's folder brings the one, a client the other.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "gpu/text/chat_template.h"

using namespace seer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // As tight as an input takes a second at most, so that work which the limits do not count is seen as such.
  constexpr ChatTemplateLimits kLimits{.output_bytes_max = size_t{4} << 20, .steps_max = 300'000};
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const auto parsed = ChatTemplate::parse(input.substr(0, end), "t.jinja", kLimits);
  if (!parsed.ok()) return 0;
  nlohmann::ordered_json context = nlohmann::ordered_json::object();
  if (end != input.npos) context = nlohmann::ordered_json::parse(input.substr(end + 1), nullptr, false);
  if (context.is_discarded()) return -1;  // tells nothing more than an input with the empty context
  std::tm now{};
  now.tm_year = 124;
  now.tm_mday = 1;
  (void)parsed->render(context, {.now = now});
  return 0;
}
