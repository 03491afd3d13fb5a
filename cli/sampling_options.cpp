#include "cli/sampling_options.h"

namespace seer {

std::vector<OptionSpec> sampling_options(SamplingParams& s) {
  return {
      {"max-tokens", "N", &s.max_tokens, "most output tokens of a response, unless its prompt line has max_tokens", at_least(1)},
      {"min-tokens", "N", &s.min_tokens, "least output tokens before EOS or a token of --stop-token-ids; 0: off", at_least(0)},
      {"temperature", "T", &s.temperature, "0: greedy", between(0, 100)},
      {"top-p", "P", &s.top_p, "sample from the fewest tokens with this probability together; 1: off", above_to(0, 1)},
      {"top-k", "K", &s.top_k, "sample from the K most probable tokens; 0: off", between(0, 2147483647)},
      {"min-p", "P", &s.min_p, "sample from tokens with at least this share of the largest probability; 0: off", from_below(0, 1)},
      {"repetition-penalty", "R", &s.repetition_penalty, "penalty on tokens already in prompt or output; 1: off", between(0.01, 100)},
      {"stop", "TEXT", RepeatedField{&s.stop}, "text that ends a response and stays in it; may be repeated"},
      {"stop-token-ids", "ID,...", &s.stop_token_ids, "tokens that end a response, as EOS does", between(0, 2147483647)},
      {"ignore-eos", "", &s.ignore_eos, "do not stop at EOS"},
  };
}

std::string sampling_text(const std::string& field, const std::string& text) { return field == "top_k" && text == "-1" ? "0" : text; }

}  // namespace seer
