// parse_jinja(): recursive descent over Jinja's grammar, one function per rule, named as in Jinja's own parser. From
// loose to tight: ternary, or, and, not, compare, + -, ~, * / // %, **, unary, then postfix (. [] ()) and | filters,
// is.
#include <algorithm>

#include "gpu/text/jinja_lexer.h"
#include "gpu/text/jinja_syntax.h"
#include "gpu/text/utf8.h"

namespace seer {
namespace {

using Kind = JinjaToken::Kind;
using Expr = JinjaExpr::Kind;
using Tag = JinjaStatement::Kind;
using ExprResult = Result<JinjaExprPtr>;

class Parser {
 public:
  Parser(std::vector<JinjaToken> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

  Result<JinjaBody> run() {
    SEER_ASSIGN_OR_RETURN(JinjaBody body, statements_until({}));
    return body;
  }

 private:
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

  // ---- statements

  /// Statements up to a tag with one of these names, which is then the current token; without names, up to the end.
  /// `opened` is the line of the tag that they end.
  Result<JinjaBody> statements_until(const std::vector<std::string_view>& ends, int opened = 0) {
    const Nesting nesting(depth_);
    SEER_RETURN_IF_ERROR(nesting_allowed());
    JinjaBody body;
    while (peek().kind != Kind::kEnd) {
      const int line = peek().line;
      if (peek().kind == Kind::kData) {
        JinjaStatement text;
        text.line = line;
        text.text = next().text;
        body.push_back(std::move(text));
      } else if (peek().kind == Kind::kPrintBegin) {
        next();
        SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, tuple_or_expression());
        SEER_RETURN_IF_ERROR(expect(Kind::kPrintEnd));
        JinjaStatement print;
        print.kind = Tag::kPrint;
        print.line = line;
        print.exprs.push_back(std::move(value));
        body.push_back(std::move(print));
      } else {
        next();  // {%
        if (peek().kind == Kind::kName && std::find(ends.begin(), ends.end(), peek().text) != ends.end()) return body;
        SEER_RETURN_IF_ERROR(statement(ends, body));
        SEER_RETURN_IF_ERROR(expect(Kind::kBlockEnd));
      }
    }
    if (ends.empty()) return body;
    return wrong(tags_text(ends), " for the tag of line ", opened);
  }

  static std::string tags_text(const std::vector<std::string_view>& ends) {
    std::string text;
    for (const std::string_view end : ends) text += cat(text.empty() ? "" : " or ", "{% ", end, " %}");
    return text;
  }

  /// The body after a tag's opening, up to {% endname %}, which is consumed except for its '%}'.
  Result<JinjaBody> body_until(std::string_view end, int opened) {
    SEER_RETURN_IF_ERROR(begin_body());
    SEER_ASSIGN_OR_RETURN(JinjaBody body, statements_until({end}, opened));
    next();
    return body;
  }
  Status begin_body() {
    skip_operator(":");
    return expect(Kind::kBlockEnd);
  }

  Status statement(const std::vector<std::string_view>& ends, JinjaBody& body) {
    if (peek().kind != Kind::kName) return wrong("the name of a tag");
    const JinjaToken tag = next();
    JinjaStatement made;
    made.line = tag.line;
    const auto parsed = [&]() -> Status {
      if (tag.text == "if") return if_tag(made);
      if (tag.text == "for") return for_tag(made);
      if (tag.text == "set") return set_tag(made);
      if (tag.text == "macro") return macro_tag(made);
      if (tag.text == "call") return call_tag(made);
      if (tag.text == "filter") return filter_tag(made);
      if (tag.text == "with") return with_tag(made);
      if (tag.text == "generation") return generation_tag(made);
      if (tag.text == "break" || tag.text == "continue") return loop_control(tag, made);
      if (tag.text == "print") return print_tag(body, made);
      return unknown_tag(tag, ends);
    }();
    SEER_RETURN_IF_ERROR(parsed);
    body.push_back(std::move(made));
    return {};
  }

  Error unknown_tag(const JinjaToken& tag, const std::vector<std::string_view>& ends) const {
    for (const std::string_view other : {"include", "import", "from", "extends", "block", "autoescape"})
      if (tag.text == other)
        return wrong_at(tag.line, "the tag {% ", tag.text, " %} is not supported in chat templates");
    const std::string also = ends.empty() ? "" : cat(", or ", tags_text(ends));
    return wrong_at(tag.line, "met the tag {% ", tag.text,
                    " %}; expected if, for, set, macro, call, filter, with, generation, break, continue or raw", also);
  }

  Status if_tag(JinjaStatement& made) {
    made.kind = Tag::kIf;
    ++conditional_;
    while (true) {
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr condition, tuple_or_expression({}, /*ternary=*/false));
      made.exprs.push_back(std::move(condition));
      SEER_RETURN_IF_ERROR(begin_body());
      SEER_ASSIGN_OR_RETURN(JinjaBody then, statements_until({"elif", "else", "endif"}, made.line));
      made.bodies.push_back(std::move(then));
      const std::string end = next().text;
      if (end == "else") {
        SEER_ASSIGN_OR_RETURN(JinjaBody otherwise, body_until("endif", made.line));
        made.bodies.push_back(std::move(otherwise));
      }
      if (end != "elif") break;
    }
    --conditional_;
    return {};
  }

  Status for_tag(JinjaStatement& made) {
    made.kind = Tag::kFor;
    SEER_ASSIGN_OR_RETURN(made.target, assign_target("in", /*fields=*/false));
    if (!skip_name("in")) return wrong("'in'");
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr items, tuple_or_expression("recursive", /*ternary=*/false));
    made.exprs.push_back(std::move(items));
    JinjaExprPtr condition;
    if (skip_name("if")) {
      SEER_ASSIGN_OR_RETURN(condition, expression());
    }
    made.exprs.push_back(std::move(condition));
    made.recursive = skip_name("recursive");
    SEER_RETURN_IF_ERROR(begin_body());
    ++loops_;
    SEER_ASSIGN_OR_RETURN(JinjaBody body, statements_until({"endfor", "else"}, made.line));
    --loops_;
    made.bodies.push_back(std::move(body));
    if (next().text == "else") {
      SEER_ASSIGN_OR_RETURN(JinjaBody otherwise, body_until("endfor", made.line));
      made.bodies.push_back(std::move(otherwise));
    }
    return {};
  }

  Status set_tag(JinjaStatement& made) {
    SEER_ASSIGN_OR_RETURN(made.target, assign_target({}, /*fields=*/true));
    if (skip_operator("=")) {
      made.kind = Tag::kSet;
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, tuple_or_expression());
      made.exprs.push_back(std::move(value));
      return {};
    }
    made.kind = Tag::kSetBlock;
    JinjaExprPtr filters;
    while (is_operator("|")) {
      next();
      SEER_ASSIGN_OR_RETURN(filters, filter_of(std::move(filters)));
    }
    made.exprs.push_back(std::move(filters));
    SEER_ASSIGN_OR_RETURN(JinjaBody body, body_until("endset", made.line));
    made.bodies.push_back(std::move(body));
    return {};
  }

  Status parameters(JinjaParameters& made) {
    SEER_RETURN_IF_ERROR(expect_operator("("));
    while (!is_operator(")")) {
      if (!made.names.empty()) SEER_RETURN_IF_ERROR(expect_operator(","));
      SEER_ASSIGN_OR_RETURN(std::string name, expect_any_name("the name of a parameter"));
      if (std::find(made.names.begin(), made.names.end(), name) != made.names.end())
        return wrong_at(peek().line, "the parameter '", name, "' is declared twice");
      if (skip_operator("=")) {
        SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, expression());
        made.defaults.push_back(std::move(value));
      } else if (!made.defaults.empty()) {
        return wrong("'=' and a default for '", name, "', since a parameter before it has one");
      }
      made.names.push_back(std::move(name));
    }
    next();
    return {};
  }

  /// The body of a macro or call block. Break and continue do not reach out of it.
  Status macro_body(JinjaStatement& made, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    macros_.push_back(&made.parameters);
    auto body = body_until(end, made.line);
    macros_.pop_back();
    loops_ = loops;
    if (!body.ok()) return body.error();
    made.bodies.push_back(*std::move(body));
    return {};
  }

  Status macro_tag(JinjaStatement& made) {
    made.kind = Tag::kMacro;
    SEER_ASSIGN_OR_RETURN(made.text, expect_any_name("the name of a macro"));
    SEER_RETURN_IF_ERROR(parameters(made.parameters));
    return macro_body(made, "endmacro");
  }

  Status call_tag(JinjaStatement& made) {
    made.kind = Tag::kCall;
    if (is_operator("(")) SEER_RETURN_IF_ERROR(parameters(made.parameters));
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr call, expression());
    if (call->kind != Expr::kCall) return wrong_at(made.line, "{% call %} must be followed by the call of a macro");
    made.exprs.push_back(std::move(call));
    return macro_body(made, "endcall");
  }

  Status filter_tag(JinjaStatement& made) {
    made.kind = Tag::kFilter;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr filters, filter_of(nullptr));
    while (skip_operator("|")) {
      SEER_ASSIGN_OR_RETURN(filters, filter_of(std::move(filters)));
    }
    made.exprs.push_back(std::move(filters));
    SEER_ASSIGN_OR_RETURN(JinjaBody body, body_until("endfilter", made.line));
    made.bodies.push_back(std::move(body));
    return {};
  }

  Status with_tag(JinjaStatement& made) {
    made.kind = Tag::kWith;
    while (peek().kind != Kind::kBlockEnd) {
      if (!made.targets.empty()) SEER_RETURN_IF_ERROR(expect_operator(","));
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr target, assign_target({}, /*fields=*/false));
      SEER_RETURN_IF_ERROR(expect_operator("="));
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, expression());
      made.targets.push_back(std::move(target));
      made.exprs.push_back(std::move(value));
    }
    SEER_ASSIGN_OR_RETURN(JinjaBody body, body_until("endwith", made.line));
    made.bodies.push_back(std::move(body));
    return {};
  }

  Status generation_tag(JinjaStatement& made) {
    made.kind = Tag::kScope;
    return macro_body(made, "endgeneration");
  }

  Status loop_control(const JinjaToken& tag, JinjaStatement& made) {
    made.kind = tag.text == "break" ? Tag::kBreak : Tag::kContinue;
    if (loops_ > 0) return {};
    return wrong_at(tag.line, "met {% ", tag.text, " %} outside of a for loop");
  }

  Status print_tag(JinjaBody& body, JinjaStatement& made) {
    made.kind = Tag::kPrint;
    if (peek().kind == Kind::kBlockEnd) {
      made.kind = Tag::kText;
      return {};
    }
    while (true) {
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, expression());
      made.exprs.push_back(std::move(value));
      if (peek().kind == Kind::kBlockEnd) return {};
      SEER_RETURN_IF_ERROR(expect_operator(","));
      JinjaStatement print;
      print.kind = Tag::kPrint;
      print.line = made.line;
      print.exprs.swap(made.exprs);
      body.push_back(std::move(print));
    }
  }

  // ---- targets of an assignment

  /// A name, ns.field if `fields`, or a tuple of these. `end` is the word that may follow.
  ExprResult assign_target(std::string_view end, bool fields) {
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

  ExprResult one_target(bool fields) {
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

  /// One expression, or several with commas between them: a tuple. `end` is a word that may follow a last comma.
  ExprResult tuple_or_expression(std::string_view end = {}, bool ternary = true, bool in_parentheses = false) {
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

  ExprResult expression(bool ternary = true) {
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

  ExprResult or_rule() {
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, and_rule());
    while (is_name("or")) {
      const int line = next().line;
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, and_rule());
      SEER_ASSIGN_OR_RETURN(left, finished(node(Expr::kOr, line, std::move(left), std::move(right))));
    }
    return left;
  }

  ExprResult and_rule() {
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, not_rule());
    while (is_name("and")) {
      const int line = next().line;
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, not_rule());
      SEER_ASSIGN_OR_RETURN(left, finished(node(Expr::kAnd, line, std::move(left), std::move(right))));
    }
    return left;
  }

  ExprResult not_rule() {
    if (!is_name("not")) return compare_rule();
    const Nesting nesting(depth_);
    SEER_RETURN_IF_ERROR(nesting_allowed());
    const int line = next().line;
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr value, not_rule());
    return finished(node(Expr::kNot, line, std::move(value)));
  }

  ExprResult compare_rule() {
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

  ExprResult binary(int line, std::string op, JinjaExprPtr left, JinjaExprPtr right) const {
    auto made = node(Expr::kBinary, line, std::move(left), std::move(right));
    made->name = std::move(op);
    return finished(std::move(made));
  }

  ExprResult sum_rule() {
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, concat_rule());
    while (is_operator("+") || is_operator("-")) {
      const JinjaToken op = next();
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, concat_rule());
      SEER_ASSIGN_OR_RETURN(left, binary(op.line, op.text, std::move(left), std::move(right)));
    }
    return left;
  }

  ExprResult concat_rule() {
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

  ExprResult product_rule() {
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, power_rule());
    while (is_operator("*") || is_operator("/") || is_operator("//") || is_operator("%")) {
      const JinjaToken op = next();
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, power_rule());
      SEER_ASSIGN_OR_RETURN(left, binary(op.line, op.text, std::move(left), std::move(right)));
    }
    return left;
  }

  ExprResult power_rule() {
    SEER_ASSIGN_OR_RETURN(JinjaExprPtr left, unary_rule());
    while (is_operator("**")) {
      const int line = next().line;
      SEER_ASSIGN_OR_RETURN(JinjaExprPtr right, unary_rule());
      SEER_ASSIGN_OR_RETURN(left, binary(line, "**", std::move(left), std::move(right)));
    }
    return left;
  }

  ExprResult unary_rule(bool with_filters = true) {
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

  ExprResult primary() {
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

  ExprResult list_literal() {
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

  ExprResult dict_literal() {
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

  ExprResult postfix(JinjaExprPtr value) {
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

  ExprResult subscript(JinjaExprPtr value) {
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

  ExprResult tuple_of_subscripts() {
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

  /// Reads "(arguments)" into a call, filter or test.
  Status arguments(JinjaExpr& made) {
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

  ExprResult call_of(JinjaExprPtr callee) {
    auto call = node(Expr::kCall, peek().line, std::move(callee));
    SEER_RETURN_IF_ERROR(arguments(*call));
    return finished(std::move(call));
  }

  Result<std::string> dotted_name(std::string_view what) {
    SEER_ASSIGN_OR_RETURN(std::string name, expect_any_name(what));
    while (skip_operator(".")) {
      SEER_ASSIGN_OR_RETURN(const std::string part, expect_any_name(what));
      name += cat('.', part);
    }
    return name;
  }

  ExprResult filter_of(JinjaExprPtr value) {
    auto made = node(Expr::kFilter, peek().line, std::move(value));
    SEER_ASSIGN_OR_RETURN(made->name, dotted_name("the name of a filter"));
    made->filter = find_jinja_filter(made->name);
    if (made->filter == nullptr && conditional_ == 0)
      return wrong_at(made->line, "there is no filter named '", made->name, "'");
    if (is_operator("(")) SEER_RETURN_IF_ERROR(arguments(*made));
    return finished(std::move(made));
  }

  ExprResult test_of(JinjaExprPtr value) {
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

  /// "x is divisibleby 3": an argument without parentheses.
  bool begins_test_argument() const {
    if (is_operator("[") || is_operator("{")) return true;
    const Kind kind = peek().kind;
    if (kind == Kind::kText || kind == Kind::kInteger || kind == Kind::kFloat) return true;
    return kind == Kind::kName && !is_name("else") && !is_name("or") && !is_name("and");
  }

  std::vector<JinjaToken> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;        // for loops that a break here would end
  int conditional_ = 0;  // inside an if: an unknown filter is an error only once it is used, as in Jinja
  std::vector<JinjaParameters*> macros_;  // those open here
};

}  // namespace

Result<JinjaStatement> parse_jinja(std::string_view source, const std::string& name) {
  const size_t valid = utf8_valid_bytes(source);
  if (valid < source.size())
    return fail(Code::kInvalidArgument, "chat template ", name, " is not valid UTF-8 (byte ", valid, " of ",
                source.size(), ")");
  SEER_ASSIGN_OR_RETURN(std::vector<JinjaToken> tokens, jinja_tokens(source, name));
  SEER_ASSIGN_OR_RETURN(JinjaBody body, Parser(std::move(tokens), name).run());
  JinjaStatement root;
  root.kind = JinjaStatement::Kind::kScope;
  root.line = 1;
  root.bodies.push_back(std::move(body));
  find_hidden_names(root);
  return root;
}

}  // namespace seer
