#include "gpu/text/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

namespace seer {
namespace {

using Json = nlohmann::json;

constexpr int kDepthMax = 64;  // the library writes and copies values recursively: a deep one exhausts the stack

// Watches the keys of a document while it is parsed, and keeps the path of the first duplicate in an object.
class DuplicateKeys {
 public:
  void see(Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start) {
      open_.emplace_back();
    } else if (event == Event::object_end) {
      open_.pop_back();
    } else if (event == Event::key) {
      Object& object = open_.back();
      object.key = parsed.get<std::string>();
      if (!object.seen.insert(object.key).second && first_.empty()) first_ = path();
    }
  }
  /// Empty: none.
  const std::string& first() const { return first_; }

 private:
  struct Object {
    std::unordered_set<std::string> seen;
    std::string key;  // the last one
  };
  std::string path() const {
    std::string text;
    for (const Object& object : open_) text += (text.empty() ? "" : ".") + object.key;
    return text;
  }

  std::vector<Object> open_;  // the objects around the current position
  std::string first_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& name, RepeatedKeys repeated) {
  DuplicateKeys keys;
  bool too_deep = false;
  Json json;
  try {
    json = Json::parse(text.begin(), text.end(), [&](int depth, Json::parse_event_t event, Json& parsed) {
      too_deep |= depth > kDepthMax;
      if (!too_deep && repeated == RepeatedKeys::kRefused) keys.see(event, parsed);
      return !too_deep;
    });
  } catch (const Json::exception& e) {
    if (const std::string_view format = known_format(text); !format.empty())
      return fail(Code::kInvalidArgument, name, " is ", format, ", not JSON");
    const auto* where = dynamic_cast<const Json::parse_error*>(&e);  // else a number beyond double, without a position
    const size_t bytes = where ? std::min(where->byte, text.size()) : 0;
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bytes), '\n');
    return fail(Code::kInvalidArgument, name, where ? cat(":", line) : "", " is not valid JSON");
  }
  if (too_deep) return fail(Code::kInvalidArgument, name, " is nested deeper than ", kDepthMax, " levels");
  if (!keys.first().empty())
    return fail(Code::kInvalidArgument, name, ": the key ", shortened(keys.first(), 120), " is there twice");
  return json;
}

std::string_view known_format(std::string_view bytes) {
  using namespace std::string_view_literals;
  struct Format {
    std::string_view start, name;
  };
  static constexpr Format kFormats[] = {
      {"GGUF"sv, "a GGUF file"},
      {"\x1f\x8b"sv, "gzip data"},
      {"\xff\xfe"sv, "UTF-16 text"},
      {"\xfe\xff"sv, "UTF-16 text"},
      {"{\0"sv, "UTF-16 text"},
      {"\0{"sv, "UTF-16 text"},
      {"PK\x03\x04"sv, "a zip archive, as PyTorch writes"},
      {"version https://git-lfs"sv, "a Git LFS pointer, the file itself was not downloaded (git lfs pull)"},
      {"<!DOCTYPE"sv, "an HTML page"},
      {"<html"sv, "an HTML page"},
  };
  for (const Format& format : kFormats)
    if (bytes.starts_with(format.start)) return format.name;
  return {};
}

std::string shortened(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  size_t end = bytes_max - 3;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace seer
