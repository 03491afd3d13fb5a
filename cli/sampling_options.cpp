#include "cli/sampling_options.h"

namespace seer {

std::vector<OptionSpec> sampling_options(SamplingParams& s) {
  return {
      {"max-tokens", "N", &s.max_tokens, "output tokens at most, unless the prompt line says another", at_least(1)},
      {"temperature", "T", &s.temperature, "0: greedy", between(0, 100)},
      {"top-p", "P", &s.top_p, "smallest set of tokens with this probability; 1: off", above_to(0, 1)},
      {"top-k", "K", &s.top_k, "the K most probable tokens; 0: off", between(0, 2147483647)},
      {"min-p", "P", &s.min_p, "tokens with this share of the largest probability; 0: off", from_below(0, 1)},
      {"repetition-penalty", "R", &s.repetition_penalty, "over prompt and output; 1: off", between(0.01, 100)},
      {"stop", "TEXT", RepeatedField{&s.stop}, "ends a response, which keeps it; may be repeated"},
      {"stop-token-ids", "ID,...", &s.stop_token_ids, "end a response, as EOS does", between(0, 2147483647)},
      {"ignore-eos", "", &s.ignore_eos, "go on to max-tokens whatever is sampled"},
  };
}

}  // namespace seer
