#include "cli/json_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <variant>

#include "cli/json_lines.h"

namespace seer {
namespace {

ValueType type_of(const Json& value) {
  if (value.is_string()) return ValueType::kText;
  if (value.is_number_integer()) return ValueType::kInteger;
  if (value.is_number()) return ValueType::kNumber;
  return value.is_boolean() ? ValueType::kBoolean : ValueType::kOther;
}

/// Appends a number that JSON readers take for a decimal. As an integer "-0" would lose its sign, so it becomes "-0.0".
void append_decimal(std::string& out, const char* begin, const char* end) {
  out.append(begin, end);
  if (std::none_of(begin, end, [](char c) { return c == '.' || c == 'e'; })) out += ".0";
}

}  // namespace

Status check_shape(std::string_view json, const std::string& found) {
  constexpr size_t kDepthMax = 500, kNamesMax = 1000;
  struct Open {
    bool is_object;
    size_t commas = 0;
  };
  std::vector<Open> open;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') {
      for (++i; i < json.size() && json[i] != '"'; ++i) i += json[i] == '\\' ? 1 : 0;
    } else if (c == '{' || c == '[') {
      open.push_back({c == '{'});
      if (open.size() > kDepthMax)
        return fail(Code::kInvalidArgument, found, "lists and objects are nested deeper than ", kDepthMax);
    } else if (open.empty()) {
      continue;
    } else if (c == '}' || c == ']') {
      open.pop_back();
    } else if (c == ',' && ++open.back().commas >= kNamesMax && open.back().is_object) {
      return fail(Code::kInvalidArgument, found, "an object has more than ", kNamesMax, " names");
    }
  }
  return {};
}

std::string shown_value(const Json& value) {
  if (value.is_structured()) return value.type_name();
  if (!value.is_number_float()) return shown(value.dump());
  const auto number = value.get<double>();
  return std::isfinite(number) ? nlohmann::json(number).dump() : "beyond all bounds";
}

Result<std::vector<int32_t>> token_ids(const Json& value, const char* name, const std::string& found) {
  if (!value.is_array())
    return fail(Code::kInvalidArgument, found, name, " is ", value.type_name(), ": expected a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& entry : value) {
    const bool is_id = entry.is_number_unsigned() && entry.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
    if (!is_id)
      return fail(Code::kInvalidArgument, found, name, "[", ids.size(), "] is ", shown_value(entry),
                  ": expected a token id from 0 to ", std::numeric_limits<int32_t>::max());
    ids.push_back(entry.get<int32_t>());
  }
  return ids;
}

Result<Json> field_value(std::string_view text, const std::string& found) {
  SEER_RETURN_IF_ERROR(check_shape(text, found));
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return fail(Code::kInvalidArgument, found, shown(text), " is not JSON");
  return value;
}

/// The library cannot write a long double: it prints what is on the stack.
std::string written_value(const Json& value) {
  if (value.is_array()) {
    std::string out;
    for (const Json& entry : value) out += cat(out.empty() ? "[" : ",", written_value(entry));
    return out.empty() ? "[]" : out + "]";
  }
  if (value.is_object()) {
    std::string out;
    for (const auto& [name, member] : value.items()) out += cat(out.empty() ? "{" : ",", json_string(name), ":", written_value(member));
    return out.empty() ? "{}" : out + "}";
  }
  if (!value.is_number_float()) return value.dump();
  std::array<char, 64> buffer;
  std::string out;
  append_decimal(out, buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value.get<long double>()).ptr);
  return out;
}

Status set_json_option(const OptionSpec& option, const std::string& text, const std::string& found) {
  SEER_ASSIGN_OR_RETURN(const Json value, field_value(text, found));
  const bool is_one_text = std::holds_alternative<RepeatedField>(option.field) && value.is_string();
  const auto wrong = [&] {
    return fail(Code::kInvalidArgument, found, option.name, " is ", shown(text), ": expected ",
                std::holds_alternative<RepeatedField>(option.field) ? "a text or " : "", expectation(option));
  };
  if (value.is_array() != is_list(option) && !is_one_text) return wrong();
  std::vector<std::string> texts;
  const auto add = [&](const Json& entry, const std::string& written) {
    texts.push_back(entry.is_string() ? entry.get<std::string>() : written);
    return accepts(option, type_of(entry));
  };
  if (!value.is_array() && !add(value, text)) return wrong();
  if (value.is_array())
    for (const Json& entry : value)
      if (!add(entry, entry.is_number_integer() ? entry.dump() : "")) return wrong();
  return set_option(option, texts).ok() ? Status{} : Status{wrong()};
}

void append_float(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  std::array<char, 40> buffer;
  char* const begin = buffer.data();
  const char* end = std::to_chars(begin, begin + buffer.size(), value).ptr;
  // JSON readers read the text as a double and round that to a float. If the shortest text of the float is so near the middle
  // of two floats that this gives the other one, use the double's text.
  double read = 0;
  std::from_chars(begin, end, read);
  if (static_cast<float>(read) != value) end = std::to_chars(begin, begin + buffer.size(), double{value}).ptr;
  append_decimal(out, begin, end);
}

}  // namespace seer
