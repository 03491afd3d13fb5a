#include "cli/option.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>

#include "cli/suggestion.h"

namespace seer {
namespace {

struct Unit {
  std::string_view name;  // lower case
  int64_t bytes;
};
constexpr std::array<Unit, 14> kUnits{{{"", 1},
                                       {"b", 1},
                                       {"k", int64_t{1} << 10},
                                       {"m", int64_t{1} << 20},
                                       {"g", int64_t{1} << 30},
                                       {"t", int64_t{1} << 40},
                                       {"kib", int64_t{1} << 10},
                                       {"mib", int64_t{1} << 20},
                                       {"gib", int64_t{1} << 30},
                                       {"tib", int64_t{1} << 40},
                                       {"kb", 1'000},
                                       {"mb", 1'000'000},
                                       {"gb", 1'000'000'000},
                                       {"tb", 1'000'000'000'000}}};
constexpr const char* kAutoText = "auto";
constexpr const char* kSizeForms = "a size such as 4096, 64M, 1.5GiB or 2GB";

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;  // Clang before 17 does not find it on its own

/// The whole text as a number, or nothing.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class T>
std::string number_text(T value) {
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

/// A TOML basic string.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr std::string_view kHex = "0123456789abcdef";
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

template <class List, class F>
std::string bracketed(const List& list, F&& entry_text) {
  std::string out = "[";
  for (const auto& entry : list) (out += out.size() > 1 ? ", " : "") += entry_text(entry);
  return out + ']';
}

/// A decimal for TOML, which tells 1.0 from 1.
std::string decimal_text(auto value) {
  std::string text = number_text(value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string without_blanks_around(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

/// The parts between commas, without the blanks around them.
std::vector<std::string> split_commas(const std::vector<std::string>& texts) {
  std::vector<std::string> parts;
  for (const std::string& text : texts) {
    size_t begin = 0;
    for (size_t comma = 0; comma != std::string::npos; begin = comma + 1) {
      comma = text.find(',', begin);
      parts.push_back(without_blanks_around(text.substr(begin, comma == std::string::npos ? comma : comma - begin)));
    }
  }
  return parts;
}

/// Rounds the bounds to the value's type, as the value was rounded: 0.01 as a float is less than 0.01.
template <class Number>
bool in_range(const OptionSpec& spec, Number value) {
  const Range* range = std::get_if<Range>(&spec.check);
  if (!range) return std::isfinite(value);
  const auto low = static_cast<Number>(range->low), high = static_cast<Number>(range->high);
  return (range->low_open ? value > low : value >= low) && (range->high_open ? value < high : value <= high);
}

bool is_known(const OptionSpec& spec, const std::string& text) {
  const OneOf* known = std::get_if<OneOf>(&spec.check);
  return !known || std::find(known->names.begin(), known->names.end(), text) != known->names.end();
}

/// Why a name is refused ("; " and the reason), or which name was meant; empty if neither is known.
std::string about_names(const OptionSpec& spec, const std::vector<std::string>& texts) {
  const OneOf* known = std::get_if<OneOf>(&spec.check);
  if (!known) return "";
  const std::vector<std::string> given = split_commas(texts);
  for (const auto& [name, why] : known->refused)
    if (std::find(given.begin(), given.end(), name) != given.end()) return "; " + why;
  for (const std::string& name : given)
    if (!is_known(spec, name))
      if (const std::string meant = did_you_mean(name, known->names); !meant.empty()) return meant;
  return "";
}

template <class T>
bool set_number(const OptionSpec& spec, T& field, const std::string& text) {
  const auto value = parse_number<T>(text);
  using Number = std::conditional_t<std::is_same_v<T, float>, float, double>;
  if (!value || !in_range(spec, static_cast<Number>(*value))) return false;
  field = *value;
  return true;
}

bool set_switch(bool& on, const std::string& text) {
  on = text == "true";
  return on || text == "false";
}

bool set_text(const OptionSpec& spec, std::string& field, const std::string& text) {
  if (!is_known(spec, text)) return false;
  field = text;
  return true;
}

bool set_size(const OptionSpec& spec, int64_t& field, const std::string& text) {
  const Result<int64_t> bytes = parse_size(text);
  if (!bytes.ok() || !in_range(spec, static_cast<double>(*bytes))) return false;
  field = *bytes;
  return true;
}

bool set_texts(const OptionSpec& spec, std::vector<std::string>& field, std::vector<std::string> texts) {
  field = std::move(texts);
  return std::all_of(field.begin(), field.end(), [&](const std::string& t) { return !t.empty() && is_known(spec, t); });
}

bool set_integers(const OptionSpec& spec, std::vector<int32_t>& field, const std::vector<std::string>& texts) {
  field.clear();
  return std::all_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return set_number(spec, field.emplace_back(), text); });
}

std::string type_text(const OptionSpec& spec) {
  return std::visit(
      Overloaded{[](std::string*) { return "text"; }, [](const NamedField&) { return "text"; }, [](double*) { return "a number"; },
                 [](float*) { return "a number"; }, [](bool*) { return "true or false"; },
                 [](LogprobMode*) { return "true or false"; },
                 [](std::vector<int32_t>*) { return "a list of integers"; },
                 [](SizeField) { return kSizeForms; },
                 [](CommaListField) { return "a list of names"; },
                 [](RepeatedField) { return "a list of texts, none empty"; },
                 [](uint64_t*) { return "an integer from 0 to 18446744073709551615"; }, [](auto*) { return "an integer"; }},
      spec.field);
}

/// The field of an option that may be kAutoNumber.
int64_t& auto_field(const OptionSpec& spec) {
  if (const auto* size = std::get_if<SizeField>(&spec.field)) return *size->bytes;
  return *std::get<int64_t*>(spec.field);
}
bool is_auto(const OptionSpec& spec) { return spec.or_auto && auto_field(spec) == kAutoNumber; }

std::string bound_text(double bound) {
  return std::abs(bound) < 1e15 && bound == std::floor(bound) ? number_text(static_cast<int64_t>(bound))
                                                              : number_text(bound);
}

}  // namespace

Result<int64_t> parse_size(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto number = parse_number<double>(text.substr(0, digits));
  std::string unit{text.substr(digits)};
  if (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found = std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == unit; });
  // Whole numbers keep all their bits; the fraction of a unit is exact to less than one byte.
  const auto whole = parse_number<int64_t>(text.substr(0, digits));
  const double bytes = number && found != kUnits.end() ? *number * static_cast<double>(found->bytes) : -1;
  if (bytes < 0 || bytes > kNoBound)
    return fail(Code::kInvalidArgument, "\"", shown_value(text), "\" is not ", kSizeForms);
  return whole ? *whole * found->bytes : static_cast<int64_t>(bytes);
}

std::string format_size(int64_t bytes) {
  for (const Unit& unit : {Unit{"TiB", int64_t{1} << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}})
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) return cat(bytes / unit.bytes, unit.name);
  return cat(bytes);
}

bool is_switch(const OptionSpec& spec) {
  return std::holds_alternative<bool*>(spec.field) || std::holds_alternative<LogprobMode*>(spec.field);
}
bool is_repeatable(const OptionSpec& spec) {
  return std::holds_alternative<RepeatedField>(spec.field) || std::holds_alternative<std::vector<int32_t>*>(spec.field);
}
bool is_list(const OptionSpec& spec) {
  return is_repeatable(spec) || std::holds_alternative<CommaListField>(spec.field);
}

bool accepts(const OptionSpec& spec, ValueType type) {
  if (spec.or_auto && type == ValueType::kText) return true;
  return std::visit(Overloaded{[&](std::string*) { return type == ValueType::kText; },
                               [&](const NamedField&) { return type == ValueType::kText; },
                               [&](double*) { return type == ValueType::kInteger || type == ValueType::kNumber; },
                               [&](float*) { return type == ValueType::kInteger || type == ValueType::kNumber; },
                               [&](bool*) { return type == ValueType::kBoolean; },
                               [&](LogprobMode*) { return type == ValueType::kBoolean; },
                               [&](SizeField) { return type == ValueType::kText || type == ValueType::kInteger; },
                               [&](CommaListField) { return type == ValueType::kText; },
                               [&](RepeatedField) { return type == ValueType::kText; },
                               [&](uint64_t*) { return type == ValueType::kInteger || type == ValueType::kText; },
                               [&](auto*) { return type == ValueType::kInteger; }},
                    spec.field);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) (text += text.empty() ? "" : ", ") += name;
  return text;
}

std::string expectation(const OptionSpec& spec) {
  if (const OneOf* known = std::get_if<OneOf>(&spec.check)) {
    return cat(is_list(spec) ? "names out of " : "one of ", joined(known->names));
  }
  const std::string type = spec.or_auto ? cat(kAutoText, ", or ", type_text(spec)) : type_text(spec);
  const Range* range = std::get_if<Range>(&spec.check);
  if (!range) return type;
  const std::string low = cat(range->low_open ? "above " : "at least ", bound_text(range->low));
  const std::string high = cat(range->high_open ? "below " : "at most ", bound_text(range->high));
  return cat(type, ", ", range->high == kNoBound ? low : cat(low, " and ", high));
}

Status set_option(const OptionSpec& spec, const std::vector<std::string>& texts) {
  SEER_CHECK(is_list(spec) || texts.size() == 1, spec.name, texts.size());
  if (spec.or_auto && texts[0] == kAutoText) {
    auto_field(spec) = kAutoNumber;
    return {};
  }
  const bool right = std::visit(
      Overloaded{[&](std::string* field) { return set_text(spec, *field, texts[0]); },
                 [&](bool* field) { return set_switch(*field, texts[0]); },
                 [&](LogprobMode* field) {
                   bool raw = false;
                   const bool known = set_switch(raw, texts[0]);
                   *field = raw ? LogprobMode::kRaw : LogprobMode::kProcessed;
                   return known;
                 },
                 [&](std::vector<int32_t>* field) { return set_integers(spec, *field, split_commas(texts)); },
                 [&](SizeField field) { return set_size(spec, *field.bytes, texts[0]); },
                 [&](CommaListField field) { return set_texts(spec, *field.texts, split_commas(texts)); },
                 [&](RepeatedField field) { return set_texts(spec, *field.texts, texts); },
                 [&](const NamedField& field) {
                   if (!is_known(spec, texts[0])) return false;
                   field.set(texts[0]);
                   return true;
                 },
                 [&](auto* field) { return set_number(spec, *field, texts[0]); }},
      spec.field);
  return right ? Status{} : Status{fail(Code::kInvalidArgument, expectation(spec), about_names(spec, texts))};
}

std::string toml_value(const OptionSpec& spec) {
  if (is_auto(spec)) return quoted(kAutoText);
  return std::visit(
      Overloaded{[](const std::string* field) { return quoted(*field); },
                 [](const double* field) { return decimal_text(*field); },
                 [](const float* field) { return decimal_text(*field); },
                 [](const bool* field) -> std::string { return *field ? "true" : "false"; },
                 [](const LogprobMode* field) -> std::string { return *field == LogprobMode::kRaw ? "true" : "false"; },
                 [](const std::vector<int32_t>* field) { return bracketed(*field, number_text<int32_t>); },
                 [](SizeField field) { return quoted(format_size(*field.bytes)); },
                 [](CommaListField field) { return bracketed(*field.texts, quoted); },
                 [](RepeatedField field) { return bracketed(*field.texts, quoted); },
                 [](const NamedField& field) { return quoted(field.name()); },
                 [](const uint64_t* field) {
                   const std::string digits = number_text(*field);
                   return *field > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ? quoted(digits) : digits;
                 },
                 [](const auto* field) { return number_text(*field); }},
      spec.field);
}

std::string default_text(const OptionSpec& spec) {
  if (is_list(spec) || is_switch(spec)) return "";
  const auto* const number = std::get_if<int64_t*>(&spec.field);
  const auto* const range = std::get_if<Range>(&spec.check);
  if (number != nullptr && range != nullptr && **number < range->low && !is_auto(spec)) return "";  // it means: not given
  if (is_auto(spec)) return kAutoText;
  if (const auto* text = std::get_if<std::string*>(&spec.field)) return **text;
  if (const auto* named = std::get_if<NamedField>(&spec.field)) return named->name();
  if (const auto* size = std::get_if<SizeField>(&spec.field)) return format_size(*size->bytes);
  return toml_value(spec);
}

}  // namespace seer
