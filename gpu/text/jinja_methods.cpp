// Methods of texts, dicts, lists and tuples, and the global functions. Those that would change a value are not offered:
// the sandbox that templates are written for hides them too.
#include <algorithm>
#include <array>
#include <cstdio>

#include "gpu/text/jinja_loop.h"
#include "gpu/text/jinja_run.h"
#include "gpu/text/utf8.h"

namespace seer {
namespace {

using Values = std::vector<const JinjaValue*>;
using Method = JinjaMethod::Function;

Error wrong_argument(std::string_view function, std::string_view parameter, const JinjaValue& met, std::string_view expected) {
  return fail(Code::kInvalidArgument, function, "(): ", parameter, " is of type ", met.type_name(), "; expected ", expected);
}

/// An argument that may be left out or none.
Result<std::optional<std::string>> optional_text(std::string_view function, std::string_view parameter, const JinjaValue* value) {
  if (value == nullptr || value->is_none()) return std::optional<std::string>();
  if (!value->is_text()) return wrong_argument(function, parameter, *value, "a text");
  return std::optional<std::string>(value->bytes());
}

Result<int64_t> integer_or(std::string_view function, std::string_view parameter, const JinjaValue* value, int64_t otherwise) {
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

// ---- texts -----------------------------------------------------------------------------------------------------------

template <std::string (*kChange)(std::string_view)>
Result<JinjaValue> changed_text(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_RETURN_IF_ERROR(bind_arguments("the method", arguments, {}));
  return run.made_text(kChange(self.bytes()), self.as_text().safe);
}

std::string swapped_case(std::string_view text) {
  std::string out;
  for (const std::string_view one : split_chars(text)) out += python_is_upper(one) ? python_lower(one) : python_upper(one);
  return out;
}

template <bool kLeft, bool kRight>
Result<JinjaValue> strip(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("strip", arguments, {"chars"}));
  SEER_ASSIGN_OR_RETURN(const auto chars, optional_text("strip", "chars", given[0]));
  const auto stripped = python_strip(self.bytes(), {.left = kLeft, .right = kRight}, chars ? std::optional<std::string_view>(*chars) : std::nullopt);
  return run.made_text(std::string(stripped), self.as_text().safe);
}

template <bool kFromRight>
Result<JinjaValue> split(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("split", arguments, {"sep", "maxsplit"}));
  SEER_ASSIGN_OR_RETURN(const auto separator, optional_text("split", "sep", given[0]));
  SEER_ASSIGN_OR_RETURN(const int64_t splits_max, integer_or("split", "maxsplit", given[1], -1));
  SEER_RETURN_IF_ERROR(run.spend(self.bytes().size() / 4));
  if (!separator) return text_list(run, kFromRight ? python_rsplit(self.bytes(), splits_max) : python_split(self.bytes(), splits_max));
  if (separator->empty()) return fail(Code::kInvalidArgument, "split(): sep is empty; expected a text to split at");
  return text_list(run, kFromRight ? python_rsplit_on(self.bytes(), *separator, splits_max) : python_split_on(self.bytes(), *separator, splits_max));
}

Result<JinjaValue> splitlines(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("splitlines", arguments, {"keepends"}));
  SEER_RETURN_IF_ERROR(run.spend(self.bytes().size() / 4));
  return text_list(run, python_splitlines(self.bytes(), given[0] != nullptr && jinja_true(*given[0])));
}

/// The characters [start, end) of a text, as slices count them.
Result<std::string> between(JinjaRun& run, const JinjaText& text, const JinjaValue* start, const JinjaValue* end) {
  if (start == nullptr && end == nullptr) return text.bytes;
  const auto bound = [](const JinjaValue* value) { return value == nullptr || value->is_none() ? std::optional<Int128>() : value->integer(); };
  const JinjaSlice slice = JinjaSlice::of(bound(start), bound(end), std::nullopt, text.chars);
  SEER_ASSIGN_OR_RETURN(const JinjaValue part, slice_text(run, text, slice));
  return part.bytes();
}

template <bool kStart>
Result<JinjaValue> starts_or_ends(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  constexpr const char* kName = kStart ? "startswith" : "endswith";
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments(kName, arguments, {"prefix", "start", "end"}, 1));
  SEER_ASSIGN_OR_RETURN(const std::string text, between(run, self.as_text(), given[1], given[2]));
  const auto matches = [&](const JinjaValue& part) { return kStart ? text.starts_with(part.bytes()) : text.ends_with(part.bytes()); };
  if (given[0]->is_text()) return JinjaValue::of(matches(*given[0]));
  if (!given[0]->is_tuple()) return wrong_argument(kName, "the prefix or suffix", *given[0], "a text or a tuple of texts");
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
    if (kSearch == Search::kIndex || kSearch == Search::kRightIndex) return fail(Code::kInvalidArgument, "index(): the text does not hold the one looked for");
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
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments(kPrefix ? "removeprefix" : "removesuffix", arguments, {"affix"}, 1));
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
  if (at != std::string_view::npos) parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  else if (kFromRight) parts = {"", "", text};
  SEER_RETURN_IF_ERROR(run.spend(text.size() / 16));
  return run.made_tuple({JinjaValue::text(std::string(parts[0])), JinjaValue::text(std::string(parts[1])), JinjaValue::text(std::string(parts[2]))});
}

enum class Pad { kLeft, kRight, kCenter, kZeros };
template <Pad kPad>
Result<JinjaValue> padded(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("the method", arguments, {"width", "fillchar"}, 1));
  SEER_ASSIGN_OR_RETURN(const int64_t width, integer_or("the method", "width", given[0], 0));
  SEER_ASSIGN_OR_RETURN(const auto fill, optional_text("the method", "fillchar", given[1]));
  if (fill && count_chars(*fill) != 1) return fail(Code::kInvalidArgument, "fillchar is ", python_repr(*fill), "; expected one character");
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
    if (unknown) return fail(Code::kInvalidArgument, "the class of the character ", python_repr(text.substr(at, utf8_at(text, at).bytes)), " is not known in this build");
    const bool fits = kClass == Class::kAlpha ? of->letter : kClass == Class::kAlnum ? of->letter || of->numeric : of->decimal;
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
    if (end == std::string::npos) return fail(Code::kInvalidArgument, "format(): a single '", c, "'; expected {name}, {{ or }}");
    std::string_view field = std::string_view(text).substr(i + 1, end - i - 1);
    i = end;
    const bool as_repr = field.ends_with("!r");
    if (as_repr || field.ends_with("!s")) field.remove_suffix(2);
    if (field.find_first_of(":.[!{") != std::string_view::npos)
      return fail(Code::kInvalidArgument, "format(): the field {", field, "} is not supported; expected {}, {0} or {name}");
    const JinjaValue* value = nullptr;
    const auto index = field.empty() ? std::optional<Int128>(automatic++) : python_int(field);
    if (index && *index >= 0 && *index < static_cast<Int128>(arguments.positional.size())) value = &arguments.positional[static_cast<size_t>(*index)];
    for (const auto& [key, of_key] : arguments.named)
      if (key == field) value = &of_key;
    if (value == nullptr) return fail(Code::kInvalidArgument, "format(): there is no argument for the field {", field, "}");
    SEER_ASSIGN_OR_RETURN(const std::string part, as_repr ? jinja_repr(*value, run.bytes_max()) : run.str(*value));
    out += part;
  }
  return run.made_text(std::move(out), self.as_text().safe);
}

// ---- dicts, lists, tuples --------------------------------------------------------------------------------------------

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
constexpr NamedMethod kDictMethods[] = {
    {"copy", copy}, {"get", get}, {"items", view<View::kItems>}, {"keys", view<View::kKeys>}, {"values", view<View::kValues>}};
constexpr NamedMethod kListMethods[] = {{"copy", copy}, {"count", find_item<false>}, {"index", find_item<true>}};
constexpr NamedMethod kTupleMethods[] = {{"count", find_item<false>}, {"index", find_item<true>}};

template <size_t kCount>
Method find_method(const NamedMethod (&methods)[kCount], std::string_view name) {
  for (const NamedMethod& method : methods)
    if (method.name == name) return method.function;
  return nullptr;
}

// ---- global functions ------------------------------------------------------------------------------------------------

struct Function : JinjaCallable {
  using Run = Result<JinjaValue> (*)(JinjaRun&, const JinjaArguments&);
  explicit Function(Run of) : function(of) {}
  Result<JinjaValue> call(JinjaRun& run, const JinjaArguments& arguments) override { return function(run, arguments); }
  std::string type_name() const override { return "function"; }
  Run function;
};

Result<JinjaValue> range(JinjaRun&, const JinjaArguments& arguments) {
  constexpr int kItemsMax = 100'000;  // as in Jinja's sandbox
  const auto& given = arguments.positional;
  if (!arguments.named.empty() || given.empty() || given.size() > 3)
    return fail(Code::kInvalidArgument, "range() takes one to three numbers, but was given ", given.size() + arguments.named.size(), " arguments");
  std::array<Int128, 3> numbers{0, 0, 1};
  for (size_t i = 0; i < given.size(); ++i) {
    const auto whole = given[i].integer();
    if (!whole) return wrong_argument("range", "an argument", given[i], "an integer");
    numbers[given.size() == 1 ? 1 : i] = *whole;
  }
  for (const Int128 number : numbers)
    if (number != static_cast<int64_t>(number)) return fail(Code::kInvalidArgument, "range(): ", to_text(number), " does not fit in 64 bits");
  if (numbers[2] == 0) return fail(Code::kInvalidArgument, "range(): the step is 0; expected another");
  auto made = std::make_shared<JinjaRange>();
  made->start = numbers[0];
  made->stop = numbers[1];
  made->step = numbers[2];
  if (made->size() > kItemsMax) return fail(Code::kFull, "range() of ", to_text(made->size()), " items; at most ", kItemsMax, " are allowed");
  return JinjaValue::object(std::move(made));
}

/// dict(): from a dict or from pairs, then named arguments.
Result<JinjaDict> dict_of(JinjaRun& run, std::string_view function, const JinjaArguments& arguments) {
  if (arguments.positional.size() > 1) return fail(Code::kInvalidArgument, function, "() takes one dict and named arguments");
  JinjaDict dict;
  if (!arguments.positional.empty()) {
    const JinjaValue& from = arguments.positional[0];
    if (from.is_dict()) {
      SEER_RETURN_IF_ERROR(run.spend(from.as_dict().size()));
      dict = from.as_dict();
    } else {
      SEER_ASSIGN_OR_RETURN(const JinjaItems pairs, run.items(from));
      for (const JinjaValue& pair : pairs->items) {
        SEER_ASSIGN_OR_RETURN(const JinjaItems both, run.items(pair));
        if (both->items.size() != 2) return fail(Code::kInvalidArgument, function, "(): an item has ", both->items.size(), " parts; expected a key and a value");
        SEER_RETURN_IF_ERROR(run.usable_key(both->items[0], dict.size()));
        dict.set(both->items[0], both->items[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) dict.set(JinjaValue::text(key), value);
  return dict;
}

Result<JinjaValue> make_dict(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(JinjaDict dict, dict_of(run, "dict", arguments));
  return run.made_dict(std::move(dict));
}

Result<JinjaValue> make_namespace(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const JinjaDict dict, dict_of(run, "namespace", arguments));
  auto made = std::make_shared<JinjaNamespace>();
  for (const auto& [key, value] : dict.entries()) {
    if (!key.is_text()) return wrong_argument("namespace", "a name", key, "a text");
    made->fields.emplace_back(key.bytes(), value);
  }
  run.keep(made);
  return JinjaValue::object(std::move(made));
}

Result<JinjaValue> raise_exception(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("raise_exception", arguments, {"message"}, 1));
  SEER_ASSIGN_OR_RETURN(const std::string message, run.str(*given[0]));
  return fail(Code::kInvalidArgument, "the template refuses the conversation: ", message);
}

Result<JinjaValue> strftime_now(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("strftime_now", arguments, {"format"}, 1));
  SEER_ASSIGN_OR_RETURN(const std::string pattern, required_text("strftime_now", "format", *given[0]));
  if (!run.now()) return fail(Code::kInvalidArgument, "strftime_now() asks for the time, but the renderer was given none");
  if (pattern.empty()) return run.made_text("");
  std::array<char, 512> text;
  const std::tm now = *run.now();
  const size_t bytes = std::strftime(text.data(), text.size(), pattern.c_str(), &now);
  const std::string made(text.data(), bytes);
  if (bytes == 0 || utf8_valid_bytes(made) != bytes) return fail(Code::kInvalidArgument, "strftime_now(): cannot write the time as ", python_repr(pattern));
  return run.made_text(made);
}

struct Joiner : JinjaCallable {
  explicit Joiner(JinjaValue between) : separator(std::move(between)) {}
  Result<JinjaValue> call(JinjaRun&, const JinjaArguments&) override {
    return std::exchange(used, true) ? separator : JinjaValue::text("");
  }
  std::string type_name() const override { return "Joiner"; }
  int depth() const override { return separator.depth() + 1; }
  JinjaValue separator;
  bool used = false;
};

Result<JinjaValue> make_joiner(JinjaRun&, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const Values given, bind_arguments("joiner", arguments, {"sep"}));
  return JinjaValue::object(std::make_shared<Joiner>(given[0] != nullptr ? *given[0] : JinjaValue::text(", ")));
}

Result<JinjaValue> make_cycler(JinjaRun& run, const JinjaArguments& arguments) {
  if (arguments.positional.empty()) return fail(Code::kInvalidArgument, "cycler() was given nothing to cycle through");
  SEER_ASSIGN_OR_RETURN(const JinjaValue items, run.made_list(arguments.positional));
  auto made = std::make_shared<JinjaCycler>();
  made->items = items.as_list();
  return JinjaValue::object(std::move(made));
}

}  // namespace

std::shared_ptr<JinjaCallable> find_jinja_function(std::string_view name) {
  struct Named {
    std::string_view name;
    Function::Run function;
  };
  constexpr Named kFunctions[] = {{"namespace", make_namespace}, {"raise_exception", raise_exception}, {"range", range}, {"strftime_now", strftime_now},
                                  {"dict", make_dict},           {"joiner", make_joiner},               {"cycler", make_cycler}};
  for (const Named& known : kFunctions)
    if (known.name == name) return std::make_shared<Function>(known.function);
  return nullptr;
}

std::shared_ptr<JinjaCallable> find_jinja_method(const JinjaValue& of, std::string_view name) {
  Method found = nullptr;
  if (of.is_text()) found = find_method(kTextMethods, name);
  if (of.is_dict()) found = find_method(kDictMethods, name);
  if (of.is_list()) found = find_method(kListMethods, name);
  if (of.is_tuple()) found = find_method(kTupleMethods, name);
  return found == nullptr ? nullptr : std::make_shared<JinjaMethod>(of, found);
}

Result<Values> bind_arguments(std::string_view function, const JinjaArguments& given, std::initializer_list<std::string_view> parameters,
                              size_t required) {
  Values values(parameters.size(), nullptr);
  if (given.positional.size() > parameters.size())
    return fail(Code::kInvalidArgument, function, "() was given ", given.positional.size(), " arguments; expected at most ", parameters.size());
  for (size_t i = 0; i < given.positional.size(); ++i) values[i] = &given.positional[i];
  for (const auto& [key, value] : given.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), key);
    if (found == parameters.end()) return fail(Code::kInvalidArgument, function, "() has no parameter named '", key, "'");
    const auto index = static_cast<size_t>(found - parameters.begin());
    if (values[index] != nullptr) return fail(Code::kInvalidArgument, function, "() was given '", key, "' twice");
    values[index] = &value;
  }
  for (size_t i = 0; i < required; ++i)
    if (values[i] == nullptr) return fail(Code::kInvalidArgument, function, "() was not given '", parameters.begin()[i], "'");
  return values;
}

Result<std::string> jinja_replaced(JinjaRun& run, std::string_view text, std::string_view from, std::string_view to, int64_t count) {
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
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
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
  if (!number) return fail(Code::kInvalidArgument, "% ", conversion.type, " formats a value of type ", value.type_name(), "; expected a number");
  std::string spec = cat('%', conversion.flags, conversion.width > 0 ? std::to_string(conversion.width) : "");
  if (conversion.precision) spec += cat('.', *conversion.precision);
  std::array<char, 2048> text;
  int size = 0;
  if (std::string_view("diuxXo").find(conversion.type) != std::string_view::npos) {
    if (value.is_float() && std::string_view("xXo").find(conversion.type) != std::string_view::npos)
      return fail(Code::kInvalidArgument, "%", conversion.type, " formats a float; expected an integer");
    if (!(*number > -9e18 && *number < 9e18)) return fail(Code::kInvalidArgument, "%", conversion.type, " formats a number beyond 64 bits");
    const auto whole = static_cast<long long>(value.integer() ? static_cast<long long>(*value.integer()) : *number);
    if (whole < 0 && std::string_view("xXo").find(conversion.type) != std::string_view::npos)
      return fail(Code::kInvalidArgument, "%", conversion.type, " of a negative number is not supported");
    spec += cat("ll", conversion.type);
    size = std::snprintf(text.data(), text.size(), spec.c_str(), whole);
  } else {
    spec += conversion.type;
    size = std::snprintf(text.data(), text.size(), spec.c_str(), *number);
  }
  if (size < 0 || static_cast<size_t>(size) >= text.size()) return fail(Code::kInvalidArgument, "%", conversion.type, " makes more than ", text.size(), " bytes");
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
    for (; i < format.size() && std::isdigit(static_cast<unsigned char>(format[i])); ++i) number = std::min<size_t>(number * 10 + static_cast<size_t>(format[i] - '0'), kWidthMax + 1);
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
      if (end == std::string::npos || !values.is_dict()) return fail(Code::kInvalidArgument, "%(name) needs a name, ')' and a dict; it was given a ", values.type_name());
      const std::string name = format.substr(i + 1, end - i - 1);
      value = values.as_dict().find(name);
      if (value == nullptr) return fail(Code::kInvalidArgument, "%(", name, "): the dict has no such key");
      by_name = true;
      i = end + 1;
    }
    Conversion conversion;
    while (i < format.size() && std::string_view("-+ 0#").find(format[i]) != std::string_view::npos) conversion.flags += format[i++];
    conversion.width = bounded_number(i);
    if (i < format.size() && format[i] == '.') conversion.precision = bounded_number(++i);
    if (conversion.width > kWidthMax || conversion.precision.value_or(0) > kWidthMax) return fail(Code::kInvalidArgument, "a width in a % format is larger than ", kWidthMax);
    if (i >= format.size()) return fail(Code::kInvalidArgument, "a % format ends after '%'; expected a conversion such as %s");
    conversion.type = format[i];
    if (conversion.type == '%') {
      out += '%';
      continue;
    }
    if (std::string_view("srdiuxXofFeEgG").find(conversion.type) == std::string_view::npos)
      return fail(Code::kInvalidArgument, "the conversion %", conversion.type, " is not supported");
    if (value == nullptr) {
      const size_t there = tuple != nullptr ? tuple->items.size() : 1;
      if (used >= there) return fail(Code::kInvalidArgument, "a % format has more conversions than the ", there, " values given");
      value = tuple != nullptr ? &tuple->items[used] : &values;
      ++used;
    }
    const bool is_text = conversion.type == 's' || conversion.type == 'r';
    SEER_ASSIGN_OR_RETURN(const std::string part, is_text ? converted_text(run, conversion, *value) : converted_number(conversion, *value));
    out += part;
  }
  const size_t there = tuple != nullptr ? tuple->items.size() : 1;
  if (!by_name && used < there && !(tuple == nullptr && (values.is_dict() || values.is_list() || values.is_undefined() || values.object_as<JinjaRange>() != nullptr)))
    return fail(Code::kInvalidArgument, "a % format uses ", used, " of the ", there, " values given");
  return out;
}

}  // namespace seer
