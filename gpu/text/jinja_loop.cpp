#include "gpu/text/jinja_loop.h"

namespace seer {
namespace {

Result<JinjaValue> cycle(JinjaRun&, const JinjaValue& self, const JinjaArguments& arguments) {
  if (arguments.positional.empty())
    return fail(Code::kInvalidArgument, "loop.cycle() was given nothing to cycle through");
  return arguments.positional[self.object_as<JinjaLoop>()->index0 % arguments.positional.size()];
}

Result<JinjaValue> changed(JinjaRun& run, const JinjaValue& self, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(JinjaValue now, run.made_tuple(arguments.positional));
  auto& last = self.object_as<JinjaLoop>()->last_changed;
  bool same = false;
  if (last) {
    SEER_ASSIGN_OR_RETURN(same, run.equal(*last, now));
  }
  last = std::move(now);
  return JinjaValue::of(!same);
}

Result<JinjaValue> cycler_next(JinjaRun&, const JinjaValue& self, const JinjaArguments&) {
  auto* cycler = self.object_as<JinjaCycler>();
  const size_t at = std::exchange(cycler->at, (cycler->at + 1) % cycler->items->items.size());
  return cycler->items->items[at];
}

Result<JinjaValue> cycler_reset(JinjaRun&, const JinjaValue& self, const JinjaArguments&) {
  self.object_as<JinjaCycler>()->at = 0;
  return JinjaValue::none();
}

JinjaValue method(const std::shared_ptr<JinjaObject>& self, JinjaMethod::Function function) {
  return JinjaValue::object(std::make_shared<JinjaMethod>(JinjaValue::object(self), function));
}

}  // namespace

JinjaValue JinjaLoop::field(const std::shared_ptr<JinjaObject>& self, std::string_view name) const {
  const size_t size = items->items.size();
  if (name == "index0") return JinjaValue::count(index0);
  if (name == "index") return JinjaValue::count(index0 + 1);
  if (name == "first") return JinjaValue::of(index0 == 0);
  if (name == "last") return JinjaValue::of(index0 + 1 >= size);
  if (name == "length") return JinjaValue::count(size);
  if (name == "revindex") return JinjaValue::of(static_cast<Int128>(size) - static_cast<Int128>(index0));
  if (name == "revindex0") return JinjaValue::of(static_cast<Int128>(size) - static_cast<Int128>(index0) - 1);
  if (name == "depth") return JinjaValue::of(Int128{depth0 + 1});
  if (name == "depth0") return JinjaValue::of(Int128{depth0});
  if (name == "previtem") return index0 > 0 ? items->items[index0 - 1] : JinjaValue();
  if (name == "nextitem") return index0 + 1 < size ? items->items[index0 + 1] : JinjaValue();
  if (name == "cycle") return method(self, cycle);
  if (name == "changed") return method(self, changed);
  return JinjaValue();
}

Result<JinjaValue> JinjaLoop::call(JinjaRun& run, const JinjaArguments& arguments) {
  if (!statement.recursive)
    return fail(Code::kInvalidArgument, "loop() is called, but its {% for %} does not say 'recursive'");
  SEER_ASSIGN_OR_RETURN(const auto given, bind_arguments("loop", arguments, {"iterable"}, 1));
  std::string out;
  SEER_RETURN_IF_ERROR(run.run_loop(statement, *given[0], scope, depth0 + 1, out));
  return run.made_text(std::move(out));
}

Result<JinjaValue> JinjaMacro::call(JinjaRun& run, const JinjaArguments& arguments) {
  SEER_ASSIGN_OR_RETURN(const JinjaScopePtr own, run.macro_scope(statement, scope, arguments));
  std::string out;
  const auto flow = run.run_body(statement.bodies[0], own, out);
  if (!flow.ok()) return flow.error();
  return run.made_text(std::move(out));
}

JinjaValue JinjaCycler::field(const std::shared_ptr<JinjaObject>& self, std::string_view name) const {
  if (name == "current") return items->items[at];
  if (name == "next") return method(self, cycler_next);
  if (name == "reset") return method(self, cycler_reset);
  return JinjaValue();
}

}  // namespace seer
