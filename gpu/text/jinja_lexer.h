// Tokens of a Jinja template, with the whitespace rules of trim_blocks and lstrip_blocks applied, as Hugging Face
// sets both: a line break after a block tag or comment is dropped, and so is the white space before one that starts its
// line. `{%-` and `-%}` drop all white space on their side, `{%+` and `+%}` keep it. Pure functions.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "gpu/text/jinja_value.h"

namespace seer {

struct JinjaToken {
  enum class Kind : uint8_t {
    kData,
    kPrintBegin,
    kPrintEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kText,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;   // data, name, operator, or a string without its quotes and escapes
  JinjaValue number;  // of kInteger and kFloat
};

/// How an error names a token: "'endfor'", "the end of the template".
std::string describe(const JinjaToken& token);

/// All tokens of a template, the last one kEnd. Errors begin with the template's name and the line.
/// REQUIRES: source is valid UTF-8.
Result<std::vector<JinjaToken>> jinja_tokens(std::string_view source, const std::string& name);

}  // namespace seer
