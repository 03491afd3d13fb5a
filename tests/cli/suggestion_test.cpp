#include "cli/suggestion.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("suggestions: one typing error still finds the name, another word finds none") {
  const std::vector<std::string> known{"policy", "policies", "prompts", "out", "seed", "temperature", "top-p", "top-k"};
  const struct {
    const char* typed;
    const char* meant;
  } table[] = {
      {"polcy", "policy"},     {"poilcy", "policy"},  {"Policy", "policy"},  {"policie", "policies"}, {"prompt", "prompts"},
      {"promtps", "prompts"},  {"temprature", "temperature"},                {"temp", "temperature"}, {"top_p", "top-p"},
      {"outt", "out"},         {"sede", "seed"},      {"seeed", "seed"},     {"batch", ""},           {"te", ""},
      {"top", ""},             {"", ""},              {"x", ""},             {"abc", ""},             {"concurrency", ""},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.typed));
    CHECK(nearest_name(row.typed, known) == row.meant);
  }
  CHECK(nearest_name(std::string(100'000, 'a'), known) == "");
  CHECK(nearest_name("policy", {}) == "");
}

TEST_CASE("suggestions: a long value is cut between characters, and keeps to its line") {
  CHECK(shown_value("seer") == "seer");
  CHECK(shown_value("a\nb\x1b") == "a?b?");
  CHECK(shown_value(std::string(60, 'x')) == std::string(60, 'x'));
  CHECK(shown_value(std::string(5000, 'x')) == std::string(60, 'x') + "...");
  CHECK(shown_value(std::string(59, 'x') + "\xc3\xa9 and so on") == std::string(59, 'x') + "...");
}
