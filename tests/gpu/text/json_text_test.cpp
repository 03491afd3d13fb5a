#include "gpu/text/json_text.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace seer;

namespace {

std::string error_of(std::string_view text) {
  const auto parsed = parse_json(text, "config.json");
  return parsed.ok() ? "" : parsed.error().detail;
}

}  // namespace

TEST_CASE("json text: a document is read, and an error names the file and the line") {
  CHECK((*parse_json(R"({"a": [1, {"b": 2}]})", "f"))["a"][1]["b"] == 2);
  CHECK(error_of("{\n  \"a\": 1,\n  oops\n}") == "config.json:3 is not valid JSON");
  CHECK(error_of("") == "config.json:1 is not valid JSON");
}

TEST_CASE("json text: a key twice in one object is an error with its path, in different objects it is not") {
  CHECK(error_of(R"({"a": {"b": 1, "c": 2, "b": 3}})") == "config.json: the key a.b is there twice");
  CHECK(error_of(R"({"a": {"b": 1}, "c": {"b": 3}, "d": [{"b": 1}, {"b": 2}]})") == "");
}

TEST_CASE("json text: a document nested too deep is refused, one at the limit is read") {
  const auto nested = [](int levels) {
    return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']');
  };
  CHECK(error_of(nested(60)) == "");
  CHECK(error_of(nested(100)) == "config.json is nested deeper than 64 levels");
  CHECK(error_of(nested(100'000)) == "config.json is nested deeper than 64 levels");
}

TEST_CASE("json text: a number beyond double is an error without a line") {
  CHECK(error_of("[1e999]") == "config.json is not valid JSON");
}

TEST_CASE("json text: another format is called by its name") {
  using namespace std::string_view_literals;
  CHECK(error_of("GGUF\x03") == "config.json is a GGUF file, not JSON");
  CHECK(error_of("\x1f\x8b\x08") == "config.json is gzip data, not JSON");
  CHECK(error_of("{\0\"\0"sv) == "config.json is UTF-16 text, not JSON");
  CHECK(error_of("<!DOCTYPE html>") == "config.json is an HTML page, not JSON");
  CHECK(error_of("version https://git-lfs.github.com/spec/v1").find("git lfs pull") != std::string::npos);
  CHECK(known_format("{}").empty());
  CHECK(known_format("").empty());
}

TEST_CASE("json text: a long text is cut to the bytes that are asked for, never within a character") {
  CHECK(shortened("short", 60) == "short");
  CHECK(shortened(std::string(60, 'a'), 60) == std::string(60, 'a'));
  CHECK(shortened(std::string(61, 'a'), 60) == std::string(57, 'a') + "...");
  std::string text;
  for (int i = 0; i < 40; ++i) text += "\u00e9";
  for (size_t most = 4; most < 70; ++most) {
    const std::string cut = shortened(text, most);
    CHECK(cut.size() <= most);
    CHECK(cut.ends_with("..."));
    CHECK((cut.size() - 3) % 2 == 0);
  }
}
