// Methods of texts, dicts, lists and tuples. Those that would change a value are not offered: the sandbox that
// templates are written for hides them too.
#include <algorithm>
#include <array>

#include "gpu/text/jinja_loop.h"
#include "gpu/text/jinja_run.h"
#include "gpu/text/utf8.h"

namespace seer {
namespace {

using Values = std::vector<const JinjaValue*>;
using Method = JinjaMethod::Function;

Error wrong_argument(std::string_view function, std::string_view parameter, const JinjaValue& met,
                     std::string_view expected) {
  return fail(Code::kInvalidArgument, function, "(): ", parameter, " is of type ", met.type_name(), "; expected ",
              expected);
}

/// An argument that may be left out or none.
Result<std::optional<std::string>> optional_text(std::string_view function, std::string_view parameter,
                                                 const JinjaValue* value) {
  if (value == nullptr || value->is_none()) return std::optional<std::string>();
  if (!value->is_text()) return wrong_argument(function, parameter, *value, "a text");
  return std::optional<std::string>(value->bytes());
}

Result<int64_t> integer_or(std::string_view function, std::string_view parameter, const JinjaValue* value,
                           int64_t otherwise) {
  if (value == nullptr) return otherwise;
  const auto whole = value->integer();
  if (!whole) return wrong_argument(function, parameter, *value, "an integer");
  return static_cast<int64_t>(std::clamp<Int128>(*whole, INT64_MIN, INT64_MAX));
}

Result<JinjaValue> text_list(JinjaRun& run, const std::vector<std::string_view>& parts) {
  std::vector<JinjaValue> items;
  for (const std::string_view part : parts) {
    SEER_ASSIGN_OR_RETURN(JinjaValue item, run.made_text(std::string(part)));
    items.push_back(std::move(item));
  }
  return run.made_list(std::move(items));
}

// ---- texts

template <std::string (*kChange)(std::string_view)>
Result<JinjaValue> changed_text(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("the method", arguments, {}));
  SEER_RETURN_IF_ERROR(case_known(self.bytes()));
  return run.made_text(kChange(self.bytes()), self.as_text().safe);
}

std::string swapped_case(std::string_view text) {
  std::string out;
  for (const std::string_view one : split_chars(text))
    out += python_is_upper(one) ? python_lower(one) : python_upper(one);
  return out;
}

template <bool kLeft, bool kRight>
Result<JinjaValue> strip(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("strip", arguments, {"chars"}));
  SEER_ASSIGN_OR_RETURN(const auto chars, optional_text("strip", "chars", given[0]));
  const auto stripped = python_strip(self.bytes(), {.left = kLeft, .right = kRight},
                                     chars ? std::optional<std::string_view>(*chars) : std::nullopt);
  return run.made_text(std::string(stripped), self.as_text().safe);
}

template <bool kFromRight>
Result<JinjaValue> split(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("split", arguments, {"sep", "maxsplit"}));
  SEER_ASSIGN_OR_RETURN(const auto separator, optional_text("split", "sep", given[0]));
  SEER_ASSIGN_OR_RETURN(const int64_t splits_max, integer_or("split", "maxsplit", given[1], -1));
  SEER_RETURN_IF_ERROR(run.spend(self.bytes().size() / 4));
  if (!separator)
    return text_list(run,
                     kFromRight ? python_rsplit(self.bytes(), splits_max) : python_split(self.bytes(), splits_max));
  if (separator->empty()) return fail(Code::kInvalidArgument, "split(): sep is empty; expected a text to split at");
  return text_list(run, kFromRight ? python_rsplit_on(self.bytes(), *separator, splits_max)
                                   : python_split_on(self.bytes(), *separator, splits_max));
}

Result<JinjaValue> splitlines(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("splitlines", arguments, {"keepends"}));
  SEER_RETURN_IF_ERROR(run.spend(self.bytes().size() / 4));
  return text_list(run, python_splitlines(self.bytes(), given[0] != nullptr && jinja_true(*given[0])));
}

/// The characters [start, end) of a text, as slices count them.
Result<std::string> between(JinjaRun& run, const JinjaText& text, const JinjaValue* start, const JinjaValue* end) {
  if (start == nullptr && end == nullptr) return text.bytes;
  const auto bound = [](const JinjaValue* value) {
    return value == nullptr || value->is_none() ? std::optional<Int128>() : value->integer();
  };
  const JinjaSlice slice = JinjaSlice::of(bound(start), bound(end), std::nullopt, text.chars);
  SEER_ASSIGN_OR_RETURN(const JinjaValue part, slice_text(run, text, slice));
  return part.bytes();
}

template <bool kStart>
Result<JinjaValue> starts_or_ends(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  constexpr const char* kName = kStart ? "startswith" : "endswith";
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments(kName, arguments, {"prefix", "start", "end"}, 1));
  SEER_ASSIGN_OR_RETURN(const std::string text, between(run, self.as_text(), given[1], given[2]));
  const auto matches = [&](const JinjaValue& part) {
    return kStart ? text.starts_with(part.bytes()) : text.ends_with(part.bytes());
  };
  if (given[0]->is_text()) return JinjaValue::of(matches(*given[0]));
  if (!given[0]->is_tuple())
    return wrong_argument(kName, "the prefix or suffix", *given[0], "a text or a tuple of texts");
  for (const JinjaValue& part : given[0]->as_list()->items) {
    if (!part.is_text()) return wrong_argument(kName, "an item of the tuple", part, "a text");
    if (matches(part)) return JinjaValue::of(true);
  }
  return JinjaValue::of(false);
}

Result<std::string> required_text(std::string_view function, std::string_view parameter, const JinjaValue& value) {
  if (!value.is_text()) return wrong_argument(function, parameter, value, "a text");
  return value.bytes();
}

Result<JinjaValue> replace(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("replace", arguments, {"old", "new", "count"}, 2));
  SEER_ASSIGN_OR_RETURN(const std::string from, required_text("replace", "old", *given[0]));
  SEER_ASSIGN_OR_RETURN(const std::string to, required_text("replace", "new", *given[1]));
  SEER_ASSIGN_OR_RETURN(const int64_t count, integer_or("replace", "count", given[2], -1));
  SEER_ASSIGN_OR_RETURN(std::string replaced, jinja_replaced(run, self.bytes(), from, to, count));
  return run.made_text(std::move(replaced), self.as_text().safe);
}

enum class Search { kFind, kRightFind, kIndex, kRightIndex, kCount };
template <Search kSearch>
Result<JinjaValue> search(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("find", arguments, {"sub", "start", "end"}, 1));
  SEER_ASSIGN_OR_RETURN(const std::string what, required_text("find", "sub", *given[0]));
  SEER_ASSIGN_OR_RETURN(const std::string text, between(run, self.as_text(), given[1], given[2]));
  SEER_RETURN_IF_ERROR(run.spend(text.size() / 16));
  if (kSearch == Search::kCount) {
    if (what.empty()) return JinjaValue::count(count_chars(text) + 1);
    return JinjaValue::count(python_split_on(text, what).size() - 1);
  }
  const bool right = kSearch == Search::kRightFind || kSearch == Search::kRightIndex;
  const size_t at = right ? text.rfind(what) : text.find(what);
  if (at == std::string::npos) {
    if (kSearch == Search::kIndex || kSearch == Search::kRightIndex)
      return fail(Code::kInvalidArgument, "index(): the text does not hold the one looked for");
    return JinjaValue::of(Int128{-1});
  }
  const auto start = given[1] == nullptr ? std::optional<Int128>() : given[1]->integer();
  const JinjaSlice slice = JinjaSlice::of(start, std::nullopt, std::nullopt, self.as_text().chars);
  return JinjaValue::of(slice.start + static_cast<Int128>(count_chars(std::string_view(text).substr(0, at))));
}

Result<JinjaValue> join(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("join", arguments, {"iterable"}, 1));
  SEER_ASSIGN_OR_RETURN(const JinjaItems items, run.items(*given[0]));
  std::string text;
  for (const JinjaValue& item : items->items) {
    if (!item.is_text()) return wrong_argument("join", "an item", item, "a text");
    if (&item != &items->items.front()) text += self.bytes();
    text += item.bytes();
    if (text.size() > run.bytes_max()) break;
  }
  return run.made_text(std::move(text), self.as_text().safe);
}

template <bool kPrefix>
Result<JinjaValue> remove_affix(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given,
                        bind_arguments(kPrefix ? "removeprefix" : "removesuffix", arguments, {"affix"}, 1));
  SEER_ASSIGN_OR_RETURN(const std::string affix, required_text("removeprefix", "the prefix or suffix", *given[0]));
  std::string_view text = self.bytes();
  if (kPrefix && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (!kPrefix && text.ends_with(affix)) text.remove_suffix(affix.size());
  return run.made_text(std::string(text), self.as_text().safe);
}

template <bool kFromRight>
Result<JinjaValue> partition(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("partition", arguments, {"sep"}, 1));
  SEER_ASSIGN_OR_RETURN(const std::string separator, required_text("partition", "sep", *given[0]));
  if (separator.empty()) return fail(Code::kInvalidArgument, "partition(): sep is empty; expected a text to split at");
  const std::string_view text = self.bytes();
  const size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
  std::array<std::string_view, 3> parts{text, "", ""};
  if (at != std::string_view::npos)
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  else if (kFromRight)
    parts = {"", "", text};
  SEER_RETURN_IF_ERROR(run.spend(text.size() / 16));
  return run.made_tuple({JinjaValue::text(std::string(parts[0])), JinjaValue::text(std::string(parts[1])),
                         JinjaValue::text(std::string(parts[2]))});
}

enum class Pad { kLeft, kRight, kCenter, kZeros };
template <Pad kPad>
Result<JinjaValue> padded(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("the method", arguments, {"width", "fillchar"}, 1));
  SEER_ASSIGN_OR_RETURN(const int64_t width, integer_or("the method", "width", given[0], 0));
  SEER_ASSIGN_OR_RETURN(const auto fill, optional_text("the method", "fillchar", given[1]));
  if (fill && count_chars(*fill) != 1)
    return fail(Code::kInvalidArgument, "fillchar is ", python_repr(*fill), "; expected one character");
  const JinjaText& text = self.as_text();
  const auto chars = static_cast<int64_t>(text.chars);
  if (width <= chars) return self;
  const int64_t missing = width - chars;
  if (static_cast<uint64_t>(missing) > run.bytes_max()) return run.made_text(std::string(run.bytes_max() + 1, ' '));
  int64_t left = kPad == Pad::kLeft ? 0 : missing;  // ljust puts the text to the left
  if (kPad == Pad::kCenter) left = missing / 2 + (missing & width & 1);
  const std::string one = kPad == Pad::kZeros ? "0" : fill.value_or(" ");
  std::string out;
  const bool sign = kPad == Pad::kZeros && !text.bytes.empty() && (text.bytes[0] == '-' || text.bytes[0] == '+');
  if (sign) out += text.bytes[0];
  for (int64_t i = 0; i < left; ++i) out += one;
  out += sign ? text.bytes.substr(1) : text.bytes;
  for (int64_t i = left; i < missing; ++i) out += one;
  return run.made_text(std::move(out), text.safe);
}

enum class Class { kAlpha, kDecimal, kDigit, kAlnum };
template <Class kClass>
Result<JinjaValue> all_of_class(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("the method", arguments, {}));
  const std::string_view text = self.bytes();
  SEER_RETURN_IF_ERROR(run.spend(text.size() / 16));
  for (size_t at = 0; at < text.size(); at += utf8_at(text, at).bytes) {
    const auto of = python_class(utf8_at(text, at).value);
    // ² is a digit to Python and ½ is not: Unicode's digit property is not known here.
    const bool unknown = !of || (kClass == Class::kDigit && of->numeric && !of->decimal);
    if (unknown)
      return fail(of ? Code::kInvalidArgument : Code::kUnavailable, "the class of the character ",
                  python_repr(text.substr(at, utf8_at(text, at).bytes)), " is not known in this build");
    const bool fits = kClass == Class::kAlpha   ? of->letter
                      : kClass == Class::kAlnum ? of->letter || of->numeric
                                                : of->decimal;
    if (!fits) return JinjaValue::of(false);
  }
  return JinjaValue::of(!text.empty());
}

bool is_space_text(std::string_view text) { return !text.empty() && python_strip(text).empty(); }
bool is_ascii_text(std::string_view text) { return is_ascii(text); }
template <bool (*kHolds)(std::string_view)>
Result<JinjaValue> text_is(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("the method", arguments, {}));
  SEER_RETURN_IF_ERROR(run.spend(self.bytes().size() / 16));
  if (kHolds == python_is_lower || kHolds == python_is_upper) SEER_RETURN_IF_ERROR(case_known(self.bytes()));
  return JinjaValue::of(kHolds(self.bytes()));
}

/// "{} {0} {name!r}".format(...): without format specifications.
Result<JinjaValue> format(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  const std::string& text = self.bytes();
  std::string out;
  size_t automatic = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (out.size() > run.bytes_max()) break;
    const char c = text[i];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    const size_t end = c == '{' ? text.find('}', i) : std::string::npos;
    if (end == std::string::npos)
      return fail(Code::kInvalidArgument, "format(): a single '", c, "'; expected {name}, {{ or }}");
    std::string_view field = std::string_view(text).substr(i + 1, end - i - 1);
    i = end;
    const bool as_repr = field.ends_with("!r");
    if (as_repr || field.ends_with("!s")) field.remove_suffix(2);
    if (field.find_first_of(":.[!{") != std::string_view::npos)
      return fail(Code::kInvalidArgument, "format(): the field {", field,
                  "} is not supported; expected {}, {0} or {name}");
    const JinjaValue* value = nullptr;
    const auto index = field.empty() ? std::optional<Int128>(automatic++) : python_int(field);
    if (index && *index >= 0 && *index < static_cast<Int128>(arguments.positional.size()))
      value = &arguments.positional[static_cast<size_t>(*index)];
    for (const auto& [key, of_key] : arguments.named)
      if (key == field) value = &of_key;
    if (value == nullptr)
      return fail(Code::kInvalidArgument, "format(): there is no argument for the field {", field, "}");
    SEER_ASSIGN_OR_RETURN(const std::string part, as_repr ? jinja_repr(*value, run.bytes_max()) : run.str(*value));
    out += part;
  }
  return run.made_text(std::move(out), self.as_text().safe);
}

// ---- dicts, lists, tuples

enum class View { kKeys, kValues, kItems };
template <View kView>
Result<JinjaValue> view(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("the method", arguments, {}));
  std::vector<JinjaValue> items;
  for (const auto& [key, value] : self.as_dict().entries()) {
    if (kView != View::kItems) {
      items.push_back(kView == View::kKeys ? key : value);
      continue;
    }
    SEER_ASSIGN_OR_RETURN(JinjaValue pair, run.made_tuple({key, value}));
    items.push_back(std::move(pair));
  }
  SEER_ASSIGN_OR_RETURN(const JinjaValue list, run.made_list(std::move(items)));
  auto made = std::make_shared<JinjaView>();
  made->items = list.as_list();
  made->type = kView == View::kKeys ? "dict_keys" : kView == View::kValues ? "dict_values" : "dict_items";
  return JinjaValue::object(std::move(made));
}

Result<JinjaValue> get(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("get", arguments, {"key", "default"}, 1));
  SEER_RETURN_IF_ERROR(run.usable_key(*given[0], self.as_dict().size()));
  const JinjaValue* found = self.as_dict().find(*given[0]);
  if (found != nullptr) return *found;
  return given[1] != nullptr ? *given[1] : JinjaValue::none();
}

Result<JinjaValue> copy(JinjaRun&, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("copy", arguments, {}));
  return self;  // nothing can change either of them
}

template <bool kIndex>
Result<JinjaValue> find_item(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments(kIndex ? "index" : "count", arguments, {"value"}, 1));
  const auto& items = self.as_list()->items;
  size_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    SEER_ASSIGN_OR_RETURN(const bool same, run.equal(items[i], *given[0]));
    if (same && kIndex) return JinjaValue::count(i);
    count += same;
  }
  if (kIndex) return fail(Code::kInvalidArgument, "index(): the value is not in the list");
  return JinjaValue::count(count);
}

struct NamedMethod {
  std::string_view name;
  Method function;
};

constexpr NamedMethod kTextMethods[] = {
    {"capitalize", changed_text<python_capitalize>},
    {"center", padded<Pad::kCenter>},
    {"count", search<Search::kCount>},
    {"endswith", starts_or_ends<false>},
    {"find", search<Search::kFind>},
    {"format", format},
    {"index", search<Search::kIndex>},
    {"isalnum", all_of_class<Class::kAlnum>},
    {"isalpha", all_of_class<Class::kAlpha>},
    {"isascii", text_is<is_ascii_text>},
    {"isdecimal", all_of_class<Class::kDecimal>},
    {"isdigit", all_of_class<Class::kDigit>},
    {"islower", text_is<python_is_lower>},
    {"isspace", text_is<is_space_text>},
    {"isupper", text_is<python_is_upper>},
    {"join", join},
    {"ljust", padded<Pad::kLeft>},
    {"lower", changed_text<python_lower>},
    {"lstrip", strip<true, false>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace},
    {"rfind", search<Search::kRightFind>},
    {"rindex", search<Search::kRightIndex>},
    {"rjust", padded<Pad::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"startswith", starts_or_ends<true>},
    {"strip", strip<true, true>},
    {"swapcase", changed_text<swapped_case>},
    {"title", changed_text<python_title>},
    {"upper", changed_text<python_upper>},
    {"zfill", padded<Pad::kZeros>},
};
constexpr NamedMethod kDictMethods[] = {{"copy", copy},
                                        {"get", get},
                                        {"items", view<View::kItems>},
                                        {"keys", view<View::kKeys>},
                                        {"values", view<View::kValues>}};
constexpr NamedMethod kListMethods[] = {{"copy", copy}, {"count", find_item<false>}, {"index", find_item<true>}};
constexpr NamedMethod kTupleMethods[] = {{"count", find_item<false>}, {"index", find_item<true>}};

template <size_t kCount>
Method find_method(const NamedMethod (&methods)[kCount], std::string_view name) {
  for (const NamedMethod& method : methods)
    if (method.name == name) return method.function;
  return nullptr;
}

}  // namespace

std::shared_ptr<JinjaCallable> find_jinja_method(const JinjaValue& of, std::string_view name) {
  Method found = nullptr;
  if (of.is_text()) found = find_method(kTextMethods, name);
  if (of.is_dict()) found = find_method(kDictMethods, name);
  if (of.is_list()) found = find_method(kListMethods, name);
  if (of.is_tuple()) found = find_method(kTupleMethods, name);
  return found == nullptr ? nullptr : std::make_shared<JinjaMethod>(of, found);
}

}  // namespace seer
