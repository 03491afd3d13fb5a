#include "gpu/text/jinja_lexer.h"

#include <algorithm>
#include <cctype>

#include "gpu/text/utf8.h"

namespace seer {
namespace {

using Kind = JinjaToken::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

/// The text with every line break as \n, and without the last one: Jinja drops it.
std::string with_plain_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') ++i;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : name_(name), text_(with_plain_newlines(source)) {}

  Result<std::vector<JinjaToken>> run() {
    while (at_ < text_.size()) {
      SEER_ASSIGN_OR_RETURN(const size_t tag, next_tag());
      if (tag == text_.size()) break;
      SEER_RETURN_IF_ERROR(inside_tag(text_[tag + 1]));
    }
    put(Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  template <class... Ts>
  Error wrong(const Ts&... what) const {
    return fail(Code::kInvalidArgument, "chat template ", name_, ", line ", line_, ": ", what...);
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool at(std::string_view what) const { return std::string_view(text_).substr(at_).starts_with(what); }
  void put(Kind kind, std::string text = {}, JinjaValue number = {}) {
    tokens_.push_back({kind, line_, std::move(text), std::move(number)});
  }
  void move_to(size_t to) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<ptrdiff_t>(at_), text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    line_starting_ = to > at_ ? text_[to - 1] == '\n' : line_starting_;
    at_ = to;
  }
  size_t skip_space(size_t from) const {
    while (from < text_.size()) {
      const CodePoint c = utf8_at(text_, from);
      if (!is_python_space(c.value)) break;
      from += c.bytes;
    }
    return from;
  }

  /// Puts the data before the next tag, and moves past the opening of the tag. Returns where the tag begins, or text_.size() if
  /// there is none and the rest is data.
  Result<size_t> next_tag() {
    size_t tag = text_.find('{', at_);
    while (tag != std::string::npos &&
           !(tag + 1 < text_.size() && std::string_view("{%#").find(text_[tag + 1]) != std::string_view::npos))
      tag = text_.find('{', tag + 1);
    if (tag == std::string::npos) {
      put(Kind::kData, text_.substr(at_));
      move_to(text_.size());
      return text_.size();
    }
    const char sign = put_data_before(tag, text_[tag + 1] != '{');
    move_to(tag + 2 + (sign != '\0'));
    return tag;
  }

  /// Puts the data from at_ to the tag, without what the tag strips. Returns the tag's sign: '-', '+' or none.
  char put_data_before(size_t tag, bool lstrip) {
    const char sign =
        tag + 2 < text_.size() && (text_[tag + 2] == '-' || text_[tag + 2] == '+') ? text_[tag + 2] : '\0';
    std::string_view data = std::string_view(text_).substr(at_, tag - at_);
    if (sign == '-') {
      data = python_strip(data, {.left = false});
    } else if (sign != '+' && lstrip) {
      const size_t line_begin = data.rfind('\n') + 1;  // 0: no line break
      if (line_begin > 0 || line_starting_) {
        if (python_strip(data.substr(line_begin)).empty()) data = data.substr(0, line_begin);
      }
    }
    if (!data.empty()) put(Kind::kData, std::string(data));
    return sign;
  }

  Status inside_tag(char type) {
    if (type == '#') return comment();
    if (type == '%') {
      const size_t raw = skip_space(at_);
      if (std::string_view(text_).substr(raw, 3) == "raw") {
        const size_t close = skip_space(raw + 3);
        const std::string_view rest = std::string_view(text_).substr(close);
        if (rest.starts_with("-%}")) return raw_data(skip_space(close + 3));
        if (rest.starts_with("%}")) return raw_data(close + 2);
      }
    }
    put(type == '%' ? Kind::kBlockBegin : Kind::kPrintBegin);
    return expression_tokens(type == '%');
  }

  /// The position after the end tag that begins at `end` ("%}", "#}"), which a sign may precede.
  size_t after_end(size_t end, char sign) const {
    if (sign == '-') return skip_space(end + 2);
    return end + 2 + (sign == '\0' && end + 2 < text_.size() && text_[end + 2] == '\n');
  }

  Status comment() {
    // The end is the first of "#}", "-#}", "+#}": all contain "#}".
    const size_t end = text_.find("#}", at_);
    if (end == std::string::npos) return wrong("the comment that begins here has no end; expected '#}'");
    const char before = end > at_ ? text_[end - 1] : '\0';
    move_to(after_end(end, before == '-' || before == '+' ? before : '\0'));
    return {};
  }

  Status raw_data(size_t begin) {
    move_to(begin);
    for (size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 1)) {
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      const size_t word = skip_space(tag + 2 + (sign == '-' || sign == '+'));
      if (std::string_view(text_).substr(word, 6) != "endraw") continue;
      const size_t close = skip_space(word + 6);
      const char end_sign = close < text_.size() && (text_[close] == '-' || text_[close] == '+') ? text_[close] : '\0';
      const size_t end = close + (end_sign != '\0');
      if (std::string_view(text_).substr(end, 2) != "%}") continue;
      put_data_before(tag, /*lstrip=*/true);
      move_to(after_end(end, end_sign));
      return {};
    }
    return wrong("the raw block that begins here has no end; expected {% endraw %}");
  }

  // ---- inside {{ }} and {% %}

  Status expression_tokens(bool block) {
    const std::string_view close = block ? "%}" : "}}";
    const int opened = line_;
    while (at_ < text_.size()) {
      const size_t begin = skip_space(at_);
      if (begin > at_) {
        move_to(begin);
        continue;
      }
      if (open_.empty()) {
        const char sign = peek() == '-' || (block && peek() == '+') ? peek() : '\0';
        const size_t end = at_ + (sign != '\0');
        if (std::string_view(text_).substr(end, 2) == close) {
          put(block ? Kind::kBlockEnd : Kind::kPrintEnd);
          move_to(block ? after_end(end, sign) : sign == '-' ? skip_space(end + 2) : end + 2);
          return {};
        }
      }
      SEER_RETURN_IF_ERROR(token());
    }
    line_ = opened;
    return wrong("the tag that begins here has no end; expected '", close, "'");
  }

  Status token() {
    const char c = peek();
    if (is_digit(c)) return number();
    if (is_name_start(c)) {
      size_t end = at_ + 1;
      while (end < text_.size() && is_name_part(text_[end])) ++end;
      put(Kind::kName, text_.substr(at_, end - at_));
      move_to(end);
      return {};
    }
    if (c == '"' || c == '\'') return quoted();
    return operator_token();
  }

  /// The end of digits with single underscores between them; `from` if there are none.
  size_t digits_end(size_t from, int base) const {
    const auto is_one = [&](size_t i) {
      if (i >= text_.size()) return false;
      const char c = text_[i];
      return base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c >= '0' && c < '0' + base;
    };
    size_t end = from;
    while (is_one(end) || (end > from && end < text_.size() && text_[end] == '_' && is_one(end + 1))) ++end;
    return end;
  }

  Status number() {
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    size_t end = digits_end(at_, 10);
    bool is_float = false;
    if (!after_dot) {
      if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
        end = digits_end(end + 1, 10);
        is_float = true;
      }
      if (end < text_.size() && (text_[end] | 0x20) == 'e') {
        const size_t digits = end + 1 + (end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-'));
        if (digits < text_.size() && is_digit(text_[digits])) {
          end = digits_end(digits, 10);
          is_float = true;
        }
      }
    }
    if (!is_float) end = integer_end();
    const std::string text = text_.substr(at_, end - at_);
    if (is_float) {
      put(Kind::kFloat, text, JinjaValue::of(python_float(text).value_or(0)));
    } else {
      const auto value = python_int(text, 0);
      if (!value) return wrong("the number ", text, " is too large; expected less than 2^127");
      put(Kind::kInteger, text, JinjaValue::of(*value));
    }
    move_to(end);
    return {};
  }

  size_t integer_end() const {
    if (peek() != '0') return digits_end(at_, 10);
    const char mark = static_cast<char>(peek(1) | 0x20);
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (base != 0) {
      const size_t digits = at_ + 2 + (peek(2) == '_');
      const size_t end = digits_end(digits, base);
      if (end > digits) return end;
    }
    return digits_end(at_, 1);  // zeros alone: 07 is two tokens, as in Jinja
  }

  Status quoted() {
    const char quote = peek();
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return wrong("the string that begins here has no end; expected ", quote);
    std::string value;
    SEER_RETURN_IF_ERROR(unescape(std::string_view(text_).substr(at_ + 1, end - at_ - 1), value));
    put(Kind::kText, std::move(value));
    move_to(end + 1);
    return {};
  }

  Status unescape(std::string_view in, std::string& out) const {
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i] != '\\' || i + 1 == in.size()) {
        out += in[i];
        continue;
      }
      const char c = in[++i];
      constexpr std::string_view kFrom = "\\'\"abfnrtv";
      constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t known = kFrom.find(c); known != std::string_view::npos) {
        out += kTo[known];
      } else if (c == '\n') {
        continue;  // a backslash joins two lines
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        const auto value = hex(in.substr(i + 1, digits), digits);
        if (!value)
          return wrong("the escape \\", c, in.substr(i + 1, digits), " is not a character; expected ", digits,
                       " hexadecimal digits of one");
        utf8_append(out, *value);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        uint32_t value = 0;
        size_t digits = 0;
        while (digits < 3 && i + digits < in.size() && in[i + digits] >= '0' && in[i + digits] <= '7')
          value = value * 8 + static_cast<uint32_t>(in[i + digits++] - '0');
        utf8_append(out, value);
        i += digits - 1;
      } else if (c == 'N') {
        return wrong("the escape \\N{...} is not supported; expected the character itself, or \\u and four digits");
      } else {
        (out += '\\') += c;  // any other backslash is itself
      }
    }
    return {};
  }

  static std::optional<uint32_t> hex(std::string_view text, size_t digits) {
    if (text.size() < digits) return std::nullopt;
    uint32_t value = 0;
    for (const char c : text) {
      if (!std::isxdigit(static_cast<unsigned char>(c)) || value > 0xfffffff) return std::nullopt;
      value = value * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return std::nullopt;
    return value;
  }

  Status operator_token() {
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
      if (!at(two)) continue;
      put(Kind::kOperator, std::string(two));
      move_to(at_ + 2);
      return {};
    }
    const char c = peek();
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      const size_t bytes = utf8_at(text_, at_).bytes;
      return wrong("met '", text_.substr(at_, bytes), "'; expected a name, a string, a number or an operator");
    }
    if (c == '(' || c == '[' || c == '{') open_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open_.empty()) return wrong("met '", c, "', but nothing is open that it could close");
      if (open_.back() != c) return wrong("met '", c, "'; expected '", open_.back(), "'");
      open_.pop_back();
    }
    put(Kind::kOperator, std::string(1, c));
    move_to(at_ + 1);
    return {};
  }

  const std::string& name_;
  const std::string text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the text read last ended with a line break
  std::string open_;           // closing brackets of those that are open
  std::vector<JinjaToken> tokens_;
};

}  // namespace

std::string describe(const JinjaToken& token) {
  switch (token.kind) {
    case Kind::kEnd:
      return "the end of the template";
    case Kind::kData:
      return "text outside of a tag";
    case Kind::kPrintBegin:
      return "'{{'";
    case Kind::kPrintEnd:
      return "'}}'";
    case Kind::kBlockBegin:
      return "'{%'";
    case Kind::kBlockEnd:
      return "'%}'";
    case Kind::kText:
      return cat("the string ", python_repr(token.text.substr(0, 40)));
    default:
      return cat("'", token.text, "'");
  }
}

Result<std::vector<JinjaToken>> jinja_tokens(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace seer
