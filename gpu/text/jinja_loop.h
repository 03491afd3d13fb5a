// JinjaLoop: `loop` inside a for. JinjaMacro: what {% macro %} and {% call %} define. Both run a body of the template
// again.
#pragma once
#include <utility>

#include "gpu/text/jinja_run.h"

namespace seer {

/// Calling it renders the loop again over other items, if the loop says `recursive`.
struct JinjaLoop : JinjaCallable {
  JinjaLoop(const JinjaStatement& of, JinjaScopePtr around, JinjaItems over, int outer)
      : statement(of), scope(std::move(around)), items(std::move(over)), depth0(outer) {}

  /// loop.index and the others; undefined if there is none of that name.
  JinjaValue field(const std::shared_ptr<JinjaObject>& self, std::string_view name) const;
  Result<JinjaValue> call(JinjaRun& run, const JinjaArguments& arguments) override;
  std::string type_name() const override { return "LoopContext"; }

  const JinjaStatement& statement;
  JinjaScopePtr scope;
  JinjaItems items;
  size_t index0 = 0;
  int depth0 = 0;
  std::optional<JinjaValue> last_changed;  // the arguments of the last loop.changed(), a tuple
};

struct JinjaMacro : JinjaCallable {
  JinjaMacro(const JinjaStatement& of, JinjaScopePtr around) : statement(of), scope(std::move(around)) {}
  Result<JinjaValue> call(JinjaRun& run, const JinjaArguments& arguments) override;
  std::string type_name() const override { return "Macro"; }

  const JinjaStatement& statement;
  JinjaScopePtr scope;
};

/// A method together with its value.
struct JinjaMethod : JinjaCallable {
  using Function = Result<JinjaValue> (*)(JinjaRun&, const JinjaValue& self, const JinjaArguments&);
  JinjaMethod(JinjaValue of, Function run) : self(std::move(of)), function(run) {}
  Result<JinjaValue> call(JinjaRun& run, const JinjaArguments& arguments) override {
    return function(run, self, arguments);
  }
  std::string type_name() const override { return "builtin_function_or_method"; }
  int depth() const override { return self.depth() + 1; }

  JinjaValue self;
  Function function;
};

/// cycler(): next(), current, reset().
struct JinjaCycler : JinjaObject {
  JinjaItems items;
  size_t at = 0;
  JinjaValue field(const std::shared_ptr<JinjaObject>& self, std::string_view name) const;
  std::string type_name() const override { return "Cycler"; }
  int depth() const override { return items->depth + 1; }
};

}  // namespace seer
