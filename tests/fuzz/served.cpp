// Answers of servers behind `--engines`, of SGLang's kind and of vLLM's. The first byte says which, and what the rest is: an answer to a
// request, as a stream or whole, or what a server says of itself. Answers come in two pieces, cut at a place of the input's choice.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "served/served_answer.h"
#include "served/server_dialect.h"

using namespace seer;

namespace {

[[noreturn]] void found(const char* what) {
  std::fprintf(stderr, "FINDING: %s\n", what);
  std::abort();
}

ServedAsk ask_of(bool wants_logprobs) {
  ServedAsk ask{.rid = "seer.1.", .tokens = {11, 12, 13, 21}, .prompt_tokens = 3, .max_new_tokens = 8, .sampling = {}, .seed = 5};
  ask.sampling.logprob_mode = wants_logprobs ? LogprobMode::kProcessed : LogprobMode::kNone;
  return ask;
}

/// Exactly one part has an end, and what comes fits what was asked for.
void read_answer(ServerKind kind, std::string_view bytes, bool is_stream, int status, size_t cut) {
  const auto dialect = make_dialect(kind);
  const ServedAsk ask = ask_of(bytes.size() % 2 == 0);
  int ends = 0;
  size_t tokens = 0;
  ServedAnswer answer(ask, *dialect, [&](const ServedPart& part) {
    if (ends > 0) found("a part came after the end");
    ends += part.end != ServedEnd::kNone;
    tokens += part.output.ids.size();
    if (tokens > static_cast<size_t>(ask.max_new_tokens)) found("more tokens came than were asked for");
    if (!part.output.logprobs.empty() && part.output.logprobs.size() != part.output.ids.size()) found("tokens and log-probabilities differ in number");
    if (std::ranges::any_of(part.output.logprobs, [](float logprob) { return !(logprob <= 0); })) found("a log-probability is not at most 0");
    if (std::ranges::any_of(part.output.ids, [](int32_t token) { return token < 0; })) found("a token id is negative");
  });
  answer.head(status, is_stream ? "text/event-stream" : "application/json");
  answer.body(bytes.substr(0, cut));
  answer.body(bytes.substr(cut));
  answer.end({});
  if (ends != 1) found("an answer has no end");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 2), size - 2);
  const auto kind = static_cast<ServerKind>(data[0] % 3);
  switch (data[0] / 3 % 4) {
    case 0: read_answer(kind, rest, true, 200, std::min<size_t>(data[1], rest.size())); break;
    case 1: read_answer(kind, rest, false, 200, std::min<size_t>(data[1], rest.size())); break;
    case 2: read_answer(kind, rest, false, 400 + data[1], 0); break;
    case 3: {
      const auto dialect = make_dialect(kind);
      (void)dialect->state(std::vector<HttpAnswer>(dialect->look().size(), {200, std::string(rest)}));
    }
  }
  return 0;
}
