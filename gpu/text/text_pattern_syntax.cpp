// pcre2_from_oniguruma(): a pattern of Oniguruma's Ruby syntax, rewritten to mean the same to PCRE2. They differ in:
//   \s \S \w \W   Unicode's White_Space, and Alphabetic, M, Nd, Pc: PCRE2's own add or lack a few characters
//   \h \v \uNNNN  a hexadecimal digit, a vertical tab, a code point
//   \p{Han}       a script alone, without PCRE2's script extensions
//   x{1,3}+       repeated intervals, not a possessive one: (?:x{1,3})+
//   x{,3}         x{0,3}
// The rest that differs is refused by name: options other than i, (?i) that is not at the start (it reaches over
// alternatives), class intersection and nesting, word boundaries, and the rarer escapes and groups.
#include <algorithm>
#include <cctype>

#include "gpu/text/text_pattern.h"

namespace seer {
namespace {

constexpr std::string_view kWordClass = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    if (in_.starts_with("(?i)")) copy(4);
    while (at_ < in_.size()) SEER_RETURN_IF_ERROR(next());
    return std::move(out_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void copy(size_t bytes) {
    out_.append(in_.substr(at_, bytes));
    at_ += bytes;
  }
  void put(std::string_view text, size_t bytes_read) {
    out_.append(text);
    at_ += bytes_read;
  }
  Error refuse(std::string_view what) const {
    return fail(Code::kInvalidArgument, "'", in_, "' uses ", what, " (byte ", at_, "), which is not supported");
  }

  Status next() {
    const char c = peek();
    if (c == '*' || c == '+' || c == '?' || c == '|' || c == '^' || c == '$') {
      copy(1);
      return {};
    }
    if (c == '{' && is_interval()) return interval();
    if (c == '(') return open_group();
    if (c == ')') {
      if (!groups_.empty()) {
        atom_ = groups_.back();
        groups_.pop_back();
      }
      copy(1);
      return {};
    }
    atom_ = out_.size();
    if (c == '\\') return escape(/*in_class=*/false);
    if (c == '[') return char_class();
    copy(1);
    while (at_ < in_.size() && (static_cast<unsigned char>(peek()) & 0xc0) == 0x80) copy(1);
    return {};
  }

  bool is_interval() const {
    size_t i = at_ + 1;
    size_t digits = 0;
    for (; i < in_.size() && (std::isdigit(static_cast<unsigned char>(in_[i])) || in_[i] == ','); ++i)
      digits += in_[i] != ',';
    return digits > 0 && i < in_.size() && in_[i] == '}';
  }

  Status interval() {
    const size_t bytes = in_.find('}', at_) + 1 - at_;
    const char behind = peek(bytes);
    if (behind == '?' && in_.substr(at_, bytes).find(',') == std::string_view::npos) return refuse("an interval {n}?");
    const size_t atom = atom_;
    if (peek(1) == ',') put("{0", 1);
    copy(in_.find('}', at_) + 1 - at_);
    if (behind != '+') return {};
    out_.insert(atom, "(?:");
    put(")+", 1);
    return {};
  }

  Status open_group() {
    groups_.push_back(out_.size());
    if (peek(1) != '?') {
      copy(1);
      return {};
    }
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (!in_.substr(at_).starts_with(known)) continue;
      copy(known.size());
      return {};
    }
    return refuse(cat("the group '", in_.substr(at_, 4), "'"));
  }

  Status char_class() {
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') return refuse("']' at the start of a class");
    while (at_ < in_.size() && peek() != ']') {
      if (peek() == '[') return refuse("a class within a class");
      if (peek() == '&' && peek(1) == '&') return refuse("an intersection of classes");
      if (peek() == '\\') {
        SEER_RETURN_IF_ERROR(escape(/*in_class=*/true));
      } else {
        copy(1);
      }
    }
    copy(1);
    return {};
  }

  Status escape(bool in_class) {
    const char c = peek(1);
    switch (c) {
      case 's':
        put("\\p{White_Space}", 2);
        return {};
      case 'S':
        put("\\P{White_Space}", 2);
        return {};
      case 'w':
        put(in_class ? std::string(kWordClass) : cat('[', kWordClass, ']'), 2);
        return {};
      case 'W':
        if (in_class) return refuse("\\W in a class");
        put(cat("[^", kWordClass, ']'), 2);
        return {};
      case 'h':
        put(in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]", 2);
        return {};
      case 'v':
        put("\\x0b", 2);
        return {};
      case 'p':
      case 'P':
        return property();
      case 'u':
        for (size_t i = 2; i < 6; ++i)
          if (!std::isxdigit(static_cast<unsigned char>(peek(i)))) return refuse("\\u without four digits");
        put(cat("\\x{", in_.substr(at_ + 2, 4), '}'), 6);
        return {};
      case 'x':
        copy(peek(2) == '{' ? std::min(in_.find('}', at_), in_.size() - 1) + 1 - at_ : 2);
        return {};
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'e':
      case 'a':
        copy(2);
        return {};
      case 'A':
      case 'z':
      case 'Z':
        if (in_class) break;
        copy(2);
        return {};
      default:
        break;
    }
    if (c == '\0' || std::isalnum(static_cast<unsigned char>(c))) return refuse(cat("the escape \\", c));
    copy(2);
    return {};
  }

  /// Names of one or two letters are general categories in both; longer ones are a few properties, else scripts.
  Status property() {
    const size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) return refuse("a property without braces");
    const bool negated = peek(3) == '^';
    const size_t begin = at_ + 3 + negated;
    const std::string_view name = in_.substr(begin, close - begin);
    const bool as_is = name.size() <= 2 || name == "Any" || name == "Alphabetic" || name == "Lowercase" ||
                       name == "Uppercase" || name == "White_Space";
    put(cat('\\', peek(1), '{', negated ? "^" : "", as_is ? "" : "sc:", name, '}'), close + 1 - at_);
    return {};
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
  size_t atom_ = 0;             // where in out_ the last thing that a quantifier can follow begins
  std::vector<size_t> groups_;  // the same for each group still open
};

}  // namespace

Result<std::string> pcre2_from_oniguruma(std::string_view pattern) { return Rewriter(pattern).run(); }

}  // namespace seer
