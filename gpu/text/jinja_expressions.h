// JinjaExpressions: the part of the parser (jinja_parser.cpp) that reads expressions and targets of assignments, by recursive descent
// over Jinja's grammar: one function per rule, named as in Jinja's own parser. From loose to tight: ternary, or, and, not, compare,
// + -, ~, * / // %, **, unary, then postfix (. [] ()) and | filters, is. Single owner, not thread-safe.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/text/jinja_lexer.h"
#include "gpu/text/jinja_syntax.h"

namespace seer {

class JinjaExpressions {
 protected:
  using Kind = JinjaToken::Kind;
  using Expr = JinjaExpr::Kind;
  using ExprResult = Result<JinjaExprPtr>;

  JinjaExpressions(std::vector<JinjaToken> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  // ---- tokens

  const JinjaToken& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const JinjaToken& next() {
    const JinjaToken& token = peek();
    at_ = std::min(at_ + 1, tokens_.size() - 1);
    return token;
  }
  bool is_name(std::string_view word, size_t ahead = 0) const {
    return peek(ahead).kind == Kind::kName && peek(ahead).text == word;
  }
  bool is_operator(std::string_view op, size_t ahead = 0) const {
    return peek(ahead).kind == Kind::kOperator && peek(ahead).text == op;
  }
  bool skip_name(std::string_view word) {
    if (!is_name(word)) return false;
    next();
    return true;
  }
  bool skip_operator(std::string_view op) {
    if (!is_operator(op)) return false;
    next();
    return true;
  }

  template <class... Ts>
  Error wrong_at(int line, const Ts&... what) const {
    return fail(Code::kInvalidArgument, "chat template ", name_, ", line ", line, ": ", what...);
  }
  template <class... Ts>
  Error wrong(const Ts&... expected) const {
    return wrong_at(peek().line, "met ", describe(peek()), "; expected ", expected...);
  }
  Status expect_operator(std::string_view op) {
    if (skip_operator(op)) return {};
    return wrong("'", op, "'");
  }
  Status expect(Kind kind) {
    if (peek().kind != kind) return wrong(kind == Kind::kBlockEnd ? "'%}'" : "'}}'");
    next();
    return {};
  }
  Result<std::string> expect_any_name(std::string_view what) {
    if (peek().kind != Kind::kName) return wrong(what);
    return next().text;
  }

  // ---- nodes

  template <class... Parts>
  static JinjaExprPtr node(Expr kind, int line, Parts... parts) {
    auto made = std::make_unique<JinjaExpr>();
    made->kind = kind;
    made->line = line;
    (made->parts.push_back(std::move(parts)), ...);
    return made;
  }
  static JinjaExprPtr literal(int line, JinjaValue value) {
    auto made = node(Expr::kLiteral, line);
    made->value = std::move(value);
    return made;
  }
  /// Sets the depth of the node; fails if it is too deep.
  ExprResult finished(JinjaExprPtr made) const {
    int depth = 0;
    const auto look = [&](const JinjaExprPtr& part) {
      if (part != nullptr) depth = std::max(depth, part->depth);
    };
    for (const auto& part : made->parts) look(part);
    for (const auto& part : made->positional) look(part);
    for (const auto& [word, part] : made->named) look(part);
    look(made->star);
    look(made->star_star);
    made->depth = depth + 1;
    if (made->depth <= kJinjaSyntaxDepth) return made;
    return wrong_at(made->line, "the expression nests more than ", kJinjaSyntaxDepth, " levels deep");
  }

  /// Counts the nesting of rules while it lives.
  class Nesting {
   public:
    explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
    ~Nesting() { --depth_; }
    Nesting(const Nesting&) = delete;

   private:
    int& depth_;
  };
  Status nesting_allowed() const {
    if (depth_ <= kJinjaSyntaxDepth) return {};
    return wrong_at(peek().line, "tags and brackets nest more than ", kJinjaSyntaxDepth, " levels deep");
  }

  // ---- targets of an assignment

  /// A name, ns.field if `fields`, or a tuple of these. `end` is the word that may follow.
  ExprResult assign_target(std::string_view end, bool fields);
  ExprResult one_target(bool fields);

  // ---- expressions

  /// One expression, or several with commas between them: a tuple. `end` is a word that may follow a last comma.
  ExprResult tuple_or_expression(std::string_view end = {}, bool ternary = true, bool in_parentheses = false);
  ExprResult expression(bool ternary = true);
  ExprResult or_rule();
  ExprResult and_rule();
  ExprResult not_rule();
  ExprResult compare_rule();
  ExprResult binary(int line, std::string op, JinjaExprPtr left, JinjaExprPtr right) const;
  ExprResult sum_rule();
  ExprResult concat_rule();
  ExprResult product_rule();
  ExprResult power_rule();
  ExprResult unary_rule(bool with_filters = true);
  ExprResult primary();
  ExprResult list_literal();
  ExprResult dict_literal();
  ExprResult postfix(JinjaExprPtr value);
  ExprResult subscript(JinjaExprPtr value);
  ExprResult tuple_of_subscripts();
  /// Reads "(arguments)" into a call, filter or test.
  Status arguments(JinjaExpr& made);
  ExprResult call_of(JinjaExprPtr callee);
  Result<std::string> dotted_name(std::string_view what);
  ExprResult filter_of(JinjaExprPtr value);
  ExprResult test_of(JinjaExprPtr value);
  /// "x is divisibleby 3": an argument without parentheses.
  bool begins_test_argument() const;

  std::vector<JinjaToken> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0;
  int conditional_ = 0;  // inside an if: an unknown filter is an error only once it is used, as in Jinja
  std::vector<JinjaParameters*> macros_;  // those open here
};

}  // namespace seer
