#include "cli/jsonl.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace seer {
namespace {

using Json = nlohmann::ordered_json;  // carried fields keep their order

constexpr std::array<std::string_view, 17> kResponseFields{
    "group",         "sample", "seed",           "prompt_ids", "output_ids", "logprobs",    "text",
    "finish_reason", "error",  "weight_version", "chunks",     "migrations", "preemptions", "queue_s",
    "run_s",         "scores", "score_error"};

// ---- reading -------------------------------------------------------------------------------------------------------

/// Position of an error: "prompts.jsonl:7: ".
std::string at(const std::string& path, int64_t line) { return cat(path, ":", line, ": "); }

Error wrong_line(const std::string& path, int64_t line, const auto&... what) {
  return fail(Code::kInvalidArgument, path, ":", line, ": ", what...);
}

/// The object on this line. nlohmann's message has the place in front, for which ours has file, line and column.
Result<Json> parse_object(const std::string& path, int64_t line, const std::string& text) {
  try {
    Json value = Json::parse(text);
    if (!value.is_object()) return wrong_line(path, line, "expected a JSON object, found ", value.type_name());
    return value;
  } catch (const Json::parse_error& e) {
    const std::string_view message = e.what();
    const size_t place_end = message.find(": ");
    return fail(Code::kInvalidArgument, path, ":", line, ":", std::max<size_t>(e.byte, 1),
                ": malformed JSON: ", place_end == message.npos ? message : message.substr(place_end + 2));
  } catch (const Json::exception& e) {  // a number beyond double
    return wrong_line(path, line, "malformed JSON: ", e.what());
  }
}

/// Calls `take(line number, text)` for every line that is not blank, until it returns an error or false.
template <class F>
Status for_each_line(const std::string& path, F&& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(Code::kNotFound, "cannot read ", path, ": ", std::strerror(errno));
  std::string text;
  for (int64_t line = 1; std::getline(file, text); ++line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    SEER_ASSIGN_OR_RETURN(const bool more, take(line, text));
    if (!more) return {};
  }
  if (file.bad()) return fail(Code::kIo, "cannot read ", path, ": ", std::strerror(errno));
  return {};
}

/// The field as an integer of at least `low`; `found` tells where it stands.
template <class T>
Result<T> integer_field(const Json& value, const char* name, T low, const std::string& found) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<T>::max())
                        : value.is_number_integer() && std::is_signed_v<T>;  // else negative
  if (!fits || value.get<T>() < low)
    return fail(Code::kInvalidArgument, found, name, " is ", value.dump(), ": expected an integer of at least ", low);
  return value.get<T>();
}

Result<std::vector<int32_t>> token_ids(const Json& value, const char* name, const std::string& found) {
  if (!value.is_array())
    return fail(Code::kInvalidArgument, found, name, " is ", value.type_name(), ": expected a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& entry : value) {
    const bool is_id = entry.is_number_unsigned() && entry.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
    if (!is_id)
      return fail(Code::kInvalidArgument, found, name, "[", ids.size(), "] is ", entry.dump(),
                  ": expected a token id from 0 to ", std::numeric_limits<int32_t>::max());
    ids.push_back(entry.get<int32_t>());
  }
  return ids;
}

/// One member of a prompt line into its field.
Status take_prompt_member(const std::string& key, const Json& value, const std::string& found, PromptLine& prompt) {
  if (key == "id") {
    if (!value.is_string() && !value.is_number_integer())
      return fail(Code::kInvalidArgument, found, "id is ", value.dump(), ": expected text or an integer");
    prompt.id = value.dump();
  } else if (key == "prompt") {
    if (!value.is_string())
      return fail(Code::kInvalidArgument, found, "prompt is ", value.type_name(), ": expected text");
    prompt.prompt = value.get<std::string>();
  } else if (key == "prompt_ids") {
    SEER_ASSIGN_OR_RETURN(prompt.prompt_ids, token_ids(value, "prompt_ids", found));
  } else if (key == "max_tokens") {
    SEER_ASSIGN_OR_RETURN(prompt.max_tokens, integer_field<int64_t>(value, "max_tokens", 1, found));
  } else if (key == "seed") {
    SEER_ASSIGN_OR_RETURN(prompt.seed, integer_field<uint64_t>(value, "seed", 0, found));
  } else if (std::find(kResponseFields.begin(), kResponseFields.end(), key) != kResponseFields.end()) {
    return fail(Code::kInvalidArgument, found, "field ", key, " is one that a response has of its own: rename it");
  } else {
    prompt.carried += cat(prompt.carried.empty() ? "" : ",", Json(key).dump(), ":", value.dump());
  }
  return {};
}

Result<PromptLine> parse_prompt(const std::string& path, int64_t line, const std::string& text) {
  SEER_ASSIGN_OR_RETURN(const Json object, parse_object(path, line, text));
  PromptLine prompt;
  prompt.line = line;
  for (const auto& [key, value] : object.items())
    SEER_RETURN_IF_ERROR(take_prompt_member(key, value, at(path, line), prompt));
  if (object.contains("prompt") == object.contains("prompt_ids"))
    return wrong_line(path, line,
                      object.contains("prompt") ? "both prompt and prompt_ids" : "neither prompt nor prompt_ids",
                      ": expected one of them");
  if (prompt.prompt.empty() && prompt.prompt_ids.empty()) return wrong_line(path, line, "the prompt is empty");
  return prompt;
}

struct LengthLine {
  int64_t group = 0, sample = 0, tokens = 0;
  std::vector<int32_t> output_ids;  // empty where the line has only their number
};

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
  if (length.output_ids.empty()) return wrong_line(path, line, "output_ids is empty");
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
  SEER_ASSIGN_OR_RETURN(score.prompt_ids, token_ids(object["prompt_ids"], "prompt_ids", at(path, line)));
  SEER_ASSIGN_OR_RETURN(score.output_ids, token_ids(object["output_ids"], "output_ids", at(path, line)));
  if (score.prompt_ids.empty()) return wrong_line(path, line, "prompt_ids is empty");
  // A request may have failed before its first token: its line goes on to the scored file like the others.
  if (score.output_ids.empty() && !object.contains("error"))
    return wrong_line(path, line, "output_ids is empty: nothing to score");
  return score;
}

// ---- writing: straight into the text, as a response can hold 100 000 numbers -----------------------------------

template <class T>
void append_integer(std::string& out, T value) {
  std::array<char, 24> buffer;
  out.append(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr);
}

/// A number that JSON readers take for a decimal: "-0" would lose its sign as an integer, so it becomes "-0.0".
void append_decimal(std::string& out, const char* begin, const char* end) {
  out.append(begin, end);
  if (std::none_of(begin, end, [](char c) { return c == '.' || c == 'e'; })) out += ".0";
}

void append_seconds(std::string& out, double seconds) {
  std::array<char, 40> buffer;
  const auto text = std::to_chars(buffer.data(), buffer.data() + buffer.size(), seconds, std::chars_format::fixed, 6);
  out.append(buffer.data(), text.ptr);
}

void append_float(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 40> buffer;
  char* const begin = buffer.data();
  const char* end = std::to_chars(begin, begin + buffer.size(), value).ptr;
  // The shortest text of a float can lie so near the middle of two floats that reading it as a double and rounding that
  // (what JSON readers do) gives the other one; then the double's own text is used.
  double read = 0;
  std::from_chars(begin, end, read);
  if (static_cast<float>(read) != value) end = std::to_chars(begin, begin + buffer.size(), double{value}).ptr;
  append_decimal(out, begin, end);
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

/// Length of the valid UTF-8 sequence at the start of `text`, or 0.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) -> uint32_t { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  const uint32_t first = byte(0);
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool surrogate = first == 0xed && byte(1) >= 0xa0;
  const bool beyond = first == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || beyond ? 0 : length;
}

/// Text as JSON. Bytes that are no UTF-8 (a response may end inside a character) become U+FFFD each.
void append_text(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (first == '"' || first == '\\') {
      out += '\\';
      out += text[0];
    } else if (first == '\n') {
      out += "\\n";
    } else if (first < 0x20) {
      constexpr std::string_view kHex = "0123456789abcdef";
      out += "\\u00";
      out += kHex[first >> 4];
      out += kHex[first & 15];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  out += '"';
}

}  // namespace

Result<std::vector<PromptLine>> read_prompts(const std::string& path, int64_t limit) {
  std::vector<PromptLine> prompts;
  std::map<std::string, int64_t> line_of_id;
  SEER_RETURN_IF_ERROR(for_each_line(path, [&](int64_t line, const std::string& text) -> Result<bool> {
    SEER_ASSIGN_OR_RETURN(PromptLine prompt, parse_prompt(path, line, text));
    if (!prompt.id.empty()) {
      const auto [first, is_new] = line_of_id.emplace(prompt.id, line);
      if (!is_new) return wrong_line(path, line, "id ", prompt.id, " is that of line ", first->second, " already");
    }
    prompts.push_back(std::move(prompt));
    return limit == 0 || std::ssize(prompts) < limit;
  }));
  if (prompts.empty()) return fail(Code::kInvalidArgument, path, " holds no prompts: expected a JSON object per line");
  return prompts;
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

Result<std::vector<std::vector<int64_t>>> read_lengths(const std::string& path, int64_t groups, int64_t group_size) {
  std::vector<std::vector<int64_t>> lengths(groups, std::vector<int64_t>(group_size, 0));
  SEER_RETURN_IF_ERROR(for_each_line(path, [&](int64_t line, const std::string& text) -> Result<bool> {
    SEER_ASSIGN_OR_RETURN(const Json object, parse_object(path, line, text));
    SEER_ASSIGN_OR_RETURN(const LengthLine found, length_of(object, path, line));
    if (found.group >= groups || found.sample >= group_size) return true;
    int64_t& tokens = lengths[found.group][found.sample];
    if (tokens != 0)
      return wrong_line(path, line, "group ", found.group, " sample ", found.sample, " has a line before this one");
    tokens = found.tokens;
    return true;
  }));
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t sample = 0; sample < group_size; ++sample)
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

Result<std::vector<GroupLengths>> read_trace(const std::string& path) {
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
  std::vector<GroupLengths> groups;
  const int64_t group_size = std::max<int64_t>(
      1, std::count_if(lines.begin(), lines.end(), [](const auto& entry) { return entry.first.first == 0; }));
  for (auto next = lines.begin(); next != lines.end();) {
    const int64_t group = std::ssize(groups);
    groups.push_back({.prompt_tokens = prompt_tokens_of[group], .output_tokens = {}});
    std::vector<std::vector<int32_t>> outputs;
    for (int64_t sample = 0; sample < group_size; ++sample, ++next) {
      if (next == lines.end() || next->first != std::pair(group, sample))
        return fail(Code::kInvalidArgument, path, ": no response of group ", group, " sample ", sample, ": expected ",
                    "groups from 0 on, all with samples from 0 on, as many as group 0 has");
      groups.back().output_tokens.push_back(next->second.tokens);
      outputs.push_back(std::move(next->second.output_ids));
    }
    if (std::ranges::none_of(outputs, &std::vector<int32_t>::empty)) groups.back().shared = shared_beginnings(outputs);
  }
  return groups;
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
    append_text(out += ",\"scores\":null,\"score_error\":", error);
  }
  return out += "}\n";
}

std::string response_line(const ResponseLine& response) {
  SEER_CHECK(response.logprobs.size() == response.output_ids.size(), response.request, response.logprobs.size(),
             response.output_ids.size());
  std::string out;
  out.reserve(256 + response.carried.size() + 6 * response.prompt_ids.size() + 18 * response.output_ids.size() +
              (response.text ? 2 * response.text->size() : 0));
  const auto member = [&out](const char* name, auto value) {
    out += name;
    append_integer(out, value);
  };
  member("{\"group\":", response.request.group.value);
  member(",\"sample\":", response.request.sample);
  if (!response.id.empty()) (out += ",\"id\":") += response.id;
  member(",\"seed\":", response.seed);
  append_list(out, ",\"prompt_ids\":", response.prompt_ids, append_integer<int32_t>);
  append_list(out, ",\"output_ids\":", response.output_ids, append_integer<int32_t>);
  append_list(out, ",\"logprobs\":", response.logprobs, append_float);
  if (response.text) append_text(out += ",\"text\":", *response.text);
  ((out += ",\"finish_reason\":\"") += to_string(response.finish_reason)) += '"';
  if (!response.error.empty()) append_text(out += ",\"error\":", response.error);
  member(",\"weight_version\":", response.weight_version.value);
  member(",\"chunks\":", response.chunks);
  member(",\"migrations\":", response.migrations);
  member(",\"preemptions\":", response.preemptions);
  append_seconds(out += ",\"queue_s\":", response.queue_s);
  append_seconds(out += ",\"run_s\":", response.run_s);
  if (!response.carried.empty()) (out += ',') += response.carried;
  return out += "}\n";
}

}  // namespace seer
