// The tree of a parsed Jinja template. Made once by parse_jinja(), read by every rendering, never changed: thread-safe.
//
// Invariant: expressions and statements nest at most kJinjaSyntaxDepth deep, so that walking the tree cannot use up the
// stack.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/text/jinja_value.h"

namespace seer {

inline constexpr int kJinjaSyntaxDepth = 150;

class JinjaRun;
struct JinjaArguments;
using JinjaFilter = Result<JinjaValue> (*)(JinjaRun&, const JinjaValue&, const JinjaArguments&);
using JinjaTest = Result<bool> (*)(JinjaRun&, const JinjaValue&, const JinjaArguments&);
/// Null if there is none of that name.
JinjaFilter find_jinja_filter(std::string_view name);
JinjaTest find_jinja_test(std::string_view name);

struct JinjaExpr {
  enum class Kind : uint8_t {
    kLiteral,    // value
    kName,       // name
    kList,       // parts
    kTuple,      // parts
    kDict,       // parts: key, value, key, value...
    kAttribute,  // parts[0].name
    kItem,       // parts[0][parts[1]]
    kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], each of the last three may be null
    kCall,       // parts[0](arguments)
    kFilter,     // parts[0] | name(arguments); parts[0] is null in a filter block
    kTest,       // parts[0] is name(arguments)
    kNot,        // not parts[0]
    kNegative,   // -parts[0]
    kPositive,   // +parts[0]
    kAnd,        // parts[0] and parts[1]
    kOr,         // parts[0] or parts[1]
    kBinary,     // parts[0] <name> parts[1]: + - * / // % **
    kConcat,     // parts joined as text: ~
    kCompare,    // parts[0] <operators[0]> parts[1] <operators[1]> parts[2]...
    kTernary,    // parts[1] if parts[0] else parts[2], which may be null
    kField,      // ns.name as the target of a set: parts[0] is the namespace
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  int depth = 1;
  std::string name;
  JinjaValue value;
  std::vector<std::unique_ptr<JinjaExpr>> parts;
  std::vector<std::string> operators;
  JinjaFilter filter = nullptr;
  JinjaTest test = nullptr;
  // Arguments of a call, filter or test.
  std::vector<std::unique_ptr<JinjaExpr>> positional;
  std::vector<std::pair<std::string, std::unique_ptr<JinjaExpr>>> named;
  std::unique_ptr<JinjaExpr> star;       // *args
  std::unique_ptr<JinjaExpr> star_star;  // **kwargs
};
using JinjaExprPtr = std::unique_ptr<JinjaExpr>;

struct JinjaStatement;
using JinjaBody = std::vector<JinjaStatement>;

/// What a macro or a call block declares between parentheses.
struct JinjaParameters {
  std::vector<std::string> names;
  std::vector<JinjaExprPtr> defaults;  // of the last names
  bool takes_varargs = false;          // the body mentions varargs, kwargs, caller
  bool takes_kwargs = false;
  bool takes_caller = false;
};

struct JinjaStatement {
  enum class Kind : uint8_t {
    kText,      // text
    kPrint,     // exprs[0]
    kIf,        // exprs[i] chooses bodies[i]; the last body may be without one: else
    kFor,       // target in exprs[0], if exprs[1] (may be null): bodies[0], else bodies[1]
    kSet,       // target = exprs[0]
    kSetBlock,  // target = bodies[0], through the filters of exprs[0] (may be null)
    kMacro,     // text is its name; parameters, bodies[0]
    kCall,      // exprs[0] is the call; parameters, bodies[0]
    kFilter,    // bodies[0] through the filters of exprs[0]
    kWith,      // targets = exprs; bodies[0]
    kScope,     // bodies[0] with names of its own: a generation block, or the whole template
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  bool recursive = false;  // of kFor
  std::string text;
  JinjaExprPtr target;
  std::vector<JinjaExprPtr> targets;
  std::vector<JinjaExprPtr> exprs;
  std::vector<JinjaBody> bodies;
  /// Names that a body assigns before it reads them, by body. They begin undefined there, even if the context has them;
  /// see jinja_scopes.cpp. Not for kIf, whose bodies have no names of their own.
  std::vector<std::vector<std::string>> hidden;
  JinjaParameters parameters;
};

/// Fills in `hidden` of a statement and all inside it.
void find_hidden_names(JinjaStatement& root);

/// Parses a template into a kScope. `name` names it in errors. Fails on what Jinja refuses when it compiles, and on tags
/// that need other files (include, import, extends). REQUIRES: source is valid UTF-8.
Result<JinjaStatement> parse_jinja(std::string_view source, const std::string& name);

}  // namespace seer
