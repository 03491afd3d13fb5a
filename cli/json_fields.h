// Reads fields of JSON objects that users wrote. An error is one sentence that begins with `found`: "prompts.jsonl:7: ". Used by
// jsonl.cpp and the dialects of `seer serve`.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/option.h"
#include "protocols/result.h"

namespace seer {

/// Numbers too large for a double are read too, as json_members() does.
using Json = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t, uint64_t, long double>;

/// Refuses JSON that Json would take too much for: deep nesting, which it copies and writes recursively, and objects with very many
/// names, of which it goes through all for each one. Text that is not JSON may pass.
Status check_shape(std::string_view json, const std::string& found);

/// Parses the text of a field, as json_members() returns it. Errors: those of check_shape().
Result<Json> field_value(std::string_view text, const std::string& found);

/// A value for a message; for a list or an object only the type, because its text may be long.
std::string shown_value(const Json& value);

/// The field as an integer of at least `low`.
template <class T>
Result<T> integer_field(const Json& value, const char* name, T low, const std::string& found) {
  const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                               : value.is_number_integer() && std::in_range<T>(value.get<int64_t>());  // "-0" too
  if (!fits || value.get<T>() < low) {
    const bool is_large = value.is_number() && value.get<double>() > static_cast<double>(low);
    return fail(Code::kInvalidArgument, found, name, " is ", shown_value(value), ": expected an integer of at least ", low,
                is_large || sizeof(T) < sizeof(int64_t) ? cat(" and at most ", std::numeric_limits<T>::max()) : "");
  }
  return value.get<T>();
}

Result<std::vector<int32_t>> token_ids(const Json& value, const char* name, const std::string& found);

/// The value as JSON text, its numbers with all their digits.
std::string written_value(const Json& value);

/// Reads a field that is also a flag of the command line. Takes its text as written, so that the same text gives the same bits as
/// the flag.
Status set_json_option(const OptionSpec& option, const std::string& text, const std::string& found);

/// Appends a number that reads back to the same float, also through a double; null if it is not finite.
void append_float(std::string& out, float value);

}  // namespace seer
