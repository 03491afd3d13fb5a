#include "gpu/text/python_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "gpu/text/utf8.h"

#ifdef SEER_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

namespace seer {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// Start of the character that ends just before byte `end`. REQUIRES: end > 0.
size_t char_before(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && is_continuation(text[end]));
  return end;
}

// ---- case ----------------------------------------------------------------------------------------------------------

struct LongUpper {
  uint32_t from;
  std::array<uint32_t, 3> to;
};
/// Characters whose upper case is more than one character (Unicode's SpecialCasing.txt), except those with an iota
/// subscript, which append_upper() computes.
constexpr LongUpper kLongUpper[] = {{0xdf, {'S', 'S'}},
                                    {0x149, {0x2bc, 'N'}},
                                    {0x1f0, {'J', 0x30c}},
                                    {0x390, {0x399, 0x308, 0x301}},
                                    {0x3b0, {0x3a5, 0x308, 0x301}},
                                    {0x587, {0x535, 0x552}},
                                    {0x1e96, {'H', 0x331}},
                                    {0x1e97, {'T', 0x308}},
                                    {0x1e98, {'W', 0x30a}},
                                    {0x1e99, {'Y', 0x30a}},
                                    {0x1e9a, {'A', 0x2be}},
                                    {0x1f50, {0x3a5, 0x313}},
                                    {0x1f52, {0x3a5, 0x313, 0x300}},
                                    {0x1f54, {0x3a5, 0x313, 0x301}},
                                    {0x1f56, {0x3a5, 0x313, 0x342}},
                                    {0x1fb2, {0x1fba, 0x399}},
                                    {0x1fb3, {0x391, 0x399}},
                                    {0x1fb4, {0x386, 0x399}},
                                    {0x1fb6, {0x391, 0x342}},
                                    {0x1fb7, {0x391, 0x342, 0x399}},
                                    {0x1fbc, {0x391, 0x399}},
                                    {0x1fc2, {0x1fca, 0x399}},
                                    {0x1fc3, {0x397, 0x399}},
                                    {0x1fc4, {0x389, 0x399}},
                                    {0x1fc6, {0x397, 0x342}},
                                    {0x1fc7, {0x397, 0x342, 0x399}},
                                    {0x1fcc, {0x397, 0x399}},
                                    {0x1fd2, {0x399, 0x308, 0x300}},
                                    {0x1fd3, {0x399, 0x308, 0x301}},
                                    {0x1fd6, {0x399, 0x342}},
                                    {0x1fd7, {0x399, 0x308, 0x342}},
                                    {0x1fe2, {0x3a5, 0x308, 0x300}},
                                    {0x1fe3, {0x3a5, 0x308, 0x301}},
                                    {0x1fe4, {0x3a1, 0x313}},
                                    {0x1fe6, {0x3a5, 0x342}},
                                    {0x1fe7, {0x3a5, 0x308, 0x342}},
                                    {0x1ff2, {0x1ffa, 0x399}},
                                    {0x1ff3, {0x3a9, 0x399}},
                                    {0x1ff4, {0x38f, 0x399}},
                                    {0x1ff6, {0x3a9, 0x342}},
                                    {0x1ff7, {0x3a9, 0x342, 0x399}},
                                    {0x1ffc, {0x3a9, 0x399}},
                                    {0xfb00, {'F', 'F'}},
                                    {0xfb01, {'F', 'I'}},
                                    {0xfb02, {'F', 'L'}},
                                    {0xfb03, {'F', 'F', 'I'}},
                                    {0xfb04, {'F', 'F', 'L'}},
                                    {0xfb05, {'S', 'T'}},
                                    {0xfb06, {'S', 'T'}},
                                    {0xfb13, {0x544, 0x546}},
                                    {0xfb14, {0x544, 0x535}},
                                    {0xfb15, {0x544, 0x53b}},
                                    {0xfb16, {0x54e, 0x546}},
                                    {0xfb17, {0x544, 0x53d}}};

uint32_t simple_lower(uint32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
#ifdef SEER_HAVE_UTF8PROC
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
#else
  return c;
#endif
}
uint32_t simple_upper(uint32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
#ifdef SEER_HAVE_UTF8PROC
  return static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
#else
  return c;
#endif
}
uint32_t simple_title(uint32_t c) {
#ifdef SEER_HAVE_UTF8PROC
  if (c >= 0x80) return static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
#endif
  return simple_upper(c);
}

/// Has the property Cased: a letter with an upper or lower case.
bool is_cased(uint32_t c) { return simple_lower(c) != c || simple_upper(c) != c || c == 0xdf; }

void append_upper(std::string& out, uint32_t c) {
  if (c >= 0x1f80 && c <= 0x1faf) {  // three rows of 16 letters with iota subscript; the capitals without it:
    constexpr uint32_t kCapitals[] = {0x1f08, 0x1f28, 0x1f68};
    utf8_append(out, kCapitals[(c - 0x1f80) / 16] + c % 8);
    return utf8_append(out, 0x399);
  }
  for (const LongUpper& entry : kLongUpper) {
    if (entry.from != c) continue;
    for (const uint32_t part : entry.to)
      if (part != 0) utf8_append(out, part);
    return;
  }
  utf8_append(out, simple_upper(c));
}

void append_title(std::string& out, uint32_t c) {
  const bool own_title = c < 0x80 || c == 0x149 || (c >= 0x1f80 && c <= 0x1faf) || simple_title(c) != c;
  for (const LongUpper& entry : kLongUpper) {
    if (own_title && c != 0x149) break;
    if (entry.from != c) continue;
    bool first = true;
    for (const uint32_t part : entry.to) {
      if (part == 0) continue;
      const bool iota_below = part == 0x399 && !first;  // keeps its subscript form in title case
      utf8_append(out, iota_below ? 0x345 : first || c == 0x149 ? part : simple_lower(part));
      first = false;
    }
    return;
  }
  utf8_append(out, simple_title(c));
}

/// Lower case of the character at `at`. Capital sigma at the end of a word becomes the final form.
void append_lower(std::string& out, std::string_view text, size_t at, CodePoint c) {
  if (c.value == 0x130) {
    out += 'i';
    return utf8_append(out, 0x307);
  }
  if (c.value != 0x3a3) return utf8_append(out, simple_lower(c.value));
  const bool after_letter = at > 0 && is_cased(utf8_last(text.substr(0, at)).value);
  const size_t next = at + c.bytes;
  const bool before_letter = next < text.size() && is_cased(utf8_at(text, next).value);
  utf8_append(out, after_letter && !before_letter ? 0x3c2 : 0x3c3);
}

// ---- what may be printed

/// str.isprintable of a character beyond ASCII.
bool is_printable(uint32_t c) {
#ifdef SEER_HAVE_UTF8PROC
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
#else
  return !is_python_space(c) && c >= 0xa1 && c != 0xad && !(c >= 0x200b && c <= 0x200f) && c != 0xfeff;
#endif
}

void append_hex(std::string& out, uint32_t value, int digits) {
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15];
}

/// Removes single underscores between the digits of a number. None if there are underscores anywhere else.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
      continue;
    }
    const auto is_digit = [&](size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
    };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  return digits;
}

}  // namespace

size_t count_chars(std::string_view text) {
  size_t chars = 0;
  for (const char c : text) chars += !is_continuation(c);
  return chars;
}

size_t byte_of_char(std::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at)
    if (!is_continuation(text[at]) && index-- == 0) return at;
  return at;
}

std::vector<std::string_view> split_chars(std::string_view text) {
  std::vector<std::string_view> chars;
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    while (end < text.size() && is_continuation(text[end])) ++end;
    chars.push_back(text.substr(at, end - at));
    at = end;
  }
  return chars;
}

bool is_python_space(uint32_t value) { return is_white_space(value) || (value >= 0x1c && value <= 0x1f); }

std::string_view python_strip(std::string_view text, StripSides sides, std::optional<std::string_view> chars) {
  const auto stripped = [&](std::string_view one) {
    return chars ? chars->find(one) != std::string_view::npos : is_python_space(utf8_at(one, 0).value);
  };
  size_t begin = 0;
  while (sides.left && begin < text.size()) {
    const size_t bytes = utf8_at(text, begin).bytes;
    if (!stripped(text.substr(begin, bytes))) break;
    begin += bytes;
  }
  size_t end = text.size();
  while (sides.right && end > begin) {
    const size_t last = char_before(text, end);
    if (!stripped(text.substr(last, end - last))) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> python_split(std::string_view text, int64_t splits_max) {
  std::vector<std::string_view> words;
  text = python_strip(text, {.right = false});
  while (!text.empty()) {
    if (splits_max >= 0 && static_cast<int64_t>(words.size()) >= splits_max) {
      words.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size() && !is_python_space(utf8_at(text, end).value)) end += utf8_at(text, end).bytes;
    words.push_back(text.substr(0, end));
    text = python_strip(text.substr(end), {.right = false});
  }
  return words;
}

std::vector<std::string_view> python_rsplit(std::string_view text, int64_t splits_max) {
  std::vector<std::string_view> words;
  text = python_strip(text, {.left = false});
  while (!text.empty()) {
    if (splits_max >= 0 && static_cast<int64_t>(words.size()) >= splits_max) {
      words.push_back(text);
      break;
    }
    size_t begin = text.size();
    while (begin > 0 && !is_python_space(utf8_at(text, char_before(text, begin)).value))
      begin = char_before(text, begin);
    words.push_back(text.substr(begin));
    text = python_strip(text.substr(0, begin), {.left = false});
  }
  std::reverse(words.begin(), words.end());
  return words;
}

std::vector<std::string_view> python_split_on(std::string_view text, std::string_view separator, int64_t splits_max) {
  std::vector<std::string_view> parts;
  while (splits_max < 0 || static_cast<int64_t>(parts.size()) < splits_max) {
    const size_t at = text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::vector<std::string_view> python_rsplit_on(std::string_view text, std::string_view separator, int64_t splits_max) {
  std::vector<std::string_view> parts;
  while (splits_max < 0 || static_cast<int64_t>(parts.size()) < splits_max) {
    const size_t at = text.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> python_splitlines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = utf8_at(text, at);
    const size_t end_bytes = text.substr(at).starts_with("\r\n") ? 2 : c.bytes;
    const bool ends_line = (c.value >= '\n' && c.value <= '\r') || (c.value >= 0x1c && c.value <= 0x1e) ||
                           c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029;
    if (ends_line) {
      lines.push_back(text.substr(begin, at - begin + (keep_ends ? end_bytes : 0)));
      begin = at + end_bytes;
    }
    at += end_bytes;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

bool python_knows_unicode() {
#ifdef SEER_HAVE_UTF8PROC
  return true;
#else
  return false;
#endif
}

std::string python_lower(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = utf8_at(text, at);
    append_lower(lower, text, at, c);
    at += c.bytes;
  }
  return lower;
}

std::string python_upper(std::string_view text) {
  std::string upper;
  upper.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = utf8_at(text, at);
    append_upper(upper, c.value);
    at += c.bytes;
  }
  return upper;
}

std::string python_capitalize(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = utf8_at(text, at);
    if (at == 0) {
      append_title(out, c.value);
    } else {
      append_lower(out, text, at, c);
    }
    at += c.bytes;
  }
  return out;
}

std::string python_title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = utf8_at(text, at);
    if (in_word) {
      append_lower(out, text, at, c);
    } else {
      append_title(out, c.value);
    }
    in_word = is_cased(c.value);
    at += c.bytes;
  }
  return out;
}

bool python_is_lower(std::string_view text) {
  bool any = false;
  for (size_t at = 0; at < text.size(); at += utf8_at(text, at).bytes) {
    const uint32_t c = utf8_at(text, at).value;
    if (simple_lower(c) != c) return false;
    any |= is_cased(c);
  }
  return any;
}

bool python_is_upper(std::string_view text) {
  bool any = false;
  for (size_t at = 0; at < text.size(); at += utf8_at(text, at).bytes) {
    const uint32_t c = utf8_at(text, at).value;
    const bool upper = simple_lower(c) != c;
    if (!upper && is_cased(c)) return false;
    any |= upper;
  }
  return any;
}

std::optional<CharClass> python_class(uint32_t value) {
  if (value < 0x80) {
    const bool digit = value >= '0' && value <= '9';
    return CharClass{.letter = std::isalpha(static_cast<int>(value)) != 0, .decimal = digit, .numeric = digit};
  }
#ifdef SEER_HAVE_UTF8PROC
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass{.letter = true};
    case UTF8PROC_CATEGORY_ND:
      return CharClass{.decimal = true, .numeric = true};
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass{.numeric = true};
    default:
      return CharClass{};
  }
#else
  return std::nullopt;
#endif
}

std::string python_repr(std::string_view text) {
  const bool double_quoted = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quoted ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = utf8_at(text, at);
    const std::string_view same = text.substr(at, c.bytes);
    at += c.bytes;
    if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (c.value == '\\' || c.value == static_cast<uint32_t>(quote)) {
      (out += '\\') += same;
    } else if (c.value < 0x20 || c.value == 0x7f || (c.value < 0x100 && c.value > 0x7f && !is_printable(c.value))) {
      append_hex(out += "\\x", c.value, 2);
    } else if (c.value < 0x7f || is_printable(c.value)) {
      out += same;
    } else {
      append_hex(out += c.value < 0x10000 ? "\\u" : "\\U", c.value, c.value < 0x10000 ? 4 : 8);
    }
  }
  return out += quote;
}

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<size_t>(end - buffer));  // "-d.ddde+XX", the fewest digits
  const size_t e = shortest.find('e');
  int exponent = 0;
  const size_t exponent_at = e + (shortest[e + 1] == '+' ? 2 : 1);
  std::from_chars(shortest.data() + exponent_at, shortest.data() + shortest.size(), exponent);
  std::string digits;
  for (const char c : shortest.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  std::string out = shortest[0] == '-' ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) (out += '.') += digits.substr(1);
    const std::string size = std::to_string(std::abs(exponent));
    return ((out += exponent < 0 ? "e-" : "e+") += size.size() < 2 ? "0" : "") += size;
  }
  if (exponent < 0) return (out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0')) += digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  out += digits.substr(0, whole);
  return (out += '.') += digits.size() > whole ? digits.substr(whole) : "0";
}

std::string to_text(Int128 value) {
  const bool negative = value < 0;
  std::string digits;
  do {
    const int digit = static_cast<int>(value % 10);
    digits += static_cast<char>('0' + (negative ? -digit : digit));
    value /= 10;
  } while (value != 0);
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::optional<Int128> python_int(std::string_view text, int base) {
  text = python_strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  const auto digits = without_underscores(text);
  if (!digits || digits->empty()) return std::nullopt;
  Int128 value = 0;
  for (const char c : *digits) {
    const int digit = c >= '0' && c <= '9'                          ? c - '0'
                      : std::isalpha(static_cast<unsigned char>(c)) ? (c | 0x20) - 'a' + 10
                                                                    : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Int128>(base), &value)) return std::nullopt;
    if (__builtin_add_overflow(value, static_cast<Int128>(digit), &value)) return std::nullopt;
  }
  return negative ? -value : value;
}

std::optional<double> python_float(std::string_view text) {
  text = python_strip(text);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string lower = python_lower(text);
  const double sign = negative ? -1 : 1;
  if (lower == "inf" || lower == "infinity") return sign * std::numeric_limits<double>::infinity();
  if (lower == "nan") return std::numeric_limits<double>::quiet_NaN();
  const auto digits = without_underscores(text);
  if (!digits || digits->empty() || (!std::isdigit(static_cast<unsigned char>((*digits)[0])) && (*digits)[0] != '.'))
    return std::nullopt;
  double value = 0;
  const auto [end, problem] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  if (end != digits->data() + digits->size()) return std::nullopt;
  if (problem == std::errc::result_out_of_range)
    value = std::strtod(digits->c_str(), nullptr);
  else if (problem != std::errc())
    return std::nullopt;
  return sign * value;
}

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = utf8_at(text, at);
    const std::string_view same = text.substr(at, c.bytes);
    at += c.bytes;
    switch (c.value) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (c.value < 0x20 || (ensure_ascii && c.value >= 0x7f && c.value < 0x10000)) {
          append_hex(out += "\\u", c.value, 4);
        } else if (ensure_ascii && c.value >= 0x10000) {
          append_hex(out += "\\u", 0xd800 + ((c.value - 0x10000) >> 10), 4);
          append_hex(out += "\\u", 0xdc00 + ((c.value - 0x10000) & 0x3ff), 4);
        } else {
          out += same;
        }
    }
  }
  out += '"';
}

}  // namespace seer
