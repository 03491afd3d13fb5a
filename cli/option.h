// OptionSpec: one option of a subcommand: its name, the field it sets, its meaning, and its allowed values. The
// same table serves the flags, the TOML file, --help, --print-config, the shell completions and the man page, so that an
// option is one line in option_tables.cpp.
// Used by cli/ only. Pure: values come in as text.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "protocols/result.h"
#include "protocols/rollout.h"

namespace seer {

/// A number of bytes: 4096, 64M, 1.5GiB, 2GB; K, M, G and T alone count in 1024s. The error names the value and the accepted
/// forms.
Result<int64_t> parse_size(std::string_view text);
/// The shortest text that parse_size() reads back exactly: 67108864 -> 64MiB, 1000 -> 1000.
std::string format_size(int64_t bytes);

/// Fields with a special form of text.
struct SizeField { int64_t* bytes; };
struct CommaListField { std::vector<std::string>* texts; };  // one text, parts between commas; a list in the file
/// The flag is given once per text, or with `words`, once with all of them; a list in the file.
struct RepeatedField { std::vector<std::string>* texts; bool words = false; };
/// A field with one of several named values, such as an enum of a component. The option's OneOf has the names.
struct NamedField {
  std::function<void(const std::string& name)> set;  // REQUIRES: a name of the OneOf
  std::function<std::string()> name;
};
template <class Value>
NamedField named_field(Value* value, Value (*value_of)(const std::string& name)) {
  return {[value, value_of](const std::string& name) { *value = value_of(name); }, [value] { return std::string(to_string(*value)); }};
}

/// The same for an enum whose values, from 0 on, have these names.
template <class Enum>
NamedField enum_field(Enum* value, std::span<const char* const> names) {
  return {[value, names](const std::string& name) { *value = static_cast<Enum>(std::ranges::find(names, name) - names.begin()); },
          [value, names] { return std::string(names[static_cast<size_t>(*value)]); }};
}

using OptionField = std::variant<std::string*, int64_t*, int32_t*, uint64_t*, double*, float*, bool*, LogprobMode*,
                                 std::vector<int32_t>*, SizeField, CommaListField, RepeatedField, NamedField>;

/// Which values are allowed, beyond their type.
struct AnyValue {};
struct Range {
  double low = 0, high = 0;
  bool low_open = false, high_open = false;  // the bound itself is not allowed
};
struct OneOf {
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::string>> refused = {};  // names that a user may try, each with the reason against it
};
using OptionCheck = std::variant<AnyValue, Range, OneOf>;

inline constexpr double kNoBound = 9.2e18;  // above every int64 that makes sense: no upper bound is shown
inline Range at_least(double low) { return {low, kNoBound}; }
inline Range between(double low, double high) { return {low, high}; }
inline Range above_to(double low, double high) { return {.low = low, .high = high, .low_open = true}; }
inline Range from_below(double low, double high) { return {.low = low, .high = high, .high_open = true}; }

inline constexpr int64_t kAutoNumber = -1;  // of such options: Seer finds the value

struct OptionSpec {
  std::string name;   // kebab case, without dashes; the same in the file
  std::string value;  // what --help calls the value: N, FILE, SIZE; empty for a switch
  OptionField field;
  std::string help;   // meaning and unit, one line
  OptionCheck check = AnyValue{};
  bool or_auto = false;  // an integer or a size: the text "auto" sets it to kAutoNumber
};
/// The option of an enum field. REQUIRES: the names outlive it.
template <class Enum>
OptionSpec enum_option(std::string name, std::string value, Enum* field, std::span<const char* const> names, std::string help) {
  return {std::move(name), std::move(value), enum_field(field, names), std::move(help), OneOf{{names.begin(), names.end()}}};
}
struct OptionGroup {
  std::string title;
  std::vector<OptionSpec> options;
};

/// A subcommand as --help, the shell completions and the man page show it.
struct CommandSpec {
  std::string name;
  std::string what;                        // one line
  std::string examples;                    // text of lines, indented
  std::vector<OptionGroup> options;        // all of them
  std::string word = {};                   // what --help calls the word after the command (SHELL); empty: takes none
  std::vector<std::string> words = {};     // the values of that word
  std::string notes = {};                  // text of lines, before the examples
};

inline constexpr const char* kSizeUnits =
    "SIZE is in bytes; K, M, G, T and KiB, MiB, GiB, TiB count in 1024s, KB, MB, GB, TB in 1000s.";

/// True for an option that is given without a value.
bool is_switch(const OptionSpec& spec);
/// True for an option that may be given more than once.
bool is_repeatable(const OptionSpec& spec);
/// True for an option that is a list in the file.
bool is_list(const OptionSpec& spec);

enum class ValueType : uint8_t { kText, kInteger, kNumber, kBoolean, kOther };
/// Whether the option takes a value of this type in a file (for a list: as an entry).
bool accepts(const OptionSpec& spec, ValueType type);

/// "a, b, c"
std::string joined(const std::vector<std::string>& names);
/// What is accepted, to end a sentence: "an integer of at least 1".
std::string expectation(const OptionSpec& spec);
/// Sets the field: for a list one text per entry, else exactly one text (for a switch true or false). On error a list may be
/// half set; the detail is expectation(), with a suggestion for a mistyped name.
Status set_option(const OptionSpec& spec, const std::vector<std::string>& texts);
/// The field's value as TOML. TOML integers are signed; a larger one is written as text, which accepts() also takes.
std::string toml_value(const OptionSpec& spec);
/// The field's value for --help; empty if there is no default to show.
std::string default_text(const OptionSpec& spec);

}  // namespace seer
