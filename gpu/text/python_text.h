// Python's str, float and int operations on text, over UTF-8. Chat templates are written for Jinja on Python, and their
// output must match to the byte. Positions and counts are in characters (code points), as Python counts them.
// Pure functions. Every text that comes in is valid UTF-8, and so is every text that goes out.
//
// Upper and lower case beyond ASCII need utf8proc; without it such characters do not change (python_knows_unicode()).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace seer {

/// Holds any JSON integer exactly, with room to detect that a sum or product left the range.
__extension__ using Int128 = __int128;

size_t count_chars(std::string_view text);
/// The byte at which character `index` begins; text.size() at or past the end.
size_t byte_of_char(std::string_view text, size_t index);
std::vector<std::string_view> split_chars(std::string_view text);

/// str.isspace of one character: White_Space and the separators U+001C..U+001F.
bool is_python_space(uint32_t value);

struct StripSides {
  bool left = true;
  bool right = true;
};
/// str.strip, lstrip, rstrip. Without `chars`, white space is removed; else every character that `chars` holds.
std::string_view python_strip(std::string_view text, StripSides sides = {},
                              std::optional<std::string_view> chars = std::nullopt);
/// str.split() and rsplit() on runs of white space. splits_max < 0: no limit.
std::vector<std::string_view> python_split(std::string_view text, int64_t splits_max = -1);
std::vector<std::string_view> python_rsplit(std::string_view text, int64_t splits_max = -1);
/// The same on a separator. REQUIRES: separator is not empty.
std::vector<std::string_view> python_split_on(std::string_view text, std::string_view separator,
                                              int64_t splits_max = -1);
std::vector<std::string_view> python_rsplit_on(std::string_view text, std::string_view separator,
                                               int64_t splits_max = -1);
std::vector<std::string_view> python_splitlines(std::string_view text, bool keep_ends = false);

/// Whether this build has Unicode's tables (utf8proc). Without them only ASCII has upper and lower case.
bool python_knows_unicode();
std::string python_lower(std::string_view text);
std::string python_upper(std::string_view text);
std::string python_capitalize(std::string_view text);  // the first character upper, the rest lower
std::string python_title(std::string_view text);       // the same for every run of letters
/// str.islower and str.isupper: some letter has a case, and none has the other.
bool python_is_lower(std::string_view text);
bool python_is_upper(std::string_view text);

/// What a character counts as in str.isalpha, isdecimal and isalnum. None: this build does not know (beyond ASCII,
/// without utf8proc).
struct CharClass {
  bool letter = false;
  bool decimal = false;  // a digit of a decimal system
  bool numeric = false;  // decimal digits, and numbers of other kinds: ², ½, Ⅳ
};
std::optional<CharClass> python_class(uint32_t value);

std::string python_repr(std::string_view text);
std::string python_repr(double value);
std::string to_text(Int128 value);
/// int(text, base): white space around, a sign, single underscores between digits. None if Python raises.
std::optional<Int128> python_int(std::string_view text, int base = 10);
std::optional<double> python_float(std::string_view text);

/// A string inside a JSON document, with its quotes, as json.dumps writes it.
void append_json_string(std::string& out, std::string_view text, bool ensure_ascii);

}  // namespace seer
