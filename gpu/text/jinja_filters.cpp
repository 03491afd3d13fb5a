// Jinja's filters, with tojson as Hugging Face overrides it: json.dumps with ensure_ascii=False.
#include <algorithm>
#include <cmath>

#include "gpu/text/jinja_run.h"
#include "gpu/text/utf8.h"

namespace seer {
namespace {

using Values = std::vector<const JinjaValue*>;

Error wrong_argument(std::string_view filter, std::string_view parameter, const JinjaValue& met,
                     std::string_view expected) {
  return fail(Code::kInvalidArgument, "the filter ", filter, ": ", parameter, " is of type ", met.type_name(),
              "; expected ", expected);
}

bool given(const JinjaValue* value) { return value != nullptr && !value->is_none(); }

/// The value as text, and whether it is marked safe: what most text filters begin with.
struct SoftText {
  std::string bytes;
  bool safe = false;
};
Result<SoftText> soft_text(JinjaRun& run, const JinjaValue& value) {
  SEER_ASSIGN_OR_RETURN(std::string bytes, run.str(value));
  return SoftText{std::move(bytes), value.is_text() && value.as_text().safe};
}

// ---- attributes

/// "a.b.0": the parts that make_attrgetter of Jinja follows.
std::vector<JinjaValue> attribute_path(const JinjaValue& attribute) {
  if (!attribute.is_text()) return {attribute};
  std::vector<JinjaValue> path;
  for (const std::string_view part : python_split_on(attribute.bytes(), ".")) {
    const bool index =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    const auto number = index ? python_int(part) : std::nullopt;
    path.push_back(number ? JinjaValue::of(*number) : JinjaValue::text(std::string(part)));
  }
  return path;
}

Result<JinjaValue> follow(JinjaRun& run, const JinjaValue& value, const std::vector<JinjaValue>& path,
                          const JinjaValue* otherwise) {
  JinjaValue at = value;
  for (const JinjaValue& part : path) {
    SEER_ASSIGN_OR_RETURN(at, run.item(at, part));
    if (otherwise != nullptr && at.is_undefined()) at = *otherwise;
  }
  return at;
}

/// The key for sorting, grouping and comparing: an attribute, in lower case unless case matters.
Result<JinjaValue> sort_key(JinjaRun& run, const JinjaValue& value, const JinjaValue* attribute,
                            const JinjaValue* case_sensitive) {
  JinjaValue key = value;
  if (given(attribute)) {
    SEER_ASSIGN_OR_RETURN(key, follow(run, value, attribute_path(*attribute), nullptr));
  }
  if (!key.is_text() || (case_sensitive != nullptr && jinja_true(*case_sensitive))) return key;
  SEER_RETURN_IF_ERROR(case_known(key.bytes()));
  return run.made_text(python_lower(key.bytes()));
}

// ---- filters: text

template <std::string (*kChange)(std::string_view)>
Result<JinjaValue> change(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("the filter", arguments, {}));
  SEER_ASSIGN_OR_RETURN(const SoftText text, soft_text(run, value));
  SEER_RETURN_IF_ERROR(case_known(text.bytes));
  return run.made_text(kChange(text.bytes), text.safe);
}

/// Jinja's own title: words begin after white space, '-', '(', '{', '[' or '<'.
std::string jinja_title(std::string_view text) {
  std::string out;
  const auto ends_word = [](std::string_view one) {
    return is_python_space(utf8_at(one, 0).value) || std::string_view("-({[<").find(one[0]) != std::string_view::npos;
  };
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && !ends_word(text.substr(end))) end += utf8_at(text, end).bytes;
    if (end > at) {
      const size_t first = utf8_at(text, at).bytes;
      out += python_upper(text.substr(at, first));
      out += python_lower(text.substr(at + first, end - at - first));
    }
    if (end < text.size()) out += text.substr(end, utf8_at(text, end).bytes);
    at = end < text.size() ? end + utf8_at(text, end).bytes : end;
  }
  return out;
}

Result<JinjaValue> trim(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("trim", arguments, {"chars"}));
  SEER_ASSIGN_OR_RETURN(const SoftText text, soft_text(run, value));
  std::optional<std::string_view> chars;
  if (given(args[0])) {
    if (!args[0]->is_text()) return wrong_argument("trim", "chars", *args[0], "a text");
    chars = args[0]->bytes();
  }
  return run.made_text(std::string(python_strip(text.bytes, {}, chars)), text.safe);
}

Result<JinjaValue> string(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("string", arguments, {}));
  if (value.is_text()) return value;
  SEER_ASSIGN_OR_RETURN(std::string text, run.str(value));
  return run.made_text(std::move(text));
}

Result<JinjaValue> safe(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("safe", arguments, {}));
  SEER_ASSIGN_OR_RETURN(std::string text, run.str(value));
  return run.made_text(std::move(text), /*safe=*/true);
}

template <bool kForce>
Result<JinjaValue> escape(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("escape", arguments, {}));
  SEER_ASSIGN_OR_RETURN(const SoftText text, soft_text(run, value));
  if (text.safe && !kForce) return value;
  return run.made_text(html_escaped(text.bytes), /*safe=*/true);
}

Result<JinjaValue> replace(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("replace", arguments, {"old", "new", "count"}, 2));
  SEER_ASSIGN_OR_RETURN(const std::string text, run.str(value));
  SEER_ASSIGN_OR_RETURN(const std::string from, run.str(*args[0]));
  SEER_ASSIGN_OR_RETURN(const std::string to, run.str(*args[1]));
  std::optional<Int128> count = -1;
  if (given(args[2])) count = args[2]->integer();
  if (!count) return wrong_argument("replace", "count", *args[2], "an integer");
  SEER_ASSIGN_OR_RETURN(
      std::string replaced,
      jinja_replaced(run, text, from, to, static_cast<int64_t>(std::clamp<Int128>(*count, -1, INT64_MAX))));
  return run.made_text(std::move(replaced));
}

Result<JinjaValue> indent(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("indent", arguments, {"width", "first", "blank"}));
  if (!value.is_text()) return wrong_argument("indent", "the value", value, "a text");
  std::string space(4, ' ');
  if (args[0] != nullptr) {
    const auto width = args[0]->integer();
    if (!width && !args[0]->is_text())
      return wrong_argument("indent", "width", *args[0], "a number of spaces or a text");
    if (width && *width > 1000)
      return fail(Code::kInvalidArgument, "the filter indent: width is ", to_text(*width), "; expected at most 1000");
    space = width ? std::string(static_cast<size_t>(std::max<Int128>(*width, 0)), ' ') : args[0]->bytes();
  }
  const bool blank = args[2] != nullptr && jinja_true(*args[2]);
  const std::string text = value.bytes() + '\n';
  SEER_RETURN_IF_ERROR(run.spend(text.size() / 4));
  std::string out = args[1] != nullptr && jinja_true(*args[1]) ? space : "";
  bool first = true;
  for (const std::string_view line : python_splitlines(text)) {
    if (!first) out += '\n';
    if (!first && (blank || !line.empty())) out += space;
    first = false;
    out += line;
    if (out.size() > run.bytes_max()) break;
  }
  return run.made_text(std::move(out), value.as_text().safe);
}

Result<JinjaValue> format(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const std::string text, run.str(value));
  if (!arguments.positional.empty() && !arguments.named.empty())
    return fail(Code::kInvalidArgument,
                "the filter format takes either positional or named arguments, but was given both");
  JinjaDict named;
  for (const auto& [key, of_key] : arguments.named) named.set(JinjaValue::text(key), of_key);
  SEER_ASSIGN_OR_RETURN(const JinjaValue values, arguments.named.empty() ? run.made_tuple(arguments.positional)
                                                                         : run.made_dict(std::move(named)));
  SEER_ASSIGN_OR_RETURN(std::string formatted, percent_format(run, text, values));
  return run.made_text(std::move(formatted));
}

Result<JinjaValue> wordcount(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("wordcount", arguments, {}));
  SEER_ASSIGN_OR_RETURN(const std::string text, run.str(value));
  size_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size(); at += utf8_at(text, at).bytes) {
    const auto of = python_class(utf8_at(text, at).value);
    if (!of)
      return fail(Code::kUnavailable,
                  "the filter wordcount beyond ASCII needs utf8proc, but this build was made without it");
    const bool word = of->letter || of->numeric || text[at] == '_';
    words += word && !inside;
    inside = word;
  }
  return JinjaValue::count(words);
}

Result<JinjaValue> tojson(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args,
                        bind_arguments("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = args[0] != nullptr && jinja_true(*args[0]);
  style.sort_keys = args[3] != nullptr && jinja_true(*args[3]);
  if (given(args[1])) {
    const auto width = args[1]->integer();
    if (!width && !args[1]->is_text())
      return wrong_argument("tojson", "indent", *args[1], "a number of spaces or a text");
    if (width && *width > 1000)
      return fail(Code::kInvalidArgument, "the filter tojson: indent is ", to_text(*width), "; expected at most 1000");
    style.indent = width ? std::string(static_cast<size_t>(std::max<Int128>(*width, 0)), ' ') : args[1]->bytes();
    style.item_separator = ",";
  }
  if (given(args[2])) {
    SEER_ASSIGN_OR_RETURN(const JinjaItems parts, run.items(*args[2]));
    if (parts->items.size() != 2 || !parts->items[0].is_text() || !parts->items[1].is_text())
      return wrong_argument("tojson", "separators", *args[2], "two texts");
    style.item_separator = parts->items[0].bytes();
    style.key_separator = parts->items[1].bytes();
  }
  SEER_RETURN_IF_ERROR(run.spend(1));
  SEER_ASSIGN_OR_RETURN(std::string json, jinja_json(value, style, run.bytes_max()));
  return run.made_text(std::move(json));
}

Result<JinjaValue> urlencode(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("urlencode", arguments, {}));
  if (value.is_dict() || value.as_list() != nullptr) return wrong_argument("urlencode", "the value", value, "a text");
  SEER_ASSIGN_OR_RETURN(const std::string text, run.str(value));
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x80 && std::isalnum(byte)) || std::string_view("_.-~/").find(c) != std::string_view::npos) {
      out += c;
    } else {
      (out += '%') += {"0123456789ABCDEF"[byte >> 4], "0123456789ABCDEF"[byte & 15]};
    }
  }
  return run.made_text(std::move(out));
}

// ---- filters: numbers

Result<JinjaValue> absolute(JinjaRun&, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("abs", arguments, {}));
  if (value.is_float()) return JinjaValue::of(std::fabs(value.as_float()));
  const auto whole = value.integer();
  if (!whole) return wrong_argument("abs", "the value", value, "a number");
  return JinjaValue::of(*whole < 0 ? -*whole : *whole);
}

std::optional<Int128> whole_of(double value) {
  if (!(std::fabs(value) < 1e38)) return std::nullopt;
  return static_cast<Int128>(value);
}

Result<JinjaValue> to_int(JinjaRun&, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("int", arguments, {"default", "base"}));
  const JinjaValue otherwise = args[0] != nullptr ? *args[0] : JinjaValue::of(Int128{0});
  if (value.is_undefined()) return undefined_error(value, "it cannot become an integer");
  const auto base = args[1] != nullptr ? args[1]->integer() : std::optional<Int128>(10);
  if (!base || *base < 0 || *base == 1 || *base > 36)
    return wrong_argument("int", "base", *args[1], "a number from 2 to 36, or 0");
  if (value.integer()) return JinjaValue::of(*value.integer());
  std::optional<Int128> whole;
  if (value.is_text()) {
    whole = python_int(value.bytes(), static_cast<int>(*base));
    if (!whole) {
      if (const auto number = python_float(value.bytes())) whole = whole_of(*number);
    }
  } else if (value.is_float()) {
    if (std::isinf(value.as_float())) return fail(Code::kInvalidArgument, "the filter int: infinity is not an integer");
    whole = whole_of(value.as_float());
  }
  return whole ? JinjaValue::of(*whole) : otherwise;
}

Result<JinjaValue> to_float(JinjaRun&, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("float", arguments, {"default"}));
  if (value.is_undefined()) return undefined_error(value, "it cannot become a float");
  const auto number = value.is_text() ? python_float(value.bytes()) : value.number();
  if (number) return JinjaValue::of(*number);
  return args[0] != nullptr ? *args[0] : JinjaValue::of(0.0);
}

/// Python's round(value, places): the exact decimal value is rounded, halves to even.
double rounded(double value, int places) {
  if (!std::isfinite(value) || places > 300) return value;
  if (places < 0) {
    const double scale = std::pow(10.0, -places);
    return std::nearbyint(value / scale) * scale;
  }
  std::string text(400 + static_cast<size_t>(places), '\0');
  const int size = std::snprintf(text.data(), text.size(), "%.*f", places, value);
  text.resize(static_cast<size_t>(size));
  return python_float(text).value_or(value);
}

Result<JinjaValue> round_filter(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("round", arguments, {"precision", "method"}));
  const auto number = value.number();
  if (!number) return wrong_argument("round", "the value", value, "a number");
  const auto precision = args[0] != nullptr ? args[0]->integer() : std::optional<Int128>(0);
  if (!precision || *precision < -300 || *precision > 1000)
    return fail(Code::kInvalidArgument, "the filter round: precision is not an integer from -300 to 1000");
  const int places = static_cast<int>(*precision);
  const std::string method = args[1] == nullptr ? "common" : args[1]->is_text() ? args[1]->bytes() : "";
  if (method == "common") {
    if (value.integer() && places >= 0) return JinjaValue::of(*value.integer());
    if (value.integer())
      return fail(Code::kInvalidArgument, "the filter round: a negative precision of an integer is not supported");
    return JinjaValue::of(rounded(*number, places));
  }
  if (method != "ceil" && method != "floor")
    return fail(Code::kInvalidArgument, "the filter round: method is not common, ceil or floor");
  SEER_ASSIGN_OR_RETURN(const JinjaValue scale,
                        run.binary("**", JinjaValue::of(Int128{10}), JinjaValue::of(*precision)));
  SEER_ASSIGN_OR_RETURN(const JinjaValue scaled, run.binary("*", value, scale));
  const auto whole = scaled.integer()
                         ? scaled.integer()
                         : whole_of(method == "ceil" ? std::ceil(scaled.as_float()) : std::floor(scaled.as_float()));
  if (!whole) return fail(Code::kInvalidArgument, "the filter round: the value is too large");
  return run.binary("/", JinjaValue::of(*whole), scale);
}

// ---- filters: items

Result<JinjaValue> length(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("length", arguments, {}));
  SEER_ASSIGN_OR_RETURN(const size_t size, run.length(value));
  return JinjaValue::count(size);
}

Result<JinjaValue> default_filter(JinjaRun&, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("default", arguments, {"default_value", "boolean"}));
  const bool missing = value.is_undefined() || (args[1] != nullptr && jinja_true(*args[1]) && !jinja_true(value));
  if (!missing) return value;
  return args[0] != nullptr ? *args[0] : JinjaValue::text("");
}

Result<JinjaValue> first(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("first", arguments, {}));
  if (auto* iterator = value.object_as<JinjaIterator>();
      iterator != nullptr && iterator->next < iterator->items->items.size())
    return iterator->items->items[iterator->next++];
  if (value.is_text() && !value.bytes().empty()) return run.item(value, JinjaValue::of(Int128{0}));
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(value));
  return items->items.empty() ? JinjaValue() : items->items.front();
}

Result<JinjaValue> last(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("last", arguments, {}));
  if (value.object_as<JinjaIterator>() != nullptr)
    return wrong_argument("last", "the value", value, "a list; put |list before it");
  if (value.is_text() && !value.bytes().empty()) return run.item(value, JinjaValue::of(Int128{-1}));
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(value));
  return items->items.empty() ? JinjaValue() : items->items.back();
}

Result<JinjaValue> list(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("list", arguments, {}));
  if (value.is_list()) return value;
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(value));
  return run.made_list(items->items);
}

Result<JinjaValue> items_filter(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("items", arguments, {}));
  if (!value.is_dict() && !value.is_undefined())
    return run.made_iterator({}, "generator", wrong_argument("items", "the value", value, "a dict"));
  std::vector<JinjaValue> pairs;
  if (value.is_dict()) {
    for (const auto& [key, of_key] : value.as_dict().entries()) {
      SEER_ASSIGN_OR_RETURN(JinjaValue pair, run.made_tuple({key, of_key}));
      pairs.push_back(std::move(pair));
    }
  }
  return run.made_iterator(std::move(pairs));
}

Result<JinjaValue> join(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("join", arguments, {"d", "attribute"}));
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(value));
  std::string separator;
  if (args[0] != nullptr) {
    SEER_ASSIGN_OR_RETURN(separator, run.str(*args[0]));
  }
  std::string out;
  bool is_first = true;
  for (const JinjaValue& item : items->items) {
    if (!is_first) out += separator;
    is_first = false;
    JinjaValue part = item;
    if (given(args[1])) {
      SEER_ASSIGN_OR_RETURN(part, follow(run, item, attribute_path(*args[1]), nullptr));
    }
    SEER_ASSIGN_OR_RETURN(const std::string text, run.str(part));
    out += text;
    if (out.size() > run.bytes_max()) break;
  }
  return run.made_text(std::move(out));
}

Result<JinjaValue> reverse(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("reverse", arguments, {}));
  if (value.is_text()) {
    std::string out;
    SEER_RETURN_IF_ERROR(run.spend(value.as_text().chars / 4));
    const auto chars = split_chars(value.bytes());
    for (auto at = chars.rbegin(); at != chars.rend(); ++at) out += *at;
    return run.made_text(std::move(out), value.as_text().safe);
  }
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(value));
  std::vector<JinjaValue> reversed(items->items.rbegin(), items->items.rend());
  // A value that Python's reversed() takes becomes an iterator; an iterator becomes a list.
  if (value.object_as<JinjaIterator>() != nullptr) return run.made_list(std::move(reversed));
  return run.made_iterator(std::move(reversed), value.is_list() ? "list_reverseiterator" : "reversed");
}

/// Sorts by keys that are made once per item. An error of a comparison ends the sorting.
Result<std::vector<JinjaValue>> sorted(JinjaRun& run, const std::vector<JinjaValue>& items,
                                       const std::vector<JinjaValue>& keys, bool descending) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::optional<Error> problem;
  const auto before = [&](size_t a, size_t b) {
    if (problem) return false;
    const auto less = descending ? run.less(keys[b], keys[a]) : run.less(keys[a], keys[b]);
    if (!less.ok()) problem = less.error();
    return less.ok() && *less;
  };
  std::stable_sort(order.begin(), order.end(), before);
  if (problem) return *problem;
  std::vector<JinjaValue> out;
  out.reserve(items.size());
  for (const size_t index : order) out.push_back(items[index]);
  return out;
}

Result<JinjaValue> sort(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args,
                        bind_arguments("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(value));
  std::vector<JinjaValue> attributes;
  if (given(args[2]) && args[2]->is_text()) {
    for (const std::string_view part : python_split_on(args[2]->bytes(), ","))
      attributes.push_back(JinjaValue::text(std::string(part)));
  } else {
    attributes.push_back(given(args[2]) ? *args[2] : JinjaValue::none());
  }
  std::vector<JinjaValue> keys;
  for (const JinjaValue& item : items->items) {
    std::vector<JinjaValue> parts;
    for (const JinjaValue& attribute : attributes) {
      SEER_ASSIGN_OR_RETURN(JinjaValue part, sort_key(run, item, &attribute, args[1]));
      parts.push_back(std::move(part));
    }
    SEER_ASSIGN_OR_RETURN(JinjaValue key, run.made_list(std::move(parts)));
    keys.push_back(std::move(key));
  }
  SEER_ASSIGN_OR_RETURN(std::vector<JinjaValue> out,
                        sorted(run, items->items, keys, args[0] != nullptr && jinja_true(*args[0])));
  return run.made_list(std::move(out));
}

Result<JinjaValue> dictsort(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  if (!value.is_dict()) return wrong_argument("dictsort", "the value", value, "a dict");
  const std::string by = args[1] == nullptr ? "key" : args[1]->is_text() ? args[1]->bytes() : "";
  if (by != "key" && by != "value")
    return fail(Code::kInvalidArgument, "the filter dictsort: by is not 'key' or 'value'");
  std::vector<JinjaValue> pairs, keys;
  for (const auto& [key, of_key] : value.as_dict().entries()) {
    SEER_ASSIGN_OR_RETURN(JinjaValue pair, run.made_tuple({key, of_key}));
    SEER_ASSIGN_OR_RETURN(JinjaValue sort_by, sort_key(run, by == "key" ? key : of_key, nullptr, args[0]));
    pairs.push_back(std::move(pair));
    keys.push_back(std::move(sort_by));
  }
  SEER_ASSIGN_OR_RETURN(std::vector<JinjaValue> out,
                        sorted(run, pairs, keys, args[2] != nullptr && jinja_true(*args[2])));
  return run.made_list(std::move(out));
}

template <bool kLargest>
Result<JinjaValue> extreme(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args,
                        bind_arguments(kLargest ? "max" : "min", arguments, {"case_sensitive", "attribute"}));
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(value));
  if (items->items.empty()) return JinjaValue();
  JinjaValue best = items->items[0];
  SEER_ASSIGN_OR_RETURN(JinjaValue best_key, sort_key(run, best, args[1], args[0]));
  for (size_t i = 1; i < items->items.size(); ++i) {
    SEER_ASSIGN_OR_RETURN(JinjaValue key, sort_key(run, items->items[i], args[1], args[0]));
    SEER_ASSIGN_OR_RETURN(const bool better, kLargest ? run.less(best_key, key) : run.less(key, best_key));
    if (!better) continue;
    best = items->items[i];
    best_key = std::move(key);
  }
  return best;
}

Result<JinjaValue> sum(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("sum", arguments, {"attribute", "start"}));
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(value));
  JinjaValue total = args[1] != nullptr ? *args[1] : JinjaValue::of(Int128{0});
  if (total.is_text()) return wrong_argument("sum", "start", total, "a number or a list");
  for (const JinjaValue& item : items->items) {
    JinjaValue part = item;
    if (given(args[0])) {
      SEER_ASSIGN_OR_RETURN(part, follow(run, item, attribute_path(*args[0]), nullptr));
    }
    SEER_ASSIGN_OR_RETURN(total, run.binary("+", total, part));
  }
  return total;
}

Result<JinjaValue> attr(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("attr", arguments, {"name"}, 1));
  if (!args[0]->is_text()) return wrong_argument("attr", "name", *args[0], "a text");
  if (value.is_dict() && find_jinja_method(value, args[0]->bytes()) == nullptr) return JinjaValue();  // never an item
  SEER_ASSIGN_OR_RETURN(JinjaValue found, run.attribute(value, args[0]->bytes()));
  return found.is_undefined() ? JinjaValue() : found;
}

// ---- filters that apply other filters and tests

/// The arguments after the first `count` positional ones.
JinjaArguments arguments_after(const JinjaArguments& arguments, size_t count) {
  JinjaArguments rest = arguments;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<ptrdiff_t>(count));
  return rest;
}

/// Makes the items of an iterator one by one. The first failure ends them; a reader gets that error after the last item.
template <class MakeItems>
Result<JinjaValue> lazily(JinjaRun& run, const JinjaValue& value, MakeItems make) {
  const auto items = run.items(value);
  if (!items.ok()) return run.made_iterator({}, "generator", items.error());
  std::vector<JinjaValue> out;
  for (const JinjaValue& item : (*items)->items) {
    SEER_RETURN_IF_ERROR(run.spend(1));
    if (const Status made = make(item, out); !made.ok())
      return run.made_iterator(std::move(out), "generator", made.error());
  }
  return run.made_iterator(std::move(out));
}

Result<JinjaValue> unique(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("unique", arguments, {"case_sensitive", "attribute"}));
  JinjaDict seen;
  return lazily(run, value, [&](const JinjaValue& item, std::vector<JinjaValue>& out) -> Status {
    SEER_ASSIGN_OR_RETURN(const JinjaValue key, sort_key(run, item, args[1], args[0]));
    SEER_RETURN_IF_ERROR(run.usable_key(key, seen.size()));
    if (seen.find(key) != nullptr) return {};
    seen.set(key, JinjaValue::none());
    out.push_back(item);
    return {};
  });
}

Result<JinjaValue> batch(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values args, bind_arguments("batch", arguments, {"linecount", "fill_with"}, 1));
  const auto size = args[0]->integer();
  if (!size || *size < 1 || *size > 100'000)
    return fail(Code::kInvalidArgument, "the filter batch: linecount is not an integer from 1 to 100000");
  const auto items = run.items(value);
  if (!items.ok()) return run.made_iterator({}, "generator", items.error());
  std::vector<JinjaValue> rows, row;
  const auto end_row = [&]() -> Status {
    SEER_ASSIGN_OR_RETURN(JinjaValue made, run.made_list(std::move(row)));
    rows.push_back(std::move(made));
    row.clear();
    return {};
  };
  for (const JinjaValue& item : (*items)->items) {
    if (row.size() == static_cast<size_t>(*size)) SEER_RETURN_IF_ERROR(end_row());
    row.push_back(item);
  }
  if (!row.empty()) {
    if (given(args[1])) row.resize(static_cast<size_t>(*size), *args[1]);
    SEER_RETURN_IF_ERROR(end_row());
  }
  return run.made_iterator(std::move(rows));
}

Result<JinjaValue> map_attribute(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  const JinjaValue* attribute = nullptr;
  const JinjaValue* otherwise = nullptr;
  for (const auto& [key, of_key] : arguments.named) {
    if (key == "attribute")
      attribute = &of_key;
    else if (key == "default")
      otherwise = given(&of_key) ? &of_key : nullptr;
    else
      return run.made_iterator({}, "generator",
                               fail(Code::kInvalidArgument, "the filter map has no parameter named '", key, "'"));
  }
  const std::vector<JinjaValue> path = given(attribute) ? attribute_path(*attribute) : std::vector<JinjaValue>();
  return lazily(run, value, [&](const JinjaValue& item, std::vector<JinjaValue>& out) -> Status {
    SEER_ASSIGN_OR_RETURN(JinjaValue found, follow(run, item, path, otherwise));
    out.push_back(std::move(found));
    return {};
  });
}

Result<JinjaValue> map_filter(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  if (!jinja_true(value)) return run.made_iterator({});
  const bool by_attribute = std::any_of(arguments.named.begin(), arguments.named.end(),
                                        [](const auto& entry) { return entry.first == "attribute"; });
  if (arguments.positional.empty() && by_attribute) return map_attribute(run, value, arguments);
  const bool named = !arguments.positional.empty() && arguments.positional[0].is_text();
  const JinjaFilter filter = named ? find_jinja_filter(arguments.positional[0].bytes()) : nullptr;
  if (filter == nullptr)
    return run.made_iterator(
        {}, "generator", fail(Code::kInvalidArgument, "the filter map needs the name of a filter, or attribute='...'"));
  const JinjaArguments rest = arguments_after(arguments, 1);
  return lazily(run, value, [&](const JinjaValue& item, std::vector<JinjaValue>& out) -> Status {
    SEER_ASSIGN_OR_RETURN(JinjaValue made, filter(run, item, rest));
    out.push_back(std::move(made));
    return {};
  });
}

template <bool kKeep, bool kByAttribute>
Result<JinjaValue> select(JinjaRun& run, const JinjaValue& value, const JinjaArguments& arguments) {
  constexpr size_t kTestAt = kByAttribute ? 1 : 0;
  if (!jinja_true(value)) return run.made_iterator({});
  if (arguments.positional.size() < kTestAt)
    return run.made_iterator({}, "generator",
                             fail(Code::kInvalidArgument, "the filter needs the name of an attribute"));
  const bool tested = arguments.positional.size() > kTestAt;
  const JinjaTest test = tested && arguments.positional[kTestAt].is_text()
                             ? find_jinja_test(arguments.positional[kTestAt].bytes())
                             : nullptr;
  if (tested && test == nullptr)
    return run.made_iterator(
        {}, "generator", fail(Code::kInvalidArgument, "the filter needs the name of a test; there is none named so"));
  const std::vector<JinjaValue> path =
      kByAttribute ? attribute_path(arguments.positional[0]) : std::vector<JinjaValue>();
  const JinjaArguments rest = tested ? arguments_after(arguments, kTestAt + 1) : JinjaArguments();
  return lazily(run, value, [&](const JinjaValue& item, std::vector<JinjaValue>& out) -> Status {
    SEER_ASSIGN_OR_RETURN(const JinjaValue looked_at, follow(run, item, path, nullptr));
    bool holds = jinja_true(looked_at);
    if (test != nullptr) {
      SEER_ASSIGN_OR_RETURN(holds, test(run, looked_at, rest));
    }
    if (holds == kKeep) out.push_back(item);
    return {};
  });
}

struct NamedFilter {
  std::string_view name;
  JinjaFilter filter;
};
constexpr NamedFilter kFilters[] = {
    {"abs", absolute},
    {"attr", attr},
    {"batch", batch},
    {"capitalize", change<python_capitalize>},
    {"count", length},
    {"d", default_filter},
    {"default", default_filter},
    {"dictsort", dictsort},
    {"e", escape<false>},
    {"escape", escape<false>},
    {"first", first},
    {"float", to_float},
    {"forceescape", escape<true>},
    {"format", format},
    {"indent", indent},
    {"int", to_int},
    {"items", items_filter},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", change<python_lower>},
    {"map", map_filter},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round_filter},
    {"safe", safe},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", change<jinja_title>},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", unique},
    {"upper", change<python_upper>},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
};

}  // namespace

JinjaFilter find_jinja_filter(std::string_view name) {
  for (const NamedFilter& known : kFilters)
    if (known.name == name) return known.filter;
  return nullptr;
}

}  // namespace seer
