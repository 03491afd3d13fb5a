#include "gpu/text/jinja_expressions.h"

namespace seer {

// ---- targets of an assignment

JinjaExpressions::ExprResult JinjaExpressions::assign_target(std::string_view end, bool fields) {
  const int line = peek().line;
  auto tuple = node(Expr::kTuple, line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->parts.empty()) SEER_RETURN_IF_ERROR(expect_operator(","));
    if (is_operator(")") || is_operator("=") || peek().kind == Kind::kBlockEnd || (!end.empty() && is_name(end)))
      break;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr part, one_target(fields));
    tuple->parts.push_back(std::move(part));
    if (!is_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return finished(std::move(tuple));
  if (tuple->parts.empty()) return wrong("a name to assign to");
  return std::move(tuple->parts[0]);
}

JinjaExpressions::ExprResult JinjaExpressions::one_target(bool fields) {
  const Nesting nesting(depth_);
  SEER_RETURN_IF_ERROR(nesting_allowed());
  const int line = peek().line;
  if (skip_operator("(")) {
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr inner, assign_target({}, fields));
    SEER_RETURN_IF_ERROR(expect_operator(")"));
    return inner;
  }
  for (const std::string_view constant : {"true", "false", "True", "False", "none", "None"})
    if (is_name(constant)) return wrong("a name to assign to");
  SEER_ASSIGN_OR_RETURN(std::string name, expect_any_name("a name to assign to"));
  auto variable = node(Expr::kName, line);
  variable->name = std::move(name);
  if (!fields || !skip_operator(".")) return variable;
  auto field = node(Expr::kField, line, std::move(variable));
  SEER_ASSIGN_OR_RETURN(field->name, expect_any_name("the name of a field"));
  return field;
}

// ---- expressions

JinjaExpressions::ExprResult JinjaExpressions::tuple_or_expression(std::string_view end, bool ternary, bool in_parentheses) {
  const int line = peek().line;
  auto tuple = node(Expr::kTuple, line);
  bool is_tuple = false;
  while (true) {
    if (!tuple->parts.empty()) SEER_RETURN_IF_ERROR(expect_operator(","));
    if (peek().kind == Kind::kPrintEnd || peek().kind == Kind::kBlockEnd || is_operator(")") ||
        (!end.empty() && is_name(end)))
      break;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr part, expression(ternary));
    tuple->parts.push_back(std::move(part));
    if (!is_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple || (tuple->parts.empty() && in_parentheses)) return finished(std::move(tuple));
  if (tuple->parts.empty()) return wrong("an expression");
  return std::move(tuple->parts[0]);
}

JinjaExpressions::ExprResult JinjaExpressions::expression(bool ternary) {
  const Nesting nesting(depth_);
  SEER_RETURN_IF_ERROR(nesting_allowed());
  if (!ternary) return or_rule();
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, or_rule());
  while (is_name("if")) {
    const int line = next().line;
    ++conditional_;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr condition, or_rule());
    JinjaExprPtr otherwise;
    if (skip_name("else")) {
      SEER_ASSIGN_OR_RETURN(otherwise, expression());
    }
    --conditional_;
    SEER_ASSIGN_OR_RETURN(
        value, finished(node(Expr::kTernary, line, std::move(condition), std::move(value), std::move(otherwise))));
  }
  return value;
}

JinjaExpressions::ExprResult JinjaExpressions::or_rule() {
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, and_rule());
  while (is_name("or")) {
    const int line = next().line;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, and_rule());
    SEER_ASSIGN_OR_RETURN(left, finished(node(Expr::kOr, line, std::move(left), std::move(right))));
  }
  return left;
}

JinjaExpressions::ExprResult JinjaExpressions::and_rule() {
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, not_rule());
  while (is_name("and")) {
    const int line = next().line;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, not_rule());
    SEER_ASSIGN_OR_RETURN(left, finished(node(Expr::kAnd, line, std::move(left), std::move(right))));
  }
  return left;
}

JinjaExpressions::ExprResult JinjaExpressions::not_rule() {
  if (!is_name("not")) return compare_rule();
  const Nesting nesting(depth_);
  SEER_RETURN_IF_ERROR(nesting_allowed());
  const int line = next().line;
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, not_rule());
  return finished(node(Expr::kNot, line, std::move(value)));
}

JinjaExpressions::ExprResult JinjaExpressions::compare_rule() {
  const int line = peek().line;
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr first, sum_rule());
  auto compare = node(Expr::kCompare, line, std::move(first));
  while (true) {
    const bool symbol =
        peek().kind == Kind::kOperator && (is_operator("==") || is_operator("!=") || is_operator("<") ||
                                           is_operator("<=") || is_operator(">") || is_operator(">="));
    if (symbol || is_name("in")) {
      compare->operators.push_back(next().text);
    } else if (is_name("not") && is_name("in", 1)) {
      next();
      next();
      compare->operators.push_back("not in");
    } else {
      break;
    }
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, sum_rule());
    compare->parts.push_back(std::move(right));
  }
  if (compare->operators.empty()) return std::move(compare->parts[0]);
  return finished(std::move(compare));
}

JinjaExpressions::ExprResult JinjaExpressions::binary(int line, std::string op, JinjaExprPtr left, JinjaExprPtr right) const {
  auto made = node(Expr::kBinary, line, std::move(left), std::move(right));
  made->name = std::move(op);
  return finished(std::move(made));
}

JinjaExpressions::ExprResult JinjaExpressions::sum_rule() {
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, concat_rule());
  while (is_operator("+") || is_operator("-")) {
    const JinjaToken op = next();
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, concat_rule());
    SEER_ASSIGN_OR_RETURN(left, binary(op.line, op.text, std::move(left), std::move(right)));
  }
  return left;
}

JinjaExpressions::ExprResult JinjaExpressions::concat_rule() {
  const int line = peek().line;
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr first, product_rule());
  if (!is_operator("~")) return first;
  auto concat = node(Expr::kConcat, line, std::move(first));
  while (skip_operator("~")) {
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr part, product_rule());
    concat->parts.push_back(std::move(part));
  }
  return finished(std::move(concat));
}

JinjaExpressions::ExprResult JinjaExpressions::product_rule() {
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, power_rule());
  while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
    const JinjaToken op = next();
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, power_rule());
    SEER_ASSIGN_OR_RETURN(left, binary(op.line, op.text, std::move(left), std::move(right)));
  }
  return left;
}

JinjaExpressions::ExprResult JinjaExpressions::power_rule() {
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, unary_rule());
  while (is_operator("**")) {
    const int line = next().line;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, unary_rule());
    SEER_ASSIGN_OR_RETURN(left, binary(line, "**", std::move(left), std::move(right)));
  }
  return left;
}

JinjaExpressions::ExprResult JinjaExpressions::unary_rule(bool with_filters) {
  const Nesting nesting(depth_);
  SEER_RETURN_IF_ERROR(nesting_allowed());
  JinjaExprPtr value;
  if (is_operator("-") || is_operator("+")) {
    const JinjaToken op = next();
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr of, unary_rule(/*with_filters=*/false));
    SEER_ASSIGN_OR_RETURN(value,
                          finished(node(op.text == "-" ? Expr::kNegative : Expr::kPositive, op.line, std::move(of))));
  } else {
    SEER_ASSIGN_OR_RETURN(value, primary());
  }
  SEER_ASSIGN_OR_RETURN(value, postfix(std::move(value)));
  if (!with_filters) return value;
  while (true) {
    if (skip_operator("|")) {
      SEER_ASSIGN_OR_RETURN(value, filter_of(std::move(value)));
    } else if (is_name("is")) {
      SEER_ASSIGN_OR_RETURN(value, test_of(std::move(value)));
    } else if (is_operator("(")) {
      SEER_ASSIGN_OR_RETURN(value, call_of(std::move(value)));
    } else {
      return value;
    }
  }
}

JinjaExpressions::ExprResult JinjaExpressions::primary() {
  const JinjaToken token = peek();
  if (token.kind == Kind::kName) {
    next();
    if (token.text == "true" || token.text == "True") return literal(token.line, JinjaValue::of(true));
    if (token.text == "false" || token.text == "False") return literal(token.line, JinjaValue::of(false));
    if (token.text == "none" || token.text == "None") return literal(token.line, JinjaValue::none());
    for (JinjaParameters* macro : macros_) {
      macro->takes_varargs |= token.text == "varargs";
      macro->takes_kwargs |= token.text == "kwargs";
      macro->takes_caller |= token.text == "caller";
    }
    auto variable = node(Expr::kName, token.line);
    variable->name = token.text;
    return variable;
  }
  if (token.kind == Kind::kText) {
    std::string text;
    while (peek().kind == Kind::kText) text += next().text;  // "a" "b" is one string, as in Python
    return literal(token.line, JinjaValue::text(std::move(text)));
  }
  if (token.kind == Kind::kInteger || token.kind == Kind::kFloat) return literal(token.line, next().number);
  if (skip_operator("(")) {
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr inner, tuple_or_expression({}, true, /*in_parentheses=*/true));
    SEER_RETURN_IF_ERROR(expect_operator(")"));
    return inner;
  }
  if (is_operator("[")) return list_literal();
  if (is_operator("{")) return dict_literal();
  return wrong("an expression");
}

JinjaExpressions::ExprResult JinjaExpressions::list_literal() {
  auto list = node(Expr::kList, next().line);
  while (!is_operator("]")) {
    if (!list->parts.empty()) SEER_RETURN_IF_ERROR(expect_operator(","));
    if (is_operator("]")) break;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr item, expression());
    list->parts.push_back(std::move(item));
  }
  next();
  return finished(std::move(list));
}

JinjaExpressions::ExprResult JinjaExpressions::dict_literal() {
  auto dict = node(Expr::kDict, next().line);
  while (!is_operator("}")) {
    if (!dict->parts.empty()) SEER_RETURN_IF_ERROR(expect_operator(","));
    if (is_operator("}")) break;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr key, expression());
    SEER_RETURN_IF_ERROR(expect_operator(":"));
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, expression());
    dict->parts.push_back(std::move(key));
    dict->parts.push_back(std::move(value));
  }
  next();
  return finished(std::move(dict));
}

JinjaExpressions::ExprResult JinjaExpressions::postfix(JinjaExprPtr value) {
  while (true) {
    if (is_operator(".")) {
      const int line = next().line;
      if (peek().kind == Kind::kName) {
        auto attribute = node(Expr::kAttribute, line, std::move(value));
        attribute->name = next().text;
        SEER_ASSIGN_OR_RETURN(value, finished(std::move(attribute)));
      } else if (peek().kind == Kind::kInteger) {
        auto index = literal(line, next().number);
        SEER_ASSIGN_OR_RETURN(value, finished(node(Expr::kItem, line, std::move(value), std::move(index))));
      } else {
        return wrong("a name or a number after '.'");
      }
    } else if (is_operator("[")) {
      SEER_ASSIGN_OR_RETURN(value, subscript(std::move(value)));
    } else if (is_operator("(")) {
      SEER_ASSIGN_OR_RETURN(value, call_of(std::move(value)));
    } else {
      return value;
    }
  }
}

JinjaExpressions::ExprResult JinjaExpressions::subscript(JinjaExprPtr value) {
  const int line = next().line;
  JinjaExprPtr first;
  if (!is_operator(":")) {
    SEER_ASSIGN_OR_RETURN(first, tuple_of_subscripts());
    if (skip_operator("]")) return finished(node(Expr::kItem, line, std::move(value), std::move(first)));
  }
  auto slice = node(Expr::kSlice, line, std::move(value), std::move(first));
  for (int i = 0; i < 2; ++i) {
    JinjaExprPtr part;
    if (skip_operator(":") && !is_operator("]") && !is_operator(":")) {
      SEER_ASSIGN_OR_RETURN(part, expression());
    }
    slice->parts.push_back(std::move(part));
  }
  SEER_RETURN_IF_ERROR(expect_operator("]"));
  return finished(std::move(slice));
}

JinjaExpressions::ExprResult JinjaExpressions::tuple_of_subscripts() {
  const int line = peek().line;
  if (is_operator("]")) return wrong("an index");
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr first, expression());
  if (!is_operator(",")) return first;
  auto tuple = node(Expr::kTuple, line, std::move(first));
  while (skip_operator(",")) {
    if (is_operator("]")) break;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr part, expression());
    tuple->parts.push_back(std::move(part));
  }
  return finished(std::move(tuple));
}

Status JinjaExpressions::arguments(JinjaExpr& made) {
  SEER_RETURN_IF_ERROR(expect_operator("("));
  bool first = true;
  while (!is_operator(")")) {
    if (!first) {
      SEER_RETURN_IF_ERROR(expect_operator(","));
      if (is_operator(")")) break;
    }
    first = false;
    if (is_operator("*") && made.star == nullptr && made.star_star == nullptr) {
      next();
      SEER_ASSIGN_OR_RETURN(made.star, expression());
    } else if (is_operator("**") && made.star_star == nullptr) {
      next();
      SEER_ASSIGN_OR_RETURN(made.star_star, expression());
    } else if (peek().kind == Kind::kName && is_operator("=", 1) && made.star_star == nullptr) {
      const std::string key = next().text;
      next();
      for (const auto& [known, value] : made.named)
        if (known == key) return wrong_at(peek().line, "the argument '", key, "' is given twice");
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, expression());
      made.named.emplace_back(key, std::move(value));
    } else {
      if (made.star != nullptr || made.star_star != nullptr || !made.named.empty())
        return wrong("a named argument, since one came before");
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, expression());
      made.positional.push_back(std::move(value));
    }
  }
  next();
  return {};
}

JinjaExpressions::ExprResult JinjaExpressions::call_of(JinjaExprPtr callee) {
  auto call = node(Expr::kCall, peek().line, std::move(callee));
  SEER_RETURN_IF_ERROR(arguments(*call));
  return finished(std::move(call));
}

Result<std::string> JinjaExpressions::dotted_name(std::string_view what) {
  SEER_ASSIGN_OR_RETURN(std::string name, expect_any_name(what));
  while (skip_operator(".")) {
    SEER_ASSIGN_OR_RETURN(const std::string part, expect_any_name(what));
    name += cat('.', part);
  }
  return name;
}

JinjaExpressions::ExprResult JinjaExpressions::filter_of(JinjaExprPtr value) {
  auto made = node(Expr::kFilter, peek().line, std::move(value));
  SEER_ASSIGN_OR_RETURN(made->name, dotted_name("the name of a filter"));
  made->filter = find_jinja_filter(made->name);
  if (made->filter == nullptr && conditional_ == 0)
    return wrong_at(made->line, "there is no filter named '", made->name, "'");
  if (is_operator("(")) SEER_RETURN_IF_ERROR(arguments(*made));
  return finished(std::move(made));
}

JinjaExpressions::ExprResult JinjaExpressions::test_of(JinjaExprPtr value) {
  const int line = next().line;
  const bool negated = skip_name("not");
  auto made = node(Expr::kTest, line, std::move(value));
  SEER_ASSIGN_OR_RETURN(made->name, dotted_name("the name of a test"));
  made->test = find_jinja_test(made->name);
  if (made->test == nullptr && conditional_ == 0) return wrong_at(line, "there is no test named '", made->name, "'");
  if (is_operator("(")) {
    SEER_RETURN_IF_ERROR(arguments(*made));
  } else if (begins_test_argument()) {
    if (is_name("is")) return wrong("no second test: tests cannot be chained with 'is'");
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr argument, primary());
    SEER_ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
    made->positional.push_back(std::move(argument));
  }
  SEER_ASSIGN_OR_RETURN(JinjaExprPtr test, finished(std::move(made)));
  if (!negated) return test;
  return finished(node(Expr::kNot, line, std::move(test)));
}

bool JinjaExpressions::begins_test_argument() const {
  if (is_operator("[") || is_operator("{")) return true;
  const Kind kind = peek().kind;
  if (kind == Kind::kText || kind == Kind::kInteger || kind == Kind::kFloat) return true;
  return kind == Kind::kName && !is_name("else") && !is_name("or") && !is_name("and");
}

}  // namespace seer
