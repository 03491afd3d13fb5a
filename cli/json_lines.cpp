#include "cli/json_lines.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace seer {
namespace {

/// Reads numbers as long double: 1e400 does not fit in a double, but must come back as written.
using WideJson =
    nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t, uint64_t, long double>;

constexpr size_t kDepthMax = 1000;  // of nested lists and objects: deeper ones would overflow the stack of a recursive reader

/// The first bytes of files in other formats.
struct OtherFormat {
  std::string_view bytes;
  const char* what;
};
constexpr std::array<OtherFormat, 10> kOtherFormats{{
    {"\x1f\x8b", "is gzip-compressed: unpack it first"},
    {"PK\x03\x04", "is a zip archive: unpack it first"},
    {"\x28\xb5\x2f\xfd", "is zstd-compressed: unpack it first"},
    {"\xfd\x37zXZ", "is xz-compressed: unpack it first"},
    {"BZh", "is bzip2-compressed: unpack it first"},
    {"PAR1", "is a Parquet file: write it as JSON Lines first"},
    {"\xff\xfe", "is UTF-16: convert it to UTF-8 first"},
    {"\xfe\xff", "is UTF-16: convert it to UTF-8 first"},
    {{"{\0", 2}, "is UTF-16: convert it to UTF-8 first"},
    {{"\0{", 2}, "is UTF-16: convert it to UTF-8 first"},
}};
constexpr const char* kMalformed = "malformed JSON";
constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf";

/// Reads the next line, without its newline; false at the end of the file. Stops reading a line soon after kLineBytesMax.
bool next_line(std::ifstream& file, std::string& text) {
  text.clear();
  std::array<char, 1 << 16> part;
  while (text.size() <= kLineBytesMax) {
    file.getline(part.data(), part.size());
    const auto count = static_cast<size_t>(file.gcount());  // with the newline, if it was reached
    const bool is_end = file.eof() || file.bad();
    const bool is_part = !is_end && file.fail();
    text.append(part.data(), is_end || is_part ? count : count - 1);
    if (is_end) return !text.empty();
    if (!is_part) return true;
    file.clear();
  }
  return true;
}

/// Receives the parser's events of a line, and checks them. Keeps the text of each member if asked to.
class LineEvents {
 public:
  explicit LineEvents(bool keeps_texts) : keeps_texts_(keeps_texts) {}

  bool null() { return value("null", "null"); }
  bool boolean(bool value_is) { return value(value_is ? "true" : "false", "boolean"); }
  bool number_integer(int64_t number) { return value(number == 0 ? "-0" : std::to_string(number), "number"); }  // has a minus sign
  bool number_unsigned(uint64_t number) { return value(std::to_string(number), "number"); }
  bool number_float(long double, const std::string& written) { return value(written, "number"); }
  bool string(const std::string& text) { return value(keeps_texts_ ? json_string(text) : "", "string"); }
  bool binary(const WideJson::binary_t&) { return false; }  // not in JSON
  bool start_object(size_t) {
    names_.emplace_back();
    return open('{', "object");
  }
  bool key(const std::string& name) {
    if (!names_.back().insert(name).second) return refuse(cat("field ", shown(name), " is given twice"));
    if (depth_ == 1) {
      members.push_back({name, ""});
    } else if (keeps_texts_) {
      append(json_string(name));
      members.back().text += ':';
    }
    return true;
  }
  bool end_object() {
    names_.pop_back();
    return close('}');
  }
  bool start_array(size_t) { return open('[', "array"); }
  bool end_array() { return close(']'); }
  bool parse_error(size_t position, const std::string& token, const nlohmann::detail::exception& e) {
    constexpr int kNumberOverflow = 406;
    error_byte = std::max<size_t>(position, 1);
    if (std::string_view(e.what()).find("UTF-8") != std::string_view::npos) return refuse("the text is not UTF-8");
    return refuse(e.id == kNumberOverflow ? cat("the number ", shown(token), " is too large") : kMalformed);
  }

  std::vector<JsonMember> members;
  std::string error;      // empty: none
  size_t error_byte = 0;  // 0: the error has no column

 private:
  bool refuse(std::string why) {
    error = std::move(why);
    return false;
  }
  bool value(const std::string& text, const char* type) {
    if (depth_ == 0) return refuse(cat("expected a JSON object, found ", type));
    if (keeps_texts_) append(text);
    return true;
  }
  bool open(char bracket, const char* type) {
    if (depth_ > 0 || bracket == '[') {
      if (!value(std::string(1, bracket), type)) return false;
    }
    return ++depth_ <= kDepthMax || refuse(cat("lists and objects are nested deeper than ", kDepthMax));
  }
  bool close(char bracket) {
    if (--depth_ > 0 && keeps_texts_) members.back().text += bracket;
    return true;
  }
  void append(const std::string& text) {
    std::string& member = members.back().text;
    const bool is_first = member.empty() || std::string_view("[{:").find(member.back()) != std::string_view::npos;
    if (!is_first) member += ',';
    member += text;
  }

  const bool keeps_texts_;
  size_t depth_ = 0;
  std::vector<std::set<std::string>> names_;  // of the open objects
};

/// The last bytes of the text before the error, which is at `byte`, counted from 1.
std::string text_before(std::string_view text, size_t byte) {
  constexpr size_t kBytesMax = 16;
  std::string before(text.substr(byte - std::min(byte, kBytesMax), std::min(byte, kBytesMax)));
  for (char& c : before)
    if (c < ' ' || c > '~') c = '?';
  return before;
}

Result<std::vector<JsonMember>> parse_line(const std::string& path, int64_t line, const std::string& text,
                                           bool keeps_texts) {
  LineEvents events(keeps_texts);
  if (WideJson::sax_parse(text, &events)) return std::move(events.members);
  if (events.error_byte == 0) return fail(Code::kInvalidArgument, path, ":", line, ": ", events.error);
  const std::string where = events.error != kMalformed            ? ""
                            : events.error_byte > text.size() ? ": the line ends too early"
                                                              : cat(" after ", text_before(text, events.error_byte));
  return fail(Code::kInvalidArgument, path, ":", line, ":", events.error_byte, ": ", events.error, where);
}

}  // namespace

Status check_line(const std::string& path, int64_t line, std::string& text) {
  if (line == 1) {
    for (const OtherFormat& other : kOtherFormats)
      if (text.starts_with(other.bytes)) return fail(Code::kInvalidArgument, path, " ", other.what);
    if (text.starts_with(kUtf8Mark)) text.erase(0, kUtf8Mark.size());
  }
  if (text.size() > kLineBytesMax)
    return fail(Code::kInvalidArgument, path, ":", line, ": the line is longer than ", kLineBytesMax >> 20,
                " MiB: expected a JSON object per line");
  return {};
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r") == std::string::npos; }

Status for_each_line(const std::string& path,
                     const std::function<Result<bool>(int64_t line, const std::string& text)>& take) {
  if (std::error_code ignored; std::filesystem::is_directory(path, ignored))
    return fail(Code::kInvalidArgument, "cannot read ", path, ": it is a folder, expected a file of JSON Lines");
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(Code::kNotFound, "cannot read ", path, ": ", std::strerror(errno));
  std::string text;
  for (int64_t line = 1; next_line(file, text); ++line) {
    SEER_RETURN_IF_ERROR(check_line(path, line, text));
    if (is_blank(text)) continue;
    SEER_ASSIGN_OR_RETURN(const bool more, take(line, text));
    if (!more) return {};
  }
  if (file.bad()) return fail(Code::kIo, "cannot read ", path, ": ", std::strerror(errno));
  return {};
}

Result<std::vector<JsonMember>> json_members(const std::string& path, int64_t line, const std::string& text) {
  return parse_line(path, line, text, true);
}

Status check_object(const std::string& path, int64_t line, const std::string& text) {
  const auto checked = parse_line(path, line, text, false);
  return checked.ok() ? Status{} : Status{checked.error()};
}

std::string json_string(std::string_view text) {
  return WideJson(text).dump(-1, ' ', false, WideJson::error_handler_t::replace);
}

std::string shown(std::string_view text) {
  constexpr size_t kBytesMax = 60;
  if (text.size() <= kBytesMax) return std::string(text);
  size_t end = kBytesMax - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace seer
