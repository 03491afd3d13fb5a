#include "gpu/text/jinja_run.h"

#include <algorithm>

#include "gpu/text/jinja_loop.h"

namespace seer {
namespace {

/// Counts the depth of evaluation while it lives.
class Depth {
 public:
  explicit Depth(int& depth) : depth_(depth) { ++depth_; }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;

 private:
  int& depth_;
};

Error too_deep(int depth_max) {
  return fail(Code::kFull, "tags, expressions and macros nest more than ", depth_max, " levels deep while rendering");
}

}  // namespace

JinjaScopePtr inner_scope(const JinjaScopePtr& around, const JinjaStatement& statement, size_t body) {
  auto made = std::make_shared<JinjaScope>();
  made->parent = around;
  if (body < statement.hidden.size())
    for (const std::string& name : statement.hidden[body])
      made->variables.emplace_back(name, JinjaValue::undefined(&name));
  return made;
}

void JinjaScope::set(std::string_view name, JinjaValue value) {
  for (auto& [known, held] : variables) {
    if (known != name) continue;
    held = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

const JinjaValue* JinjaScope::find_here(std::string_view name) const {
  for (const auto& [known, value] : variables)
    if (known == name) return &value;
  return nullptr;
}

JinjaRun::~JinjaRun() {
  // Macros and namespaces may point at each other in circles: break these before the pointers are destroyed.
  for (const auto& space : namespaces_) space->fields.clear();
  for (const auto& scope : scopes_) {
    scope->variables.clear();
    scope->parent.reset();
  }
}

Result<std::string> JinjaRun::render(const JinjaStatement& root, const JinjaValue& context) {
  auto scope = std::make_shared<JinjaScope>();
  for (const auto& [key, value] : context.as_dict().entries()) scope->variables.emplace_back(key.bytes(), value);
  std::string out;
  const auto flow = run_body(root.bodies[0], inner_scope(scope, root), out);
  if (!flow.ok()) return flow.error();
  return out;
}

Error JinjaRun::located(Error error, int line) {
  if (located_) return error;
  located_ = true;
  error.detail = cat("chat template ", name_, ", line ", line, ": ", error.detail);
  return error;
}

Status JinjaRun::spend(size_t steps) {
  steps_left_ -= static_cast<int64_t>(std::min<size_t>(steps, INT64_MAX / 2));
  if (steps_left_ >= 0) return {};
  return fail(Code::kFull, "rendering takes more than ", limits_.steps_max, " steps, which is the limit");
}

Result<JinjaValue> JinjaRun::made_text(std::string text, bool safe) {
  if (text.size() > bytes_max())
    return fail(Code::kFull, "a text of ", text.size(), " bytes was made; ", bytes_max(), " are allowed");
  SEER_RETURN_IF_ERROR(spend(text.size() / 16));
  return JinjaValue::text(std::move(text), safe);
}

namespace {
Status depth_allowed(const JinjaValue& value) {
  if (value.depth() <= kJinjaValueDepth) return {};
  return fail(Code::kFull, "a ", value.type_name(), " nested more than ", kJinjaValueDepth, " levels deep was made");
}
}  // namespace

Result<JinjaValue> JinjaRun::made_list(std::vector<JinjaValue> items) {
  SEER_RETURN_IF_ERROR(spend(items.size()));
  JinjaValue list = JinjaValue::list(std::move(items));
  SEER_RETURN_IF_ERROR(depth_allowed(list));
  return list;
}

Result<JinjaValue> JinjaRun::made_tuple(std::vector<JinjaValue> items) {
  SEER_RETURN_IF_ERROR(spend(items.size()));
  JinjaValue tuple = JinjaValue::tuple(std::move(items));
  SEER_RETURN_IF_ERROR(depth_allowed(tuple));
  return tuple;
}

Result<JinjaValue> JinjaRun::made_dict(JinjaDict dict) {
  SEER_RETURN_IF_ERROR(spend(dict.size()));
  JinjaValue value = JinjaValue::dict(std::move(dict));
  SEER_RETURN_IF_ERROR(depth_allowed(value));
  return value;
}

Result<JinjaValue> JinjaRun::made_iterator(std::vector<JinjaValue> items, std::string type,
                                           std::optional<Error> failure) {
  SEER_ASSIGN_OR_RETURN(const JinjaValue list, made_list(std::move(items)));
  auto iterator = std::make_shared<JinjaIterator>();
  iterator->items = list.as_list();
  iterator->type = std::move(type);
  iterator->failure = std::move(failure);
  JinjaValue made = JinjaValue::object(std::move(iterator));
  SEER_RETURN_IF_ERROR(depth_allowed(made));
  return made;
}

Result<std::string> JinjaRun::str(const JinjaValue& value) {
  SEER_ASSIGN_OR_RETURN(std::string text, jinja_str(value, bytes_max()));
  SEER_RETURN_IF_ERROR(spend(text.size() / 16));
  return text;
}

Result<JinjaItems> JinjaRun::items(const JinjaValue& value) {
  if (const auto list = value.as_list()) return list;
  std::vector<JinjaValue> items;
  if (value.is_text()) {
    SEER_RETURN_IF_ERROR(spend(value.as_text().chars));
    for (const std::string_view one : split_chars(value.bytes()))
      items.push_back(JinjaValue::text(std::string(one), value.as_text().safe));
  } else if (value.is_dict()) {
    SEER_RETURN_IF_ERROR(spend(value.as_dict().size()));
    for (const auto& [key, of_key] : value.as_dict().entries()) items.push_back(key);
  } else if (auto* iterator = value.object_as<JinjaIterator>()) {
    const size_t first = std::exchange(iterator->next, iterator->items->items.size());
    if (iterator->failure) return *iterator->failure;
    if (first == 0) return iterator->items;
    items.assign(iterator->items->items.begin() + static_cast<ptrdiff_t>(first), iterator->items->items.end());
  } else if (const auto* view = value.object_as<JinjaView>()) {
    return view->items;
  } else if (const auto* range = value.object_as<JinjaRange>()) {
    SEER_RETURN_IF_ERROR(spend(static_cast<size_t>(range->size())));
    for (Int128 i = 0; i < range->size(); ++i) items.push_back(JinjaValue::of(range->at(i)));
  } else if (!value.is_undefined()) {
    return fail(Code::kInvalidArgument, "a value of type ", value.type_name(),
                " has no items to go through; expected a list, dict or text");
  }
  return JinjaValue::list(std::move(items)).as_list();
}

Result<size_t> JinjaRun::length(const JinjaValue& value) {
  if (value.is_undefined()) return size_t{0};
  if (value.is_text()) return value.as_text().chars;
  if (const auto list = value.as_list()) return list->items.size();
  if (value.is_dict()) return value.as_dict().size();
  if (const auto* view = value.object_as<JinjaView>()) return view->items->items.size();
  if (const auto* range = value.object_as<JinjaRange>()) return static_cast<size_t>(range->size());
  const char* hint = value.object_as<JinjaIterator>() != nullptr ? "; put |list before it" : "";
  return fail(Code::kInvalidArgument, "a value of type ", value.type_name(), " has no length", hint);
}

// ---- statements

Status JinjaRun::append(std::string& out, std::string_view text) {
  if (out.size() + text.size() > bytes_max())
    return fail(Code::kFull, "the output is longer than ", bytes_max(), " bytes, which is the limit");
  out += text;
  return spend(text.size() / 16);
}

Result<JinjaRun::Flow> JinjaRun::run_body(const JinjaBody& body, const JinjaScopePtr& scope, std::string& out) {
  const Depth depth(depth_);
  if (depth_ > limits_.depth_max) return too_deep(limits_.depth_max);
  for (const JinjaStatement& statement : body) {
    auto flow = run_statement(statement, scope, out);
    if (!flow.ok()) return located(flow.error(), statement.line);
    if (*flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<JinjaRun::Flow> JinjaRun::run_statement(const JinjaStatement& statement, const JinjaScopePtr& scope,
                                               std::string& out) {
  using Kind = JinjaStatement::Kind;
  SEER_RETURN_IF_ERROR(spend(1));
  switch (statement.kind) {
    case Kind::kText:
      SEER_RETURN_IF_ERROR(append(out, statement.text));
      break;
    case Kind::kPrint: {
      SEER_ASSIGN_OR_RETURN(const JinjaValue value, evaluate(*statement.exprs[0], scope));
      if (value.is_text()) {
        SEER_RETURN_IF_ERROR(append(out, value.bytes()));
        break;
      }
      SEER_ASSIGN_OR_RETURN(const std::string text, str(value));
      SEER_RETURN_IF_ERROR(append(out, text));
      break;
    }
    case Kind::kIf:
      return run_if(statement, scope, out);
    case Kind::kFor:
      SEER_RETURN_IF_ERROR(run_for(statement, scope, out));
      break;
    case Kind::kSet: {
      SEER_ASSIGN_OR_RETURN(JinjaValue value, evaluate(*statement.exprs[0], scope));
      SEER_RETURN_IF_ERROR(assign(*statement.target, std::move(value), scope));
      break;
    }
    case Kind::kSetBlock:
      return run_set_block(statement, scope);
    case Kind::kMacro:
      define_macro(statement, scope);
      break;
    case Kind::kCall:
      SEER_RETURN_IF_ERROR(run_call(statement, scope, out));
      break;
    case Kind::kFilter:
      return run_filter_block(statement, scope, out);
    case Kind::kWith:
      return run_with(statement, scope, out);
    case Kind::kScope:
      return run_body(statement.bodies[0], inner_scope(scope, statement), out);
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<JinjaRun::Flow> JinjaRun::run_if(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out) {
  for (size_t i = 0; i < statement.exprs.size(); ++i) {
    SEER_ASSIGN_OR_RETURN(const JinjaValue condition, evaluate(*statement.exprs[i], scope));
    if (jinja_true(condition)) return run_body(statement.bodies[i], scope, out);
  }
  if (statement.bodies.size() > statement.exprs.size()) return run_body(statement.bodies.back(), scope, out);
  return Flow::kNext;
}

Status JinjaRun::run_for(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out) {
  SEER_ASSIGN_OR_RETURN(const JinjaValue over, evaluate(*statement.exprs[0], scope));
  return run_loop(statement, over, scope, 0, out);
}

Status JinjaRun::run_loop(const JinjaStatement& statement, const JinjaValue& over, const JinjaScopePtr& scope,
                          int depth, std::string& out) {
  SEER_ASSIGN_OR_RETURN(JinjaItems all, items(over));
  if (statement.exprs[1] != nullptr) {
    std::vector<JinjaValue> chosen;
    for (const JinjaValue& one : all->items) {
      const auto turn = std::make_shared<JinjaScope>();
      turn->parent = scope;
      SEER_RETURN_IF_ERROR(assign(*statement.target, one, turn));
      SEER_ASSIGN_OR_RETURN(const JinjaValue condition, evaluate(*statement.exprs[1], turn));
      if (jinja_true(condition)) chosen.push_back(one);
    }
    SEER_ASSIGN_OR_RETURN(const JinjaValue list, made_list(std::move(chosen)));
    all = list.as_list();
  }
  auto loop = std::make_shared<JinjaLoop>(statement, scope, all, depth);
  bool any_finished = false;  // a turn that ends with break or continue does not count: Jinja's own rule
  for (; loop->index0 < all->items.size(); ++loop->index0) {
    SEER_RETURN_IF_ERROR(spend(1));
    const JinjaScopePtr turn = inner_scope(scope, statement);
    turn->set("loop", JinjaValue::object(loop));
    SEER_RETURN_IF_ERROR(assign(*statement.target, all->items[loop->index0], turn));
    SEER_ASSIGN_OR_RETURN(const Flow flow, run_body(statement.bodies[0], turn, out));
    if (flow == Flow::kBreak) break;
    any_finished |= flow == Flow::kNext;
  }
  if (!any_finished && statement.bodies.size() > 1) {
    const auto flow = run_body(statement.bodies[1], inner_scope(scope, statement, 1), out);
    if (!flow.ok()) return flow.error();
  }
  return {};
}

Status JinjaRun::assign(const JinjaExpr& target, JinjaValue value, const JinjaScopePtr& scope) {
  if (target.kind == JinjaExpr::Kind::kName) {
    scope->set(target.name, std::move(value));
    return {};
  }
  if (target.kind == JinjaExpr::Kind::kField) {
    SEER_ASSIGN_OR_RETURN(const JinjaValue holder, evaluate(*target.parts[0], scope));
    auto* space = holder.object_as<JinjaNamespace>();
    if (space == nullptr)
      return fail(Code::kInvalidArgument, "cannot set ", target.parts[0]->name, '.', target.name, ": '",
                  target.parts[0]->name, "' is of type ", holder.type_name(), "; expected a namespace()");
    space->set(target.name, std::move(value));
    return {};
  }
  SEER_ASSIGN_OR_RETURN(const JinjaItems parts, items(value));
  if (parts->items.size() != target.parts.size())
    return fail(Code::kInvalidArgument, "cannot unpack ", parts->items.size(), " values into ", target.parts.size(),
                " names");
  for (size_t i = 0; i < target.parts.size(); ++i)
    SEER_RETURN_IF_ERROR(assign(*target.parts[i], parts->items[i], scope));
  return {};
}

Result<JinjaRun::Flow> JinjaRun::run_set_block(const JinjaStatement& statement, const JinjaScopePtr& scope) {
  std::string text;
  const JinjaScopePtr block = inner_scope(scope, statement);
  SEER_ASSIGN_OR_RETURN(const Flow flow, run_body(statement.bodies[0], block, text));
  if (flow != Flow::kNext) return flow;
  SEER_ASSIGN_OR_RETURN(JinjaValue value, made_text(std::move(text)));
  if (statement.exprs[0] != nullptr) {
    SEER_ASSIGN_OR_RETURN(value, evaluate_filter(*statement.exprs[0], block, &value));
  }
  SEER_RETURN_IF_ERROR(assign(*statement.target, std::move(value), scope));
  return Flow::kNext;
}

Result<JinjaRun::Flow> JinjaRun::run_filter_block(const JinjaStatement& statement, const JinjaScopePtr& scope,
                                                  std::string& out) {
  std::string text;
  const JinjaScopePtr block = inner_scope(scope, statement);
  SEER_ASSIGN_OR_RETURN(const Flow flow, run_body(statement.bodies[0], block, text));
  if (flow != Flow::kNext) return flow;
  SEER_ASSIGN_OR_RETURN(JinjaValue value, made_text(std::move(text)));
  SEER_ASSIGN_OR_RETURN(value, evaluate_filter(*statement.exprs[0], block, &value));
  SEER_ASSIGN_OR_RETURN(const std::string filtered, str(value));
  SEER_RETURN_IF_ERROR(append(out, filtered));
  return Flow::kNext;
}

Result<JinjaRun::Flow> JinjaRun::run_with(const JinjaStatement& statement, const JinjaScopePtr& scope,
                                          std::string& out) {
  const JinjaScopePtr block = inner_scope(scope, statement);
  for (size_t i = 0; i < statement.targets.size(); ++i) {
    SEER_ASSIGN_OR_RETURN(JinjaValue value,
                          evaluate(*statement.exprs[i], scope));  // does not see the targets before it
    SEER_RETURN_IF_ERROR(assign(*statement.targets[i], std::move(value), block));
  }
  return run_body(statement.bodies[0], block, out);
}

void JinjaRun::keep(const JinjaScopePtr& scope) {
  if (scopes_.empty() || scopes_.back() != scope) scopes_.push_back(scope);
}

void JinjaRun::define_macro(const JinjaStatement& statement, const JinjaScopePtr& scope) {
  keep(scope);
  scope->set(statement.text, JinjaValue::object(std::make_shared<JinjaMacro>(statement, scope)));
}

Status JinjaRun::run_call(const JinjaStatement& statement, const JinjaScopePtr& scope, std::string& out) {
  keep(scope);
  const JinjaValue caller = JinjaValue::object(std::make_shared<JinjaMacro>(statement, scope));
  SEER_ASSIGN_OR_RETURN(const JinjaValue value, evaluate_call(*statement.exprs[0], scope, &caller));
  SEER_ASSIGN_OR_RETURN(const std::string text, str(value));
  return append(out, text);
}

Result<JinjaScopePtr> JinjaRun::macro_scope(const JinjaStatement& macro, const JinjaScopePtr& around,
                                            const JinjaArguments& arguments) {
  const JinjaParameters& parameters = macro.parameters;
  const std::string_view name = macro.kind == JinjaStatement::Kind::kCall ? std::string_view("caller") : macro.text;
  const JinjaScopePtr scope = inner_scope(around, macro);
  const size_t taken = std::min(parameters.names.size(), arguments.positional.size());
  std::vector<std::pair<std::string, JinjaValue>> named = arguments.named;
  const auto take_named = [&](const std::string& key) -> std::optional<JinjaValue> {
    const auto found = std::find_if(named.begin(), named.end(), [&](const auto& entry) { return entry.first == key; });
    if (found == named.end()) return std::nullopt;
    JinjaValue value = std::move(found->second);
    named.erase(found);
    return value;
  };
  const size_t first_default = parameters.names.size() - parameters.defaults.size();
  for (size_t i = 0; i < parameters.names.size(); ++i) {
    std::optional<JinjaValue> value = i < taken ? arguments.positional[i] : take_named(parameters.names[i]);
    if (!value && i >= first_default) {
      auto otherwise = evaluate(*parameters.defaults[i - first_default], scope);
      if (!otherwise.ok()) return otherwise.error();
      value = *std::move(otherwise);
    }
    scope->set(parameters.names[i], value ? *std::move(value) : JinjaValue::undefined(&parameters.names[i]));
  }
  const bool own_caller =
      std::find(parameters.names.begin(), parameters.names.end(), "caller") != parameters.names.end();
  if (parameters.takes_caller && !own_caller) {
    auto caller = take_named("caller");
    scope->set("caller", caller ? *std::move(caller) : JinjaValue());
  }
  if (parameters.takes_kwargs) {
    JinjaDict rest;
    for (auto& [key, value] : named) rest.set(JinjaValue::text(key), std::move(value));
    SEER_ASSIGN_OR_RETURN(JinjaValue kwargs, made_dict(std::move(rest)));
    scope->set("kwargs", std::move(kwargs));
  } else if (!named.empty()) {
    return fail(Code::kInvalidArgument, "the macro ", name, "() has no parameter named '", named[0].first, "'");
  }
  if (parameters.takes_varargs) {
    SEER_ASSIGN_OR_RETURN(JinjaValue rest, made_tuple({arguments.positional.begin() + static_cast<ptrdiff_t>(taken),
                                                       arguments.positional.end()}));
    scope->set("varargs", std::move(rest));
  } else if (arguments.positional.size() > taken) {
    return fail(Code::kInvalidArgument, "the macro ", name, "() was given ", arguments.positional.size(),
                " arguments; expected at most ", parameters.names.size());
  }
  return scope;
}

// ---- expressions

Result<JinjaValue> JinjaRun::evaluate(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  const Depth depth(depth_);
  if (depth_ > limits_.depth_max) return located(too_deep(limits_.depth_max), expr.line);
  if (const Status paid = spend(1); !paid.ok()) return located(paid.error(), expr.line);
  auto value = evaluate_kind(expr, scope);
  if (!value.ok()) return located(value.error(), expr.line);
  return value;
}

Result<JinjaValue> JinjaRun::evaluate_kind(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  using Kind = JinjaExpr::Kind;
  switch (expr.kind) {
    case Kind::kLiteral:
      return expr.value;
    case Kind::kName:
      return evaluate_name(expr, scope);
    case Kind::kList:
    case Kind::kTuple: {
      SEER_ASSIGN_OR_RETURN(std::vector<JinjaValue> items, evaluate_all(expr.parts, scope));
      return expr.kind == Kind::kList ? made_list(std::move(items)) : made_tuple(std::move(items));
    }
    case Kind::kDict:
      return evaluate_dict(expr, scope);
    case Kind::kAttribute: {
      SEER_ASSIGN_OR_RETURN(const JinjaValue of, evaluate(*expr.parts[0], scope));
      return attribute(of, expr.name);
    }
    case Kind::kItem: {
      SEER_ASSIGN_OR_RETURN(const JinjaValue of, evaluate(*expr.parts[0], scope));
      SEER_ASSIGN_OR_RETURN(const JinjaValue key, evaluate(*expr.parts[1], scope));
      return item(of, key);
    }
    case Kind::kSlice:
      return evaluate_slice(expr, scope);
    case Kind::kCall:
      return evaluate_call(expr, scope);
    case Kind::kFilter:
      return evaluate_filter(expr, scope, nullptr);
    case Kind::kTest:
      return evaluate_test(expr, scope);
    case Kind::kNot: {
      SEER_ASSIGN_OR_RETURN(const JinjaValue of, evaluate(*expr.parts[0], scope));
      return JinjaValue::of(!jinja_true(of));
    }
    case Kind::kNegative:
    case Kind::kPositive:
      return evaluate_sign(expr, scope);
    case Kind::kAnd:
    case Kind::kOr: {
      SEER_ASSIGN_OR_RETURN(JinjaValue left, evaluate(*expr.parts[0], scope));
      if (jinja_true(left) == (expr.kind == Kind::kOr)) return left;
      return evaluate(*expr.parts[1], scope);
    }
    case Kind::kBinary: {
      SEER_ASSIGN_OR_RETURN(const JinjaValue left, evaluate(*expr.parts[0], scope));
      SEER_ASSIGN_OR_RETURN(const JinjaValue right, evaluate(*expr.parts[1], scope));
      return binary(expr.name, left, right);
    }
    case Kind::kConcat:
      return evaluate_concat(expr, scope);
    case Kind::kCompare:
      return evaluate_compare(expr, scope);
    case Kind::kTernary: {
      SEER_ASSIGN_OR_RETURN(const JinjaValue condition, evaluate(*expr.parts[0], scope));
      if (jinja_true(condition)) return evaluate(*expr.parts[1], scope);
      return expr.parts[2] != nullptr ? evaluate(*expr.parts[2], scope) : JinjaValue();
    }
    case Kind::kField:
      break;
  }
  SEER_CHECK(false, static_cast<int>(expr.kind));
  return JinjaValue();
}

Result<JinjaValue> JinjaRun::evaluate_name(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  for (const JinjaScope* at = scope.get(); at != nullptr; at = at->parent.get())
    if (const JinjaValue* found = at->find_here(expr.name)) return *found;
  if (auto function = find_jinja_function(expr.name)) return JinjaValue::object(std::move(function));
  return JinjaValue::undefined(&expr.name);
}

Result<std::vector<JinjaValue>> JinjaRun::evaluate_all(const std::vector<JinjaExprPtr>& exprs,
                                                       const JinjaScopePtr& scope) {
  std::vector<JinjaValue> values;
  values.reserve(exprs.size());
  for (const JinjaExprPtr& expr : exprs) {
    SEER_ASSIGN_OR_RETURN(JinjaValue value, evaluate(*expr, scope));
    values.push_back(std::move(value));
  }
  return values;
}

Result<JinjaValue> JinjaRun::evaluate_dict(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  JinjaDict dict;
  for (size_t i = 0; i < expr.parts.size(); i += 2) {
    SEER_ASSIGN_OR_RETURN(JinjaValue key, evaluate(*expr.parts[i], scope));
    SEER_ASSIGN_OR_RETURN(JinjaValue value, evaluate(*expr.parts[i + 1], scope));
    SEER_RETURN_IF_ERROR(usable_key(key, dict.size()));
    dict.set(std::move(key), std::move(value));
  }
  return made_dict(std::move(dict));
}

Result<JinjaValue> JinjaRun::evaluate_slice(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  SEER_ASSIGN_OR_RETURN(const JinjaValue of, evaluate(*expr.parts[0], scope));
  std::optional<Int128> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expr.parts[i + 1] == nullptr) continue;
    SEER_ASSIGN_OR_RETURN(const JinjaValue bound, evaluate(*expr.parts[i + 1], scope));
    if (bound.is_none()) continue;
    bounds[i] = bound.integer();
    if (!bounds[i])
      return fail(Code::kInvalidArgument, "a bound of a slice is of type ", bound.type_name(), "; expected an integer");
  }
  if (of.is_undefined()) return undefined_error(of, "it has no slices");
  const JinjaItems list = of.as_list();
  const bool sliced = of.is_text() || list != nullptr || of.object_as<JinjaRange>() != nullptr;
  if (!sliced)
    return fail(Code::kInvalidArgument, "a value of type ", of.type_name(),
                " has no slices; expected a list or a text");
  if (bounds[2] == Int128{0}) return fail(Code::kInvalidArgument, "a slice has the step 0; expected another");
  SEER_ASSIGN_OR_RETURN(const size_t size, length(of));
  const JinjaSlice slice = JinjaSlice::of(bounds[0], bounds[1], bounds[2], size);
  if (of.is_text()) return slice_text(*this, of.as_text(), slice);
  if (list == nullptr) return slice_range(*of.object_as<JinjaRange>(), slice);
  std::vector<JinjaValue> items;
  for (size_t i = 0; i < slice.count; ++i) items.push_back(list->items[slice.at(i)]);
  return of.is_list() ? made_list(std::move(items)) : made_tuple(std::move(items));
}

Result<JinjaArguments> JinjaRun::evaluate_arguments(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  JinjaArguments arguments;
  SEER_ASSIGN_OR_RETURN(arguments.positional, evaluate_all(expr.positional, scope));
  for (const auto& [key, of_key] : expr.named) {
    SEER_ASSIGN_OR_RETURN(JinjaValue value, evaluate(*of_key, scope));
    arguments.named.emplace_back(key, std::move(value));
  }
  if (expr.star != nullptr) {
    SEER_ASSIGN_OR_RETURN(const JinjaValue more, evaluate(*expr.star, scope));
    SEER_ASSIGN_OR_RETURN(const JinjaItems all, items(more));
    SEER_RETURN_IF_ERROR(spend(all->items.size()));
    arguments.positional.insert(arguments.positional.end(), all->items.begin(), all->items.end());
  }
  if (expr.star_star == nullptr) return arguments;
  SEER_ASSIGN_OR_RETURN(const JinjaValue more, evaluate(*expr.star_star, scope));
  if (!more.is_dict())
    return fail(Code::kInvalidArgument, "** is followed by a ", more.type_name(), "; expected a dict");
  SEER_RETURN_IF_ERROR(spend(more.as_dict().size()));
  for (const auto& [key, value] : more.as_dict().entries()) {
    if (!key.is_text())
      return fail(Code::kInvalidArgument, "** is followed by a dict with a key of type ", key.type_name(),
                  "; expected texts");
    for (const auto& [known, of_known] : arguments.named)
      if (known == key.bytes()) return fail(Code::kInvalidArgument, "the argument '", known, "' is given twice");
    arguments.named.emplace_back(key.bytes(), value);
  }
  return arguments;
}

Result<JinjaValue> JinjaRun::evaluate_call(const JinjaExpr& expr, const JinjaScopePtr& scope,
                                           const JinjaValue* caller) {
  const JinjaExpr& name = *expr.parts[0];
  SEER_ASSIGN_OR_RETURN(const JinjaValue callee, evaluate(name, scope));
  SEER_ASSIGN_OR_RETURN(JinjaArguments arguments, evaluate_arguments(expr, scope));
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  if (auto* callable = callee.object_as<JinjaCallable>()) {
    const JinjaValue held = callee;  // lives through the call, whatever it assigns
    return callable->call(*this, arguments);
  }
  if (name.kind == JinjaExpr::Kind::kAttribute && callee.is_undefined())
    return fail(Code::kInvalidArgument, "there is no method .", name.name,
                "() here; check the type of what it is called on");
  return fail(Code::kInvalidArgument, name.name.empty() ? std::string("the expression") : cat("'", name.name, "'"),
              " is ", callee.is_undefined() ? std::string("undefined") : cat("of type ", callee.type_name()),
              "; expected a function or macro to call");
}

Result<JinjaValue> JinjaRun::evaluate_sign(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  SEER_ASSIGN_OR_RETURN(const JinjaValue of, evaluate(*expr.parts[0], scope));
  const bool negative = expr.kind == JinjaExpr::Kind::kNegative;
  if (of.is_float()) return JinjaValue::of(negative ? -of.as_float() : of.as_float());
  const auto whole = of.integer();
  if (!whole)
    return fail(Code::kInvalidArgument, "a sign precedes a value of type ", of.type_name(), "; expected a number");
  Int128 result = *whole;
  if (negative && __builtin_sub_overflow(Int128{0}, *whole, &result))
    return fail(Code::kInvalidArgument, "a number leaves the range of 128 bits");
  return JinjaValue::of(result);
}

Result<JinjaValue> JinjaRun::evaluate_concat(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  std::string text;
  for (const JinjaExprPtr& part : expr.parts) {
    SEER_ASSIGN_OR_RETURN(const JinjaValue value, evaluate(*part, scope));
    SEER_ASSIGN_OR_RETURN(const std::string more, jinja_str(value, bytes_max()));
    SEER_RETURN_IF_ERROR(append(text, more));
  }
  return JinjaValue::text(std::move(text));
}

Result<JinjaValue> JinjaRun::evaluate_compare(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  SEER_ASSIGN_OR_RETURN(JinjaValue left, evaluate(*expr.parts[0], scope));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    SEER_ASSIGN_OR_RETURN(JinjaValue right, evaluate(*expr.parts[i + 1], scope));
    SEER_ASSIGN_OR_RETURN(const bool holds, compare(expr.operators[i], left, right));
    if (!holds) return JinjaValue::of(false);
    left = std::move(right);
  }
  return JinjaValue::of(true);
}

Result<JinjaValue> JinjaRun::evaluate_filter(const JinjaExpr& expr, const JinjaScopePtr& scope,
                                             const JinjaValue* block) {
  JinjaValue value;
  if (expr.parts[0] == nullptr) {
    SEER_CHECK(block != nullptr, expr.name);
    value = *block;
  } else if (block != nullptr) {  // inner filters of a block
    SEER_ASSIGN_OR_RETURN(value, evaluate_filter(*expr.parts[0], scope, block));
  } else {
    SEER_ASSIGN_OR_RETURN(value, evaluate(*expr.parts[0], scope));
  }
  if (expr.filter == nullptr) return fail(Code::kInvalidArgument, "there is no filter named '", expr.name, "'");
  SEER_ASSIGN_OR_RETURN(const JinjaArguments arguments, evaluate_arguments(expr, scope));
  return expr.filter(*this, value, arguments);
}

Result<JinjaValue> JinjaRun::evaluate_test(const JinjaExpr& expr, const JinjaScopePtr& scope) {
  SEER_ASSIGN_OR_RETURN(const JinjaValue value, evaluate(*expr.parts[0], scope));
  if (expr.test == nullptr) return fail(Code::kInvalidArgument, "there is no test named '", expr.name, "'");
  SEER_ASSIGN_OR_RETURN(const JinjaArguments arguments, evaluate_arguments(expr, scope));
  SEER_ASSIGN_OR_RETURN(const bool holds, expr.test(*this, value, arguments));
  return JinjaValue::of(holds);
}

}  // namespace seer
