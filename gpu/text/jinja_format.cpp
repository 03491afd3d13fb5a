// Text made from text: replace(), HTML escapes, and "%s and %d" % values.
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>

#include "gpu/text/jinja_run.h"
#include "gpu/text/utf8.h"

namespace seer {

Status case_known(std::string_view text) {
  if (is_ascii(text) || python_knows_unicode()) return {};
  return fail(Code::kUnavailable,
              "this template asks for upper or lower case beyond ASCII, but seer was built without utf8proc "
              "(apt-get install libutf8proc-dev, then configure again)");
}

Result<std::string> jinja_replaced(JinjaRun& run, std::string_view text, std::string_view from, std::string_view to,
                                   int64_t count) {
  SEER_RETURN_IF_ERROR(run.spend(text.size() / 16));
  std::string out;
  const auto enough = [&] { return count == 0 || out.size() > run.bytes_max(); };
  if (from.empty()) {  // before every character, and at the end
    for (const std::string_view one : split_chars(text)) {
      if (!enough()) {
        out += to;
        --count;
      }
      out += one;
    }
    if (!enough()) out += to;
    return out;
  }
  while (!enough()) {
    const size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    (out += text.substr(0, at)) += to;
    text.remove_prefix(at + from.size());
    --count;
  }
  out += text;
  return out;
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

namespace {

/// One conversion of a percent format: %[(name)][flags][width][.precision]type.
struct Conversion {
  std::string flags;
  size_t width = 0;
  std::optional<size_t> precision;
  char type = 's';
};

Result<std::string> converted_number(const Conversion& conversion, const JinjaValue& value) {
  const auto number = value.number();
  if (!number)
    return fail(Code::kInvalidArgument, "%", conversion.type, " formats a value of type ", value.type_name(),
                "; expected a number");
  std::string spec = cat('%', conversion.flags, conversion.width > 0 ? std::to_string(conversion.width) : "");
  if (conversion.precision) spec += cat('.', *conversion.precision);
  std::array<char, 2048> text;
  int size = 0;
  if (std::string_view("diuxXo").find(conversion.type) != std::string_view::npos) {
    if (value.is_float() && std::string_view("xXo").find(conversion.type) != std::string_view::npos)
      return fail(Code::kInvalidArgument, "%", conversion.type, " formats a float; expected an integer");
    if (!(*number > -9e18 && *number < 9e18))
      return fail(Code::kInvalidArgument, "%", conversion.type, " formats a number beyond 64 bits");
    const auto whole = static_cast<long long>(value.integer() ? static_cast<long long>(*value.integer()) : *number);
    if (whole < 0 && std::string_view("xXo").find(conversion.type) != std::string_view::npos)
      return fail(Code::kInvalidArgument, "%", conversion.type, " of a negative number is not supported");
    spec += cat("ll", conversion.type);
    size = std::snprintf(text.data(), text.size(), spec.c_str(), whole);
  } else {
    spec += conversion.type;
    size = std::snprintf(text.data(), text.size(), spec.c_str(), *number);
  }
  if (size < 0 || static_cast<size_t>(size) >= text.size())
    return fail(Code::kInvalidArgument, "%", conversion.type, " makes more than ", text.size(), " bytes");
  return std::string(text.data(), static_cast<size_t>(size));
}

Result<std::string> converted_text(JinjaRun& run, const Conversion& conversion, const JinjaValue& value) {
  SEER_ASSIGN_OR_RETURN(std::string text, conversion.type == 's' ? run.str(value) : jinja_repr(value, run.bytes_max()));
  if (conversion.precision) text.resize(byte_of_char(text, *conversion.precision));
  const size_t chars = count_chars(text);
  if (conversion.width <= chars) return text;
  const std::string space(conversion.width - chars, ' ');
  return conversion.flags.find('-') != std::string::npos ? text + space : space + text;
}

}  // namespace

Result<std::string> percent_format(JinjaRun& run, const std::string& format, const JinjaValue& values) {
  constexpr size_t kWidthMax = 1000;
  std::string out;
  size_t used = 0;
  const JinjaItems tuple = values.is_tuple() ? values.as_list() : nullptr;
  bool by_name = false;
  const auto bounded_number = [&](size_t& i) {
    size_t number = 0;
    for (; i < format.size() && std::isdigit(static_cast<unsigned char>(format[i])); ++i)
      number = std::min<size_t>(number * 10 + static_cast<size_t>(format[i] - '0'), kWidthMax + 1);
    return number;
  };
  for (size_t i = 0; i < format.size() && out.size() <= run.bytes_max(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    ++i;
    const JinjaValue* value = nullptr;
    if (i < format.size() && format[i] == '(') {
      const size_t end = format.find(')', i);
      if (end == std::string::npos || !values.is_dict())
        return fail(Code::kInvalidArgument, "%(name) needs a name, ')' and a dict; it was given a ",
                    values.type_name());
      const std::string name = format.substr(i + 1, end - i - 1);
      value = values.as_dict().find(name);
      if (value == nullptr) return fail(Code::kInvalidArgument, "%(", name, "): the dict has no such key");
      by_name = true;
      i = end + 1;
    }
    Conversion conversion;
    while (i < format.size() && std::string_view("-+ 0#").find(format[i]) != std::string_view::npos)
      conversion.flags += format[i++];
    conversion.width = bounded_number(i);
    if (i < format.size() && format[i] == '.') conversion.precision = bounded_number(++i);
    if (conversion.width > kWidthMax || conversion.precision.value_or(0) > kWidthMax)
      return fail(Code::kInvalidArgument, "a width in a % format is larger than ", kWidthMax);
    if (i >= format.size())
      return fail(Code::kInvalidArgument, "a % format ends after '%'; expected a conversion such as %s");
    conversion.type = format[i];
    if (conversion.type == '%') {
      out += '%';
      continue;
    }
    if (std::string_view("srdiuxXofFeEgG").find(conversion.type) == std::string_view::npos)
      return fail(Code::kInvalidArgument, "the conversion %", conversion.type, " is not supported");
    if (value == nullptr) {
      const size_t there = tuple != nullptr ? tuple->items.size() : 1;
      if (used >= there)
        return fail(Code::kInvalidArgument, "a % format has more conversions than the ", there, " values given");
      value = tuple != nullptr ? &tuple->items[used] : &values;
      ++used;
    }
    const bool is_text = conversion.type == 's' || conversion.type == 'r';
    SEER_ASSIGN_OR_RETURN(const std::string part,
                          is_text ? converted_text(run, conversion, *value) : converted_number(conversion, *value));
    out += part;
  }
  const size_t there = tuple != nullptr ? tuple->items.size() : 1;
  if (!by_name && used < there &&
      !(tuple == nullptr &&
        (values.is_dict() || values.is_list() || values.is_undefined() || values.object_as<JinjaRange>() != nullptr)))
    return fail(Code::kInvalidArgument, "a % format uses ", used, " of the ", there, " values given");
  return out;
}

}  // namespace seer
