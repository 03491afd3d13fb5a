// The parts of the page must fit together. tests/integration/sim_html.sh checks that a browser draws it.
#include "cli/sim/sim_html_page.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "cli/sim/sim_example.h"
#include "cli/sim/sim_html.h"

using namespace seer;
using Json = nlohmann::json;
using Names = std::set<std::string>;

namespace {

const std::string kStyle{kSimHtmlStyle}, kGlossary{kSimHtmlGlossary}, kScript{kSimHtmlScript};

/// What the first group of the pattern matches, anywhere.
Names matches(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  Names found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) found.insert((*match)[1]);
  return found;
}

Names without(Names names, const Names& others) {
  std::erase_if(names, [&](const std::string& name) { return others.contains(name); });
  return names;
}

Names keys_of(const Json& object) {
  Names keys;
  for (const auto& [key, value] : object.items()) keys.insert(key);
  return keys;
}

std::string example_page() {
  return sim_html(std::vector{sim_example({.instances = 2, .groups = 4, .slots = 4}, sim_example_policies()[0], 1)}, "seer simulate");
}

}  // namespace

TEST_CASE("sim html page: none of the parts ends its element") {
  for (const std::string* part : {&kStyle, &kGlossary, &kScript}) {
    CHECK(part->find("</style") == std::string::npos);
    CHECK(part->find("</script") == std::string::npos);
    CHECK(part->find("<!--") == std::string::npos);
  }
}

TEST_CASE("sim html page: every colour that is used is defined, in the light and in the dark scheme") {
  const size_t dark = kStyle.find("prefers-color-scheme: dark");
  REQUIRE(dark != std::string::npos);
  const char* const defined = "(--[a-z0-9]+):";
  const Names light_colours = matches(kStyle.substr(0, dark), defined);
  CHECK(light_colours == matches(kStyle.substr(dark), defined));
  CHECK(without(matches(kStyle + kScript, "var\\((--[a-z0-9]+)\\)"), light_colours) == Names{});
  // Colours of policies, which repeat after the last, and of the five stops of a map.
  const Names colours = matches(kScript, "const kColours = ([0-9]+);");
  REQUIRE(colours.size() == 1);
  for (int i = 0; i < std::stoi(*colours.begin()); ++i) CHECK(light_colours.contains("--c" + std::to_string(i)));
  const Names maps = matches(kScript, "\\{name: '([a-z]+)'");
  CHECK(maps == Names{"kv", "run"});
  for (const std::string& map : maps)
    for (int i = 0; i < 5; ++i) CHECK(light_colours.contains("--" + map + std::to_string(i)));
}

TEST_CASE("sim html page: the elements that the script looks for are on the page") {
  const std::string page = example_page();
  const std::string shown = page.substr(0, page.find("'use strict'"));
  for (const std::string& id : matches(kScript, "getElementById\\('([a-z]+)'\\)"))
    CHECK_MESSAGE(shown.find(" id=" + id) != std::string::npos, id);
  for (const std::string& name : matches(kScript, "querySelector(?:All)?\\('\\.([a-z]+)'\\)"))
    CHECK_MESSAGE(shown.find("class=" + name) != std::string::npos, name);
  CHECK(matches(kScript, "querySelector(?:All)?\\('\\.([a-z]+)'\\)") == Names{"charts", "instances", "workload"});
}

TEST_CASE("sim html page: the script reads exactly the fields of the data that are written") {
  const std::string page = example_page();
  const std::string begin = "<script type=\"application/json\" id=data>";
  const size_t from = page.find(begin) + begin.size();
  const Json workload = Json::parse(page.substr(from, page.find("</script>", from) - from))[0], policy = workload["policies"][0];
  Names read = matches(kScript, "\\bpolicy\\.([a-z]+)");
  for (const char* pattern : {"key: '([a-z]+)'", "tail: '([a-z]+)'"}) read.merge(matches(kScript, pattern));
  CHECK(read == keys_of(policy));
  CHECK(without(matches(kScript, "\\bworkload\\.([a-z_]+)"), keys_of(workload)) == Names{});
  CHECK(without(matches(kScript, "policy\\.shown\\.([a-z]+)"), keys_of(policy["shown"])) == Names{});
  CHECK(without(matches(kScript, "policy\\.(?:running|kv)\\.([a-z]+)"), keys_of(policy["running"])) == Names{});
}
