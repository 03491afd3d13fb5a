#include "cli/jsonl.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include "cli/json_fields.h"
#include "cli/json_lines.h"
#include "cli/sampling_options.h"
#include "cli/suggestion.h"
#include "protocols/hash.h"

namespace seer {
namespace {

constexpr std::array<std::string_view, 20> kResponseFields{
    "seq",   "group",          "sample", "seed",       "prompt_ids",  "output_ids", "logprobs", "text",  "finish_reason",
    "error", "weight_version", "chunks", "migrations", "preemptions", "queue_s",    "run_s",    "scores", "score_error", "weight_version_name", "kept_ids"};

// ---- reading -------------------------------------------------------------------------------------------------------

/// Position of an error: "prompts.jsonl:7: ".
std::string at(const std::string& path, int64_t line) { return cat(path, ":", line, ": "); }

Error wrong_line(const std::string& path, int64_t line, const auto&... what) {
  return fail(Code::kInvalidArgument, path, ":", line, ": ", what...);
}

/// The object on this line.
Result<Json> parse_object(const std::string& path, int64_t line, const std::string& text) {
  SEER_RETURN_IF_ERROR(check_object(path, line, text));
  return Json::parse(text);
}

/// Fields of other programs, besides those of find_foreign_field(), and what to use instead. Carrying them along silently would mislead
/// the user.
struct RefusedField {
  std::string_view name;  // NAME*: all names that begin with NAME
  const char* instead;
};
constexpr const char* kStopStays = "a stop text stays in its response";
constexpr const char* kNoPenalty = "the only penalty is repetition_penalty";
constexpr const char* kOwnTemplate = "the template is that of the model's folder";
constexpr const char* kOfMessages = "it goes with messages";
constexpr const char* kUseTools = "use tools, with messages";
constexpr const char* kNoGrammar = "output cannot be constrained; rename the field if it is only to be carried along";
constexpr const char* kNoBias = "logits cannot be changed; rename the field if it is only to be carried along";
constexpr const char* kFlagLogprobs = "responses have the log-probability of each token; the flag --raw-logprobs says which";
constexpr const char* kNoSpecial = "the text of a response is without special tokens; output_ids has them";
constexpr RefusedField kRefusedFields[] = {
    {"max_completion_tokens", "use max_tokens"},
    {"min_new_tokens", "use min_tokens"},
    {"sampling_seed", "use seed"},
    {"input_ids", "use prompt_ids"},
    {"best_of", "use n"},
    {"group_size", "use n"},
    {"use_beam_search", "responses are sampled one by one; use n"},
    {"length_penalty", "responses are sampled one by one; use n"},
    {"include_stop_str_in_output", kStopStays},
    {"no_stop_trim", kStopStays},
    {"frequency_penalty", kNoPenalty},
    {"presence_penalty", kNoPenalty},
    {"logit_bias", kNoBias},
    {"bad_words", kNoBias},
    {"allowed_token_ids", kNoBias},
    {"logits_processors", kNoBias},
    {"chat_template", kOwnTemplate},
    {"add_generation_prompt", kOfMessages},
    {"chat_template_kwargs", kOfMessages},
    {"tools", kOfMessages},
    {"tool_choice", kUseTools},
    {"functions", kUseTools},
    {"guided_*", kNoGrammar},
    {"response_format", kNoGrammar},
    {"json_schema", kNoGrammar},
    {"regex", kNoGrammar},
    {"grammar", kNoGrammar},
    {"ebnf", kNoGrammar},
    {"logprobs", kFlagLogprobs},
    {"prompt_logprobs", "seer score gives log-probabilities of given tokens"},
    {"return_logprob", kFlagLogprobs},
    {"top_logprobs", kFlagLogprobs},
    {"raw_logprobs", kFlagLogprobs},
    {"skip_special_tokens", kNoSpecial},
    {"spaces_between_special_tokens", kNoSpecial},
    {"stream", "responses are written whole"},
};

/// The fields of a conversation, in a line with messages.
constexpr std::array<std::string_view, 5> kChatFields{"messages", "tools", "documents", "add_generation_prompt", "chat_template_kwargs"};

/// What to use instead of a refused field; null: it is none.
const char* instead_of(std::string_view name) {
  for (const RefusedField& field : kRefusedFields)
    if (field.name.ends_with('*') ? name.starts_with(field.name.substr(0, field.name.size() - 1)) : name == field.name)
      return field.instead;
  const ForeignField* const foreign = find_foreign_field(name);
  return foreign == nullptr ? nullptr : foreign->instead;
}

/// Flags that may be given as fields, named as these.
std::vector<OptionSpec> line_options(int64_t& samples, SamplingParams& sampling) {
  std::vector<OptionSpec> options = sampling_options(sampling);
  options.push_back({"n", "N", &samples, "responses", kGroupSizes});
  for (OptionSpec& option : options) std::ranges::replace(option.name, '-', '_');
  return options;
}

/// Reads prompt lines one after the other. Not copied: its options point into it.
class PromptReader {
 public:
  PromptReader(std::string path, const PromptDefaults& defaults) : path_(std::move(path)), defaults_(defaults) {
    options_ = line_options(samples_, sampling_);
  }
  PromptReader(const PromptReader&) = delete;
  PromptReader& operator=(const PromptReader&) = delete;

  Result<PromptLine> read(int64_t line, const std::string& text) {
    SEER_ASSIGN_OR_RETURN(const std::vector<JsonMember> members, json_members(path_, line, text));
    samples_ = defaults_.samples;
    sampling_ = defaults_.sampling;
    PromptLine prompt;
    prompt.line = line;
    std::vector<std::string> prompts;  // the fields that give one
    for (const JsonMember& member : members)
      if ((member.name == "prompt" || member.name == "prompt_ids" || member.name == "messages") && member.text != "null")
        prompts.push_back(member.name);
    if (prompts.empty()) return wrong_line(path_, line, "neither prompt nor prompt_ids nor messages: expected one of them");
    if (prompts.size() > 1) return wrong_line(path_, line, "both ", prompts[0], " and ", prompts[1], ": expected one of them");
    const bool is_chat = prompts[0] == "messages";
    for (const JsonMember& member : members) {
      if (is_chat && std::ranges::find(kChatFields, member.name) != kChatFields.end())
        prompt.chat += cat(prompt.chat.empty() ? "{" : ",", json_string(member.name), ":", member.text);
      else
        SEER_RETURN_IF_ERROR(take(member, at(path_, line), prompt));
    }
    if (is_chat) prompt.chat += "}";
    if (prompt.prompt.empty() && prompt.prompt_ids.empty() && !is_chat) return wrong_line(path_, line, "the prompt is empty");
    prompt.samples = samples_;
    prompt.sampling = sampling_;
    return prompt;
  }

 private:
  /// Reads one member into its field.
  Status take(const JsonMember& member, const std::string& found, PromptLine& prompt) {
    const auto& [name, text] = member;
    const bool is_null = text == "null";  // not given
    const auto option = std::ranges::find(options_, name, &OptionSpec::name);
    if (option != options_.end()) return is_null ? Status{} : set_json_option(*option, sampling_text(name, text), found);
    if (name == "id" || name == "prompt" || name == "prompt_ids" || name == "seed" || name == "length_hint")
      return is_null ? Status{} : take_own(member, found, prompt);
    if (const char* const instead = is_null ? nullptr : instead_of(name))
      return fail(Code::kInvalidArgument, found, "field ", name, " is not known: ", instead);
    if (const std::string meant = is_null ? "" : meant_field(name); !meant.empty())
      return fail(Code::kInvalidArgument, found, "field ", json_string(shown(name)), " is not known: did you mean ", meant,
                  "? Rename it if it is only to be carried along");
    if (std::ranges::find(kResponseFields, name) != kResponseFields.end())
      return fail(Code::kInvalidArgument, found, "field ", name, " would clash with the response's own: rename it");
    prompt.carried += cat(prompt.carried.empty() ? "" : ",", json_string(name), ":", text);
    return {};
  }

  /// The field that this one is a misspelling of; empty: none. Only long names of sampling are guessed, from names
  /// with the same first letter: prompt_id, num_tokens, and a word of a long name (repetition) may be the user's own.
  std::string meant_field(const std::string& name) const {
    constexpr size_t kLongName = 8;
    const auto plain = [](std::string_view of) {
      std::string letters;
      for (const char c : of)
        if (c != '_' && c != '-') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      return letters;
    };
    for (const char* const field : {"prompt_ids", "length_hint", "seed"})
      if (plain(field) == plain(name)) return field;
    std::vector<std::string> long_names;
    for (const OptionSpec& option : options_) {
      if (plain(option.name) == plain(name)) return option.name;
      if (option.name.size() >= kLongName) long_names.push_back(option.name);
    }
    const std::string near = name.size() >= kLongName ? nearest_name(name, long_names) : "";
    const bool begins_alike = !near.empty() && near.front() == std::tolower(static_cast<unsigned char>(name.front()));
    return begins_alike && !near.starts_with(name + "_") ? near : "";
  }

  /// Reads a field that is not a flag.
  static Status take_own(const JsonMember& member, const std::string& found, PromptLine& prompt) {
    SEER_ASSIGN_OR_RETURN(const Json value, field_value(member.text, found));
    if (member.name == "id") {
      // The library reads an integer of more than 64 bits as a decimal, but its text is an integer.
      const bool is_integer = value.is_number() && member.text.find_first_of(".eE") == std::string::npos;
      if (!value.is_string() && !is_integer)
        return fail(Code::kInvalidArgument, found, "id is ", shown(member.text), ": expected text or an integer");
      prompt.id = member.text;
    } else if (member.name == "prompt") {
      if (!value.is_string())
        return fail(Code::kInvalidArgument, found, "prompt is ", value.type_name(), ": expected text");
      prompt.prompt = value.get<std::string>();
    } else if (member.name == "prompt_ids") {
      SEER_ASSIGN_OR_RETURN(prompt.prompt_ids, token_ids(value, "prompt_ids", found));
    } else if (member.name == "length_hint") {
      SEER_ASSIGN_OR_RETURN(prompt.length_hint, integer_field<int64_t>(value, "length_hint", 1, found));
    } else {
      SEER_ASSIGN_OR_RETURN(prompt.seed, integer_field<uint64_t>(value, "seed", 0, found));
    }
    return {};
  }

  const std::string path_;
  const PromptDefaults defaults_;
  int64_t samples_ = 1;        // of the line being read; sampling_ likewise
  SamplingParams sampling_;
  std::vector<OptionSpec> options_;  // named as the fields of a line
};

struct LengthLine {
  int64_t group = 0, sample = 0, tokens = 0;
  std::vector<int32_t> output_ids;  // empty if the line has only their number
  bool ended_early = false;         // it failed or was aborted, so it is shorter than it would have become
};

/// A request may have failed, or been aborted, before its first token.
bool ended_early(const Json& response) {
  const auto finish = response.find("finish_reason");
  return response.contains("error") || (finish != response.end() && (*finish == "abort" || *finish == "error"));
}

/// The length of prompt_ids if there is one, else the number prompt_tokens.
Result<int64_t> prompt_tokens(const Json& object, const std::string& found) {
  if (!object.contains("prompt_ids")) return integer_field<int64_t>(object.at("prompt_tokens"), "prompt_tokens", 1, found);
  SEER_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, token_ids(object.at("prompt_ids"), "prompt_ids", found));
  if (ids.empty()) return fail(Code::kInvalidArgument, found, "prompt_ids is empty");
  return std::ssize(ids);
}

Result<LengthLine> length_of(const Json& object, const std::string& path, int64_t line) {
  const bool is_response = object.contains("output_ids");
  for (const char* name : {"group", "sample", is_response ? "output_ids" : "tokens"})
    if (!object.contains(name))
      return wrong_line(path, line, "no field ", name,
                        ": expected {group, sample, tokens} or {group, sample, output_ids}");
  LengthLine length;
  SEER_ASSIGN_OR_RETURN(length.group, integer_field<int64_t>(object.at("group"), "group", 0, at(path, line)));
  SEER_ASSIGN_OR_RETURN(length.sample, integer_field<int64_t>(object.at("sample"), "sample", 0, at(path, line)));
  if (!is_response) {
    SEER_ASSIGN_OR_RETURN(length.tokens, integer_field<int64_t>(object.at("tokens"), "tokens", 1, at(path, line)));
    return length;
  }
  SEER_ASSIGN_OR_RETURN(length.output_ids, token_ids(object.at("output_ids"), "output_ids", at(path, line)));
  length.ended_early = ended_early(object);
  if (length.output_ids.empty() && !length.ended_early) return wrong_line(path, line, "output_ids is empty");
  length.tokens = std::ssize(length.output_ids);
  return length;
}

Result<ScoreLine> parse_score_line(const std::string& path, int64_t line, const std::string& text) {
  SEER_ASSIGN_OR_RETURN(const Json object, parse_object(path, line, text));
  for (const char* name : {"prompt_ids", "output_ids"})
    if (!object.contains(name))
      return wrong_line(path, line, "no field ", name, ": expected {prompt_ids, output_ids, ...}");
  if (object.contains("scores")) return wrong_line(path, line, "the line has scores already");
  ScoreLine score;
  score.line = line;
  score.text = text;
  SEER_ASSIGN_OR_RETURN(score.prompt_ids, token_ids(object.at("prompt_ids"), "prompt_ids", at(path, line)));
  SEER_ASSIGN_OR_RETURN(score.output_ids, token_ids(object.at("output_ids"), "output_ids", at(path, line)));
  if (score.prompt_ids.empty()) return wrong_line(path, line, "prompt_ids is empty");
  if (score.output_ids.empty() && !ended_early(object))  // a line without tokens is written to the scored file like the others
    return wrong_line(path, line, "output_ids is empty: nothing to score");
  return score;
}

// ---- writing: lists straight into the text, as a response can hold 100 000 numbers -----------------------------
// Not written with the library: it writes a float with the digits of a double, twice as long, and copies lists first.

void append_seconds(std::string& out, double seconds) {
  std::array<char, 40> buffer;
  const auto text = std::to_chars(buffer.data(), buffer.data() + buffer.size(), seconds, std::chars_format::fixed, 6);
  out.append(buffer.data(), text.ptr);
}

template <class T, class F>
void append_list(std::string& out, const char* name, std::span<const T> values, F append_value) {
  out += name;
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    append_value(out, values[i]);
  }
  out += ']';
}

}  // namespace

struct PromptLines::State {
  std::string path;
  PromptReader reader;
  std::map<std::string, int64_t> line_of_id;
};

PromptLines::PromptLines(const std::string& path, const PromptDefaults& defaults)
    : state_(new State{path, PromptReader(path, defaults), {}}) {}

PromptLines::~PromptLines() = default;

Result<std::optional<PromptLine>> PromptLines::take(int64_t line, std::string text) {
  SEER_RETURN_IF_ERROR(check_line(state_->path, line, text));
  if (is_blank(text)) return std::optional<PromptLine>();
  SEER_ASSIGN_OR_RETURN(PromptLine prompt, state_->reader.read(line, text));
  if (!prompt.id.empty()) {
    const auto [first, is_new] = state_->line_of_id.emplace(prompt.id, line);
    if (!is_new)
      return wrong_line(state_->path, line, "id ", shown(prompt.id), " is that of line ", first->second, " already");
  }
  return std::optional<PromptLine>(std::move(prompt));
}

Status read_prompt_defaults(const std::string& text, const std::string& found, PromptDefaults& defaults) {
  SEER_ASSIGN_OR_RETURN(const Json whole, field_value(text, found));
  if (!whole.is_object()) return fail(Code::kInvalidArgument, found, "defaults is ", shown_value(whole), ": expected an object");
  SEER_ASSIGN_OR_RETURN(const std::vector<JsonMember> members, json_members(found, 1, text));
  const std::vector<OptionSpec> options = line_options(defaults.samples, defaults.sampling);
  for (const auto& [name, value] : members) {
    const auto option = std::ranges::find(options, name, &OptionSpec::name);
    const char* const instead = instead_of(name);
    if (option == options.end())
      return fail(Code::kInvalidArgument, found, "defaults has ", shown(name), ": ",
                  instead != nullptr ? instead : "expected n and fields of sampling");
    if (value != "null") SEER_RETURN_IF_ERROR(set_json_option(*option, value, found));
  }
  return {};
}

Result<std::vector<PromptLine>> read_prompts(const std::string& path, int64_t limit, const PromptDefaults& defaults) {
  PromptLines lines(path, defaults);
  std::vector<PromptLine> prompts;
  SEER_RETURN_IF_ERROR(for_each_line(path, [&](int64_t line, const std::string& text) -> Result<bool> {
    SEER_ASSIGN_OR_RETURN(std::optional<PromptLine> prompt, lines.take(line, text));
    if (prompt) prompts.push_back(*std::move(prompt));
    return limit == 0 || std::ssize(prompts) < limit;
  }));
  if (prompts.empty()) return fail(Code::kInvalidArgument, path, " holds no prompts: expected a JSON object per line");
  return prompts;
}

uint64_t prompt_sample_seed(const PromptLine& line, uint64_t run_seed, uint32_t group, uint32_t sample) {
  constexpr uint64_t kOfLine = hash_text("seed of a prompt line");  // so that they differ from the seeds of a run with this seed
  if (line.seed) return sample_seed(*line.seed, kOfLine, sample);
  return sample_seed(run_seed, line.id.empty() ? group : hash_text(line.id), sample);
}

namespace {

Status check_ids(const std::string& path, int64_t line, const char* of, std::span<const int32_t> ids, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab_size)
      return wrong_line(path, line, "token id ", ids[i], " (number ", i, " of the ", of,
                        ") is outside the vocabulary of ", vocab_size);
  return {};
}

}  // namespace

Status check_prompt(const std::string& path, int64_t line, std::span<const int32_t> prompt_ids, int32_t vocab_size,
                    int64_t context_tokens_max) {
  SEER_RETURN_IF_ERROR(check_ids(path, line, "prompt", prompt_ids, vocab_size));
  if (prompt_ids.empty()) return wrong_line(path, line, "the prompt has no tokens");
  if (std::ssize(prompt_ids) >= context_tokens_max)
    return wrong_line(path, line, "the prompt has ", prompt_ids.size(),
                      " tokens: expected fewer than the model's context of ", context_tokens_max);
  return {};
}

Status check_score_line(const std::string& path, const ScoreLine& line, int32_t vocab_size, int64_t context_tokens_max) {
  SEER_RETURN_IF_ERROR(check_ids(path, line.line, "prompt", line.prompt_ids, vocab_size));
  SEER_RETURN_IF_ERROR(check_ids(path, line.line, "output", line.output_ids, vocab_size));
  if (std::ssize(line.prompt_ids) + std::ssize(line.output_ids) <= context_tokens_max) return {};
  return wrong_line(path, line.line, "the prompt has ", line.prompt_ids.size(), " tokens and the output ",
                    line.output_ids.size(), ": expected no more together than the model's context of ",
                    context_tokens_max);
}

Result<std::vector<std::vector<int64_t>>> read_lengths(const std::string& path, std::span<const int64_t> group_sizes) {
  std::vector<std::vector<int64_t>> lengths;
  for (const int64_t size : group_sizes) lengths.emplace_back(size, 0);
  SEER_RETURN_IF_ERROR(for_each_line(path, [&](int64_t line, const std::string& text) -> Result<bool> {
    SEER_ASSIGN_OR_RETURN(const Json object, parse_object(path, line, text));
    SEER_ASSIGN_OR_RETURN(const LengthLine found, length_of(object, path, line));
    if (found.group >= std::ssize(lengths) || found.sample >= std::ssize(lengths[found.group])) return true;
    if (found.ended_early) return wrong_line(path, line, "the response failed or was aborted, so its length is not known");
    int64_t& tokens = lengths[found.group][found.sample];
    if (tokens != 0)
      return wrong_line(path, line, "group ", found.group, " sample ", found.sample, " has a line before this one");
    tokens = found.tokens;
    return true;
  }));
  for (size_t group = 0; group < lengths.size(); ++group)
    for (size_t sample = 0; sample < lengths[group].size(); ++sample)
      if (lengths[group][sample] == 0)
        return fail(Code::kInvalidArgument, path, ": no length of group ", group, " sample ", sample);
  return lengths;
}

namespace {

std::vector<SharedBeginning> shared_beginnings(std::span<const std::vector<int32_t>> outputs) {
  std::vector<SharedBeginning> shared(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const int64_t same = std::ranges::mismatch(outputs[i], outputs[j]).in1 - outputs[i].begin();
      if (same > shared[i].tokens) shared[i] = {static_cast<uint32_t>(j), same};
    }
  return shared;
}

}  // namespace

Result<Trace> read_trace(const std::string& path) {
  std::map<std::pair<int64_t, int64_t>, LengthLine> lines;  // by group and sample
  std::map<int64_t, int64_t> prompt_tokens_of;              // by group
  SEER_RETURN_IF_ERROR(for_each_line(path, [&](int64_t line, const std::string& text) -> Result<bool> {
    SEER_ASSIGN_OR_RETURN(const Json object, parse_object(path, line, text));
    SEER_ASSIGN_OR_RETURN(LengthLine found, length_of(object, path, line));
    if (!object.contains("prompt_ids") && !object.contains("prompt_tokens"))
      return wrong_line(path, line, "no field prompt_tokens: expected it, or prompt_ids");
    SEER_ASSIGN_OR_RETURN(const int64_t prompt, prompt_tokens(object, at(path, line)));
    const int64_t group = found.group, sample = found.sample;
    if (!lines.emplace(std::pair(group, sample), std::move(found)).second)
      return wrong_line(path, line, "group ", group, " sample ", sample, " has a line before this one");
    const auto [first, is_new] = prompt_tokens_of.emplace(group, prompt);
    if (first->second != prompt)
      return wrong_line(path, line, "the prompt has ", prompt, " tokens: expected ", first->second,
                        " as in an earlier line of group ", group);
    return true;
  }));
  if (lines.empty())
    return fail(Code::kInvalidArgument, path, " holds no responses: expected a JSON object per line");
  Trace trace;
  auto next = lines.begin();
  for (int64_t group = 0; next != lines.end(); ++group) {
    GroupLengths lengths{.prompt_tokens = prompt_tokens_of[group], .output_tokens = {}};
    std::vector<std::vector<int32_t>> outputs;
    int64_t sample = 0;
    for (; next != lines.end() && next->first == std::pair(group, sample); ++next, ++sample) {
      if (next->second.ended_early) {
        ++trace.left_out;
        continue;
      }
      lengths.output_tokens.push_back(next->second.tokens);
      outputs.push_back(std::move(next->second.output_ids));
    }
    if (sample == 0 || (next != lines.end() && next->first.first == group))
      return fail(Code::kInvalidArgument, path, ": no response of group ", group, " sample ", sample,
                  ": expected groups from 0 on, each with samples from 0 on");
    if (outputs.empty()) continue;
    if (std::ranges::none_of(outputs, &std::vector<int32_t>::empty)) lengths.shared = shared_beginnings(outputs);
    trace.groups.push_back(std::move(lengths));
  }
  if (trace.groups.empty())
    return fail(Code::kInvalidArgument, path, ": all ", trace.left_out, " responses failed or were aborted");
  return trace;
}

Result<std::vector<ScoreLine>> read_score_lines(const std::string& path) {
  std::vector<ScoreLine> lines;
  SEER_RETURN_IF_ERROR(for_each_line(path, [&](int64_t line, const std::string& text) -> Result<bool> {
    SEER_ASSIGN_OR_RETURN(ScoreLine score, parse_score_line(path, line, text));
    lines.push_back(std::move(score));
    return true;
  }));
  if (lines.empty()) return fail(Code::kInvalidArgument, path, " holds no lines to score");
  return lines;
}

std::string scored_line(const ScoreLine& line, std::span<const float> scores, std::string_view error) {
  std::string out = line.text.substr(0, line.text.rfind('}'));  // an object with at least two members
  if (error.empty()) {
    SEER_CHECK(scores.size() == line.output_ids.size(), line.line, scores.size(), line.output_ids.size());
    append_list(out, ",\"scores\":", scores, append_float);
  } else {
    (out += ",\"scores\":null,\"score_error\":") += json_string(error);
  }
  return out += "}\n";
}

std::string response_line(const ResponseLine& response) {
  const bool has_logprobs = response.logprobs.size() == response.output_ids.size();
  SEER_CHECK(has_logprobs || response.logprobs.empty(), response.request, response.logprobs.size(), response.output_ids.size());
  std::string out;
  out.reserve(256 + response.carried.size() + 6 * response.prompt_ids.size() + 18 * response.output_ids.size() +
              (response.text ? 2 * response.text->size() : 0));
  const auto member = [&out](const char* name, auto value) {
    out += name;
    append_integer(out, value);
  };
  member("{\"group\":", response.request.group.index);
  member(",\"sample\":", response.request.sample);
  if (!response.id.empty()) (out += ",\"id\":") += response.id;
  member(",\"seed\":", response.seed);
  append_list(out, ",\"prompt_ids\":", response.prompt_ids, append_integer<int32_t>);
  append_list(out, ",\"output_ids\":", response.output_ids, append_integer<int32_t>);
  if (has_logprobs) append_list(out, ",\"logprobs\":", response.logprobs, append_float);
  if (response.kept_ids != nullptr) {
    out += ",\"kept_ids\":[";
    for (size_t i = 0; i < response.kept_ids->tokens(); ++i) append_list(out, i > 0 ? "," : "", response.kept_ids->of(i), append_integer<int32_t>);
    out += ']';
  }
  if (response.text) (out += ",\"text\":") += json_string(*response.text);
  ((out += ",\"finish_reason\":\"") += to_string(response.finish_reason)) += '"';
  if (!response.error.empty()) (out += ",\"error\":") += json_string(response.error);
  member(",\"weight_version\":", response.weight_version.value);
  if (!response.weight_version_name.empty()) (out += ",\"weight_version_name\":") += json_string(response.weight_version_name);
  member(",\"chunks\":", response.chunks);
  member(",\"migrations\":", response.migrations);
  member(",\"preemptions\":", response.preemptions);
  append_seconds(out += ",\"queue_s\":", response.queue_s);
  append_seconds(out += ",\"run_s\":", response.run_s);
  if (!response.carried.empty()) (out += ',') += response.carried;
  return out += "}\n";
}

}  // namespace seer
