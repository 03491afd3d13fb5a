#include "cli/sampling_options.h"

namespace seer {
namespace {

constexpr const char* kUseMaxTokens = "use max_tokens";
constexpr const char* kUseN = "use n";
constexpr const char* kUseStop = "use stop";
constexpr const char* kUseTemperature = "use temperature (0: greedy)";
constexpr const char* kNoBeams = "responses are sampled one by one; use n";
constexpr const char* kNoCut = "use top_p, top_k or min_p";
constexpr const char* kBesidePrompt = "give its fields beside the prompt";
constexpr ForeignField kForeignFields[] = {
    {"max_new_tokens", kUseMaxTokens},
    {"max_output_tokens", kUseMaxTokens},
    {"max_gen_len", kUseMaxTokens},
    {"max_length", kUseMaxTokens},
    {"thinking_token_budget", kUseMaxTokens},
    {"min_length", "use min_tokens", "0"},
    {"num_return_sequences", kUseN, "1"},
    {"num_samples", kUseN, "1"},
    {"num_beams", kNoBeams, "1"},
    {"beam_width", kNoBeams, "1"},
    {"early_stopping", kNoBeams, "false"},
    {"do_sample", kUseTemperature, "true"},
    {"greedy", kUseTemperature, "false"},
    {"stop_sequences", kUseStop, "[]"},
    {"stop_strings", kUseStop, "[]"},
    {"stop_words", kUseStop, "[]"},
    {"eos_token_id", "use stop_token_ids"},
    {"no_repeat_ngram_size", "the only penalty is repetition_penalty", "0"},
    {"typical_p", kNoCut, "1"},
    {"top_a", kNoCut, "0"},
    {"tfs", kNoCut, "1"},
    {"epsilon_cutoff", kNoCut, "0"},
    {"eta_cutoff", kNoCut, "0"},
    {"mirostat", kNoCut, "0"},
    {"mirostat_mode", kNoCut, "0"},
    {"guided_decoding", "output cannot be constrained", "{}"},
    {"sampling_params", kBesidePrompt, "{}"},
    {"generation_config", kBesidePrompt, "{}"},
    {"extra_body", kBesidePrompt, "{}"},
};

}  // namespace

const ForeignField* find_foreign_field(std::string_view name) {
  for (const ForeignField& field : kForeignFields)
    if (name == field.name) return &field;
  return nullptr;
}

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
