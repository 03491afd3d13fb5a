// find_hidden_names(): which names a body hides until it assigns them. Jinja decides at compile time where a name
// lives: in the body (of a loop, macro, block...) that assigns it, if the body itself does nothing with it before and no
// body around it knows the name. Until then it is undefined there and in all bodies inside, whatever the context holds:
//   {% for x in a %}{{ t }}{% endfor %}{% set t = 1 %}      prints nothing, even if the context has t
// A name that is first assigned in one branch of an if is not hidden: the other branches need it from outside.
#include <set>

#include "gpu/text/jinja_syntax.h"

namespace seer {
namespace {

using Tag = JinjaStatement::Kind;
using Expr = JinjaExpr::Kind;

/// What one body does with names, in order. Bodies inside it are looked at later, with all of this known.
struct Frame {
  const Frame* around = nullptr;
  std::set<std::string> known;  // read or assigned
  std::set<std::string> assigned_first;
  int branches = 0;  // ifs around what is being looked at

  void read(const std::string& name) { known.insert(name); }
  void assign(const std::string& name) {
    if (known.insert(name).second && branches == 0) assigned_first.insert(name);
  }
  bool known_around(const std::string& name) const {
    for (const Frame* frame = around; frame != nullptr; frame = frame->around)
      if (frame->known.contains(name)) return true;
    return false;
  }
};

void look(Frame& frame, const JinjaExpr& expr) {
  if (expr.kind == Expr::kName) frame.read(expr.name);
  for (const auto& part : expr.parts)
    if (part != nullptr) look(frame, *part);
  for (const auto& part : expr.positional) look(frame, *part);
  for (const auto& [name, part] : expr.named) look(frame, *part);
  if (expr.star != nullptr) look(frame, *expr.star);
  if (expr.star_star != nullptr) look(frame, *expr.star_star);
}

void look(Frame& frame, const JinjaExprPtr& expr) {
  if (expr != nullptr) look(frame, *expr);
}

void look_at_target(Frame& frame, const JinjaExpr& target) {
  if (target.kind == Expr::kName) frame.assign(target.name);
  if (target.kind == Expr::kField) look(frame, target);
  if (target.kind == Expr::kTuple)
    for (const auto& part : target.parts) look_at_target(frame, *part);
}

/// The names of a loop's or macro's own variables are never hidden.
void declare(Frame& frame, const JinjaExpr& target) {
  if (target.kind == Expr::kName) frame.known.insert(target.name);
  for (const auto& part : target.parts) declare(frame, *part);
}

void look(Frame& frame, const JinjaBody& body) {
  for (const JinjaStatement& statement : body) {
    switch (statement.kind) {
      case Tag::kText:
      case Tag::kBreak:
      case Tag::kContinue:
      case Tag::kScope:
        break;
      case Tag::kPrint:
      case Tag::kWith:
      case Tag::kCall:
      case Tag::kFilter:
        for (const auto& expr : statement.exprs) look(frame, expr);
        break;
      case Tag::kFor:
        look(frame, statement.exprs[0]);
        break;
      case Tag::kMacro:
        frame.assign(statement.text);
        break;
      case Tag::kSet:
        look(frame, statement.exprs[0]);
        look_at_target(frame, *statement.target);
        break;
      case Tag::kSetBlock:
        look_at_target(frame, *statement.target);
        break;
      case Tag::kIf:
        // Each condition after the first counts as inside a branch.
        look(frame, statement.exprs[0]);
        ++frame.branches;
        for (size_t i = 0; i < statement.bodies.size(); ++i) {
          if (i > 0 && i < statement.exprs.size()) look(frame, statement.exprs[i]);
          look(frame, statement.bodies[i]);
        }
        --frame.branches;
        break;
    }
  }
}

void descend(const Frame& frame, JinjaBody& body);

/// Looks at bodies[index] of a statement as a frame of its own, then at those inside it.
void enter(const Frame* around, JinjaStatement& statement, size_t index) {
  Frame frame;
  frame.around = around;
  if (statement.kind == Tag::kFor && index == 0) {
    declare(frame, *statement.target);
    frame.known.insert("loop");
  }
  for (const auto& target : statement.targets) declare(frame, *target);
  for (const std::string& name : statement.parameters.names) frame.known.insert(name);
  for (const auto& value : statement.parameters.defaults) look(frame, value);
  look(frame, statement.bodies[index]);
  statement.hidden.resize(statement.bodies.size());
  for (const std::string& name : frame.assigned_first)
    if (!frame.known_around(name)) statement.hidden[index].push_back(name);
  descend(frame, statement.bodies[index]);
}

void descend(const Frame& frame, JinjaBody& body) {
  for (JinjaStatement& statement : body) {
    for (size_t i = 0; i < statement.bodies.size(); ++i) {
      if (statement.kind == Tag::kIf) {
        descend(frame, statement.bodies[i]);
      } else {
        enter(&frame, statement, i);
      }
    }
  }
}

}  // namespace

void find_hidden_names(JinjaStatement& root) { enter(nullptr, root, 0); }

}  // namespace seer
