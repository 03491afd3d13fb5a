#include "cli/sim/sim_html.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/sim/sim_example.h"

using namespace seer;
using Json = nlohmann::json;

namespace {

SimRun small_run(const char* workload, const char* policy) {
  SimRun run{.workload = workload, .policy = policy, .seed = 3, .total_s = 300, .tail_s = 60, .tokens_per_s = 50};
  run.instances = {{{0, 4, 0.5}, {150, 0, 0}}};
  run.completions_s = {200, 100, 300};
  return run;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

Json data_of(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=data>";
  const size_t from = html.find(begin) + begin.size();
  return Json::parse(html.substr(from, html.find("</script>", from) - from));
}

int level_at(const std::string& row, size_t column) {  // as the page's script reads it
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  return static_cast<int>(digits.find(row[2 * column]) * 64 + digits.find(row[2 * column + 1]));
}

}  // namespace

TEST_CASE("sim html: nothing is fetched: the only address is the name of SVG") {
  const std::string html = sim_html(std::vector{small_run("w", "verl")}, "seer simulate");
  CHECK(count_of(html, "http://") == count_of(html, "http://www.w3.org/2000/svg"));
  CHECK(count_of(html, "https://") == 0);
  CHECK(count_of(html, " src=") + count_of(html, "<link") + count_of(html, "url(") + count_of(html, "@import") == 0);
  CHECK(contains(html, "default-src 'none'"));
}

TEST_CASE("sim html: names cannot become markup") {
  const std::string evil = "<script>alert('1')</script>&\"";
  const std::string html = sim_html(std::vector{small_run(evil.c_str(), evil.c_str())}, evil);
  CHECK(!contains(html, "<script>alert"));
  CHECK(contains(html, "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;"));
  CHECK(count_of(html, "<script") == 2);  // the data and the page's own
  CHECK(data_of(html)[0]["policies"][0]["name"] == evil);
}

TEST_CASE("sim html: names that are not UTF-8 do not break the page") {
  const std::string html = sim_html(std::vector{small_run("\xff", "verl")}, "");
  CHECK(data_of(html)[0]["name"] == "\xEF\xBF\xBD");
}

TEST_CASE("sim html: a timeline holds the mean of each span of time") {
  SimRun run = small_run("w", "verl");  // 300 columns of a second
  run.instances = {{{0, 4, 0.5}, {100.25, 8, 1}, {150, 0, 0}}, {}};
  const Json policy = data_of(sim_html(std::vector{run}, ""))[0]["policies"][0];
  CHECK(policy["running"]["most"] == 8);
  const std::string row = policy["running"]["rows"][0];
  REQUIRE(row.size() == 600);
  CHECK(level_at(row, 0) == 2048);    // 4 of 8
  CHECK(level_at(row, 100) == 3583);  // 4 for a quarter of a second, then 8: 7 of 8
  CHECK(level_at(row, 149) == 4095);
  CHECK(level_at(row, 150) == 0);
  CHECK(level_at(policy["kv"]["rows"][0], 10) == 2048);
  CHECK(level_at(policy["running"]["rows"][1], 10) == 0);  // never a sample: it ran nothing
}

TEST_CASE("sim html: samples after the end or without a length change nothing") {
  SimRun run = small_run("w", "verl");
  const std::string plain = sim_html(std::vector{run}, "");
  run.instances[0] = {{0, 4, 0.5}, {150, 9, 1}, {150, 0, 0}, {300, 5, 1}, {1e300, 7, 1}};
  CHECK(sim_html(std::vector{run}, "") == plain);
}

TEST_CASE("sim html: completions are in order, and no more than can be seen") {
  SimRun run = small_run("w", "verl");
  CHECK(data_of(sim_html(std::vector{run}, ""))[0]["policies"][0]["completions"] == Json{100.0, 200.0, 300.0});
  run.completions_s.clear();
  for (int i = 4000; i > 0; --i) run.completions_s.push_back(i);
  const Json shown = data_of(sim_html(std::vector{run}, ""))[0]["policies"][0]["completions"];
  REQUIRE(shown.size() == 400);
  CHECK(shown[0] == 10.0);
  CHECK(shown[359] == 3600.0);
  CHECK(shown[399] == 4000.0);
}

TEST_CASE("sim html: runs without timelines, completions or known figures still make a page") {
  SimRun run = small_run("w", "seer");
  run.instances.clear();
  run.completions_s.clear();
  const Json policy = data_of(sim_html(std::vector{run}, ""))[0]["policies"][0];
  CHECK(policy["running"]["rows"].empty());
  CHECK(policy["completions"].empty());
  CHECK(policy["estimate"] == Json{nullptr, nullptr});
  CHECK(data_of(sim_html({}, "")).empty());
}

TEST_CASE("sim html: a row per policy and one of the bound, and each run with its hash") {
  SimRun verl = small_run("w", "verl"), partial = small_run("w", "partial");
  verl.bound_total_s = 150;
  verl.events_hash = 0xabc;
  partial.is_synchronous = false;
  const std::string html = sim_html(std::vector{verl, partial}, "seer simulate --workload w");
  CHECK(contains(html, "<tr class=bound><th scope=row>(lower bound)</th>"));
  CHECK(contains(html, "<th scope=row>partial *</th>"));
  CHECK(contains(html, "<p class=about>* not strictly synchronous"));
  CHECK(contains(html, "<td class=hash>0000000000000abc</td>"));
  CHECK(contains(html, "Fastest that is strictly synchronous: <b>verl</b>"));
  CHECK(contains(html, "seer simulate --workload w"));
}

TEST_CASE("sim html: the same runs give the same bytes, below 3 MB for 10 policies on 64 instances") {
  std::vector<SimRun> runs;
  for (const SimExamplePolicy& policy : sim_example_policies())
    runs.push_back(sim_example({.instances = 64, .groups = 400, .slots = 24}, policy, 1));
  const std::string html = sim_html(runs, "seer simulate");
  CHECK(html == sim_html(runs, "seer simulate"));
  CHECK(html.size() < 3'000'000);
}

// For tests/integration/sim_html.sh, which opens the page in a browser.
TEST_CASE("sim html: write an example page" * doctest::skip()) {
  const char* path = std::getenv("SEER_SIM_HTML_FILE");
  REQUIRE(path != nullptr);
  std::vector<SimRun> runs;
  for (const SimExampleShape& shape :
       {SimExampleShape{.workload = "moonlight", .instances = 32, .groups = 400, .slots = 20},
        SimExampleShape{.workload = "<b>small</b> & odd", .instances = 4, .groups = 12, .slots = 6}})
    for (const SimExamplePolicy& policy : sim_example_policies())
      for (uint64_t seed = 1; seed <= 3; ++seed) runs.push_back(sim_example(shape, policy, seed));
  SimRun bare = small_run("bare", "seer");  // of which next to nothing is known
  bare.instances.clear();
  bare.completions_s.clear();
  runs.push_back(bare);
  std::ofstream file(path, std::ios::binary);
  file << sim_html(runs, "seer simulate --workload moonlight --policy all --seeds 1,2,3");
  REQUIRE(file.good());
}
