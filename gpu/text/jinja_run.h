// JinjaRun: one rendering of a parsed template: the variables, the output, and what has been spent of the limits.
// Made by ChatTemplate::render() and destroyed when it returns; single owner, not thread-safe. Filters, tests and methods
// spend from its limits.
//
// Invariants:
//  (1) every loop turn, evaluated expression, item and 16 bytes of text made cost one step: time and memory are bounded;
//  (2) a scope in which a macro was defined lives until the run ends, which then empties it, so that macros and scopes may
//      point at each other.
#pragma once
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/text/jinja_syntax.h"
#include "gpu/text/jinja_value.h"

namespace seer {

struct JinjaLimits {
  int64_t steps_max = 10'000'000;
  size_t output_bytes_max = size_t{64} << 20;  // also of any intermediate text or list
  int depth_max = 600;                         // expressions, tags and macros inside each other while rendering
};

struct JinjaArguments {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;
};

/// The arguments by the names of the parameters, as Python binds them: null for one that was not given. The first
/// `required` must be given.
Result<std::vector<const JinjaValue*>> bind_arguments(std::string_view function, const JinjaArguments& given,
                                                      std::initializer_list<std::string_view> parameters,
                                                      size_t required = 0);

/// The names that a body can see: its own, then those of the scope around it.
struct JinjaScope {
  std::shared_ptr<JinjaScope> parent;
  std::vector<std::pair<std::string_view, JinjaValue>> variables;  // names live in the template or in the context

  void set(std::string_view name, JinjaValue value);
  const JinjaValue* find_here(std::string_view name) const;
};
using JinjaScopePtr = std::shared_ptr<JinjaScope>;
/// A new scope inside another one, for bodies[body] of a statement.
JinjaScopePtr inner_scope(const JinjaScopePtr& around, const JinjaStatement& statement, size_t body = 0);

/// A thing that a template can call.
struct JinjaCallable : JinjaObject {
  virtual Result<JinjaValue> call(JinjaRun& run, const JinjaArguments& arguments) = 0;
};

class JinjaRun {
 public:
  JinjaRun(const std::string& name, const JinjaLimits& limits, std::optional<std::tm> now)
      : name_(name), limits_(limits), steps_left_(limits.steps_max), now_(now) {}
  ~JinjaRun();
  JinjaRun(const JinjaRun&) = delete;

  /// Renders the template with the fields of `context`, a dict, as its variables.
  Result<std::string> render(const JinjaStatement& root, const JinjaValue& context);

  // ---- for filters, tests and methods

  Status spend(size_t steps);
  size_t bytes_max() const { return limits_.output_bytes_max; }
  /// A text, paid for by its length. Fails if it is longer than allowed.
  Result<JinjaValue> made_text(std::string text, bool safe = false);
  Result<JinjaValue> made_list(std::vector<JinjaValue> items);
  Result<JinjaValue> made_tuple(std::vector<JinjaValue> items);
  Result<JinjaValue> made_dict(JinjaDict dict);
  Result<JinjaValue> made_iterator(std::vector<JinjaValue> items, std::string type = "generator",
                                   std::optional<Error> failure = {});
  Result<std::string> str(const JinjaValue& value);
  /// The items that a for loop would go through. Fails if the value has none.
  Result<JinjaItems> items(const JinjaValue& value);
  /// len(). Fails if the value has no length.
  Result<size_t> length(const JinjaValue& value);
  /// Fails if a dict cannot have such a key. Pays for looking it up among `keys`.
  Status usable_key(const JinjaValue& key, size_t keys);
  Result<bool> equal(const JinjaValue& a, const JinjaValue& b);
  Result<bool> less(const JinjaValue& a, const JinjaValue& b);
  Result<bool> contains(const JinjaValue& container, const JinjaValue& item);
  /// value.name and value[key] of Jinja: an attribute or an item, whichever there is; else undefined.
  Result<JinjaValue> attribute(const JinjaValue& value, const std::string& name);
  Result<JinjaValue> item(const JinjaValue& value, const JinjaValue& key);
  /// ==, !=, <, <=, >, >=, in, not in.
  Result<bool> compare(std::string_view op, const JinjaValue& left, const JinjaValue& right);
  Result<JinjaValue> binary(const std::string& op, const JinjaValue& left, const JinjaValue& right);
  /// Keeps a namespace until the run ends, which then empties it.
  void keep(std::shared_ptr<JinjaNamespace> space) { namespaces_.push_back(std::move(space)); }
  const std::optional<std::tm>& now() const { return now_; }

  // ---- for macros and loops

  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  Result<Flow> run_body(const JinjaBody& body, const JinjaScopePtr& scope, std::string& out);
  Status run_loop(const JinjaStatement& loop, const JinjaValue& over, const JinjaScopePtr& scope, int depth,
                  std::string& out);
  Result<JinjaValue> evaluate(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<JinjaScopePtr> macro_scope(const JinjaStatement& macro, const JinjaScopePtr& around,
                                    const JinjaArguments& arguments);

 private:
  Result<Flow> run_statement(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out);
  Result<Flow> run_if(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out);
  Status run_for(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out);
  Status run_call(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out);
  Result<Flow> run_with(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out);
  Result<Flow> run_set_block(const JinjaStatement& statement, const JinjaScopePtr& scope);
  Result<Flow> run_filter_block(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out);
  void define_macro(const JinjaStatement& statement, const JinjaScopePtr& scope);
  void keep(const JinjaScopePtr& scope);
  Status assign(const JinjaExpr& target, JinjaValue value, const JinjaScopePtr& scope);
  Status append(std::string& out, std::string_view text);

  Result<JinjaValue> evaluate_kind(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<JinjaValue> evaluate_name(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<std::vector<JinjaValue>> evaluate_all(const std::vector<JinjaExprPtr>& exprs, const JinjaScopePtr& scope);
  Result<JinjaValue> evaluate_dict(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<JinjaValue> evaluate_slice(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<JinjaValue> evaluate_call(const JinjaExpr& expr, const JinjaScopePtr& scope,
                                   const JinjaValue* caller = nullptr);
  Result<JinjaValue> evaluate_sign(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<JinjaValue> evaluate_compare(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<JinjaValue> evaluate_concat(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<JinjaValue> evaluate_filter(const JinjaExpr& expr, const JinjaScopePtr& scope, const JinjaValue* block);
  Result<JinjaValue> evaluate_test(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Result<JinjaArguments> evaluate_arguments(const JinjaExpr& expr, const JinjaScopePtr& scope);
  Error located(Error error, int line);

  const std::string& name_;
  const JinjaLimits& limits_;
  int64_t steps_left_;
  std::optional<std::tm> now_;
  int depth_ = 0;
  bool located_ = false;  // the error on its way up names its line already
  std::vector<JinjaScopePtr> scopes_;
  std::vector<std::shared_ptr<JinjaNamespace>> namespaces_;
};

/// The items that value[start:stop:step] selects from `size` items.
struct JinjaSlice {
  Int128 start = 0, step = 1;
  size_t count = 0;
  size_t at(size_t i) const { return static_cast<size_t>(start + static_cast<Int128>(i) * step); }
  /// REQUIRES: step is not 0.
  static JinjaSlice of(std::optional<Int128> start, std::optional<Int128> stop, std::optional<Int128> step,
                       size_t size);
};
Result<JinjaValue> slice_text(JinjaRun& run, const JinjaText& text, const JinjaSlice& slice);
JinjaValue slice_range(const JinjaRange& range, const JinjaSlice& slice);

/// An error about an operation on something undefined, naming it if its name is known.
Error undefined_error(const JinjaValue& value, std::string_view doing);

/// range, dict, namespace, raise_exception, strftime_now, joiner, cycler; null if there is none of that name.
std::shared_ptr<JinjaCallable> find_jinja_function(std::string_view name);

/// A method of a text, dict, list or tuple; null if there is none of that name.
std::shared_ptr<JinjaCallable> find_jinja_method(const JinjaValue& of, std::string_view name);

/// Fails if upper and lower case of the text are not known: beyond ASCII, in a build without utf8proc.
Status case_known(std::string_view text);
/// str.replace(); count < 0: everywhere.
Result<std::string> jinja_replaced(JinjaRun& run, std::string_view text, std::string_view from, std::string_view to,
                                   int64_t count = -1);
/// "%s and %d" % values.
Result<std::string> percent_format(JinjaRun& run, const std::string& format, const JinjaValue& values);
/// The text with & < > ' " as HTML writes them.
std::string html_escaped(std::string_view text);

}  // namespace seer
