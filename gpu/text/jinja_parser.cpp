// parse_jinja(): the tags of a template. Their expressions are read by JinjaExpressions.
#include <algorithm>

#include "gpu/text/jinja_expressions.h"
#include "gpu/text/utf8.h"

namespace seer {
namespace {

using Tag = JinjaStatement::Kind;

class Parser : JinjaExpressions {
 public:
  Parser(std::vector<JinjaToken> tokens, const std::string& name) : JinjaExpressions(std::move(tokens), name) {}

  Result<JinjaBody> run() {
    SEER_ASSIGN_OR_RETURN(JinjaBody body, statements_until({}));
    return body;
  }

 private:
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

  int loops_ = 0;  // for loops that a break here would end
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
