#include "cli/sim/workload.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "cli/scratch.h"

using namespace seer;

namespace {

Workload load(const std::string& name) {
  Result<Workload> workload = load_workload(name);
  REQUIRE_MESSAGE(workload.ok(), workload.error().detail);
  return *std::move(workload);
}

std::string error_of(const std::string& name) {
  const Result<Workload> workload = load_workload(name);
  REQUIRE(!workload.ok());
  return workload.error().detail;
}

double mean_of(const std::vector<GroupLengths>& groups) {
  double sum = 0, count = 0;
  for (const GroupLengths& group : groups)
    for (int64_t tokens : group.output_tokens) {
      sum += static_cast<double>(tokens);
      count += 1;
    }
  return sum / count;
}

double share_of(const std::vector<GroupLengths>& groups, int64_t tokens) {
  double hits = 0, count = 0;
  for (const GroupLengths& group : groups)
    for (int64_t t : group.output_tokens) {
      hits += t == tokens ? 1 : 0;
      count += 1;
    }
  return hits / count;
}

/// Share of the variance of ln L between groups, by analysis of variance.
double icc_of(const std::vector<GroupLengths>& groups) {
  const auto n = static_cast<double>(groups.front().output_tokens.size()), k = static_cast<double>(groups.size());
  double total = 0;
  std::vector<double> means;
  for (const GroupLengths& group : groups) {
    double sum = 0;
    for (int64_t t : group.output_tokens) sum += std::log(static_cast<double>(t));
    means.push_back(sum / n);
    total += sum / n;
  }
  double between = 0, within = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    between += n * (means[g] - total / k) * (means[g] - total / k) / (k - 1);
    for (int64_t t : groups[g].output_tokens)
      within += std::pow(std::log(static_cast<double>(t)) - means[g], 2) / (k * (n - 1));
  }
  return (between - within) / (between + (n - 1) * within);
}

/// The probability that a normal number is above x.
double above(double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); }

constexpr const char* kLeast =
    "[workload]\ninstances = 2\ngroups = 3\ngroup-size = 2\nprompt-tokens = 9\nmax-gen = 900\navg-gen = 200\n"
    "sigma = 0.5\nicc = 0.5\n";

}  // namespace

TEST_CASE("workload: the built-in ones are those of the paper") {
  const struct {
    const char* name;
    int64_t instances, gpus, requests, group_size, max_gen;
    double avg_gen, temperature;
  } rows[] = {{"moonlight", 32, 32, 3200, 8, 65536, 22386, 1.0},
              {"qwen2-vl-72b", 16, 128, 9600, 16, 40960, 7615, 0.8},
              {"kimi-k2", 8, 256, 6400, 8, 98304, 38959, 1.0}};
  CHECK(workload_names() == std::vector<std::string>{"moonlight", "qwen2-vl-72b", "kimi-k2"});
  for (const auto& row : rows) {
    const Workload w = load(row.name);
    CHECK(w.name == row.name);
    CHECK(w.instances == row.instances);
    CHECK(w.instances * w.hardware->gpus_per_instance == row.gpus);
    CHECK(w.groups * w.group_size == row.requests);
    CHECK(w.group_size == row.group_size);
    CHECK(w.lengths.max_gen == row.max_gen);
    CHECK(w.lengths.avg_gen == row.avg_gen);
    CHECK(w.temperature == row.temperature);
    CHECK(w.hardware->gpu.name == "H800");
    // The longest request fits the instance that it runs on.
    const Result<HardwareModel> model = HardwareModel::create(*w.hardware);
    REQUIRE(model.ok());
    CHECK(model->kv_capacity_tokens() / w.hardware->dp > w.prompt_tokens + w.lengths.max_gen);
    // The shipped file is what was compiled in.
    CHECK(load(cat(SEER_SOURCE_DIR, "/deploy/sim/", row.name, ".toml")).lengths.avg_gen == row.avg_gen);
  }
}

TEST_CASE("workload: drawn lengths have the published mean, within 2 % over seeds, whatever the spread") {
  for (const std::string& name : workload_names())
    for (double sigma : {0.3, 0.7, 1.2}) {
      Workload w = load(name);
      w.lengths.sigma = sigma;
      double mean = 0;
      for (uint64_t seed = 0; seed < 50; ++seed) mean += mean_of(draw_lengths(w, seed)) / 50;
      CAPTURE(name);
      CAPTURE(sigma);
      CHECK(mean == doctest::Approx(w.lengths.avg_gen).epsilon(0.02));
    }
}

TEST_CASE("workload: the mean that mu is solved for is that of the closed form") {
  WorkloadLengths l;
  l.min_gen = 64;
  l.max_gen = 65536;
  l.avg_gen = 22386;
  l.sigma = 0.9;
  const double mu = solve_mu(l), s = l.sigma;
  const double a = (std::log(64.0) - mu) / s, b = (std::log(65536.0) - mu) / s;
  const double mean = 64 * (1 - above(a)) + 65536 * above(b) + std::exp(mu + s * s / 2) * (above(a - s) - above(b - s));
  CHECK(mean == doctest::Approx(22386).epsilon(1e-4));
}

TEST_CASE("workload: the share of lengths at the limit is that of the normal tail") {
  Workload w = load("moonlight");
  const double expected = above((std::log(65536.0) - solve_mu(w.lengths)) / w.lengths.sigma);
  double share = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) share += share_of(draw_lengths(w, seed), 65536) / 50;
  CHECK(share == doctest::Approx(expected).epsilon(0.05));
  CHECK(share > 0.01);
}

TEST_CASE("workload: lengths of a group are as alike as the icc says") {
  Workload w = load("moonlight");
  w.lengths.min_gen = 1;
  w.lengths.max_gen = int64_t{1} << 30;  // nothing is clipped
  for (double icc : {0.0, 0.3, 0.73, 1.0}) {
    w.lengths.icc = icc;
    double found = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) found += icc_of(draw_lengths(w, seed)) / 20;
    CHECK(std::abs(found - icc) < 0.02);
  }
}

TEST_CASE("workload: the same seed gives the same lengths, on every machine, whatever the number of groups") {
  Workload w = load("qwen2-vl-72b");
  w.lengths.sigma = 1.0;  // whatever it is fitted to
  w.lengths.icc = 0.73;
  const std::vector<GroupLengths> groups = draw_lengths(w, 7);
  CHECK(draw_lengths(w, 7) == groups);
  CHECK(draw_lengths(w, 8) != groups);
  CHECK(groups.size() == 600);
  CHECK(groups[0].prompt_tokens == 1500);
  w.groups = 10;
  CHECK(draw_lengths(w, 7) == std::vector<GroupLengths>(groups.begin(), groups.begin() + 10));
  CHECK(draw_lengths(w, 7, 10) == std::vector<GroupLengths>(groups.begin() + 10, groups.begin() + 20));
  w.group_size = 4;
  CHECK(draw_lengths(w, 7)[9].output_tokens ==
        std::vector<int64_t>(groups[9].output_tokens.begin(), groups[9].output_tokens.begin() + 4));
  // Written down once: a change of the stream changes every published result.
  w.groups = 1;
  CHECK(draw_lengths(w, 7)[0].output_tokens == std::vector<int64_t>{1406, 731, 2938, 1447});
}

TEST_CASE("workload: the other families keep the mean") {
  Workload w = load("moonlight");
  w.lengths.runaway_share = 0.05;
  const std::vector<GroupLengths> runaways = draw_lengths(w, 1);
  CHECK(share_of(runaways, 65536) > 0.04);
  w.lengths.runaway_share = 0;
  w.lengths.sigma = 0.1;
  w.lengths.long_share = 0.2;
  w.lengths.long_ratio = 4;
  const std::vector<GroupLengths> bimodal = draw_lengths(w, 1);
  // Means of 22386 / 1.6 = 13991 and of four times that, with nothing between.
  double longer = 0, between = 0;
  for (const GroupLengths& group : bimodal)
    for (int64_t t : group.output_tokens) {
      longer += t > 40'000 ? 1 : 0;
      between += t > 25'000 && t < 35'000 ? 1 : 0;
    }
  CHECK(longer / 3200 == doctest::Approx(0.2).epsilon(0.1));
  CHECK(between == 0);
  for (double runaway : {0.0, 0.05})
    for (double ratio : {1.0, 4.0}) {
      w.lengths.sigma = 0.5;
      w.lengths.runaway_share = runaway;
      w.lengths.long_ratio = ratio;
      double mean = 0;
      for (uint64_t seed = 0; seed < 20; ++seed) mean += mean_of(draw_lengths(w, seed)) / 20;
      CHECK(mean == doctest::Approx(22386).epsilon(0.02));
    }
}

TEST_CASE("workload: with drift, groups grow from the first to the last, and the mean stays") {
  Workload w = load("moonlight");
  w.lengths.sigma = 0.3;
  w.lengths.drift = 1.5;
  double mean = 0, first = 0, last = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<GroupLengths> groups = draw_lengths(w, seed);
    mean += mean_of(groups) / 20;
    first += mean_of({groups.begin(), groups.begin() + 40}) / 20;
    last += mean_of({groups.end() - 40, groups.end()}) / 20;
  }
  CHECK(mean == doctest::Approx(22386).epsilon(0.02));
  CHECK(std::log(last / first) == doctest::Approx(1.5 * 0.9).epsilon(0.1));  // the middles of the two tenths
}

TEST_CASE("workload: a real run is replayed with its own lengths") {
  const ScratchFolder folder;
  std::string text;
  for (const uint32_t sample : {1, 0})  // in the order in which responses finished
    for (const uint32_t group : {2, 0, 1}) {
      const std::vector<int32_t> prompt(3 + group, 5), output(10 * group + sample + 1, 6);
      const std::vector<float> logprobs(output.size(), -1);
      ResponseLine line;
      line.request = {.group = GroupId{group}, .sample = sample};
      line.prompt_ids = prompt;
      line.output_ids = output;
      line.logprobs = logprobs;
      line.carried = "\"answer\":12";
      text += response_line(line);
    }
  const std::string trace = folder.write("run.jsonl", text);
  const std::vector<GroupLengths> expected{
      {3, {1, 2}, {{}, {0, 1}}}, {4, {11, 12}, {{}, {0, 11}}}, {5, {21, 22}, {{}, {0, 21}}}};
  const Workload bare = load(trace);
  CHECK(bare.name == "run");
  CHECK(!bare.hardware);
  CHECK(bare.instances == 0);
  CHECK(bare.groups == 3);
  CHECK(bare.group_size == 2);
  CHECK(bare.prompt_tokens == 4);
  CHECK(bare.lengths.max_gen == 22);
  CHECK(bare.lengths.avg_gen == doctest::Approx(69 / 6.0));
  CHECK(draw_lengths(bare, 1) == expected);
  CHECK(draw_lengths(bare, 2) == expected);

  const Workload placed = load(folder.write("w.toml",
                                            "[workload]\nname = \"mine\"\ntrace = \"run.jsonl\"\ninstances = 4\n"
                                            "gpu = \"A100\"\nmodel = \"Llama-3.1-8B\"\nmax-gen = 100\n"));
  CHECK(placed.name == "mine");
  CHECK(placed.instances == 4);
  CHECK(placed.hardware->model.name == "Llama-3.1-8B");
  CHECK(placed.lengths.max_gen == 100);
  CHECK(draw_lengths(placed, 1) == expected);

  const Workload counts = load(folder.write("c.jsonl",
                                            "{\"group\":0,\"sample\":0,\"prompt_tokens\":7,\"tokens\":3}\n"
                                            "\n{\"group\":0,\"sample\":1,\"prompt_tokens\":7,\"tokens\":4}\n"));
  CHECK(draw_lengths(counts, 1) == std::vector<GroupLengths>{{7, {3, 4}}});
}

TEST_CASE("workload: of a run with tokens it is known how long responses of a group were the same") {
  const ScratchFolder folder;
  std::string text;
  for (const auto& [sample, ids] : {std::pair{0, "1,2,3,9"}, {1, "4"}, {2, "1,2,7,8,9"}, {3, "1,2,7,5"}, {4, "1,2,3,9"}})
    text += cat("{\"group\":0,\"sample\":", sample, ",\"prompt_ids\":[5],\"output_ids\":[", ids, "]}\n");
  const Workload run = load(folder.write("run.jsonl", text));
  CHECK(run.trace[0].shared == std::vector<SharedBeginning>{{}, {}, {0, 2}, {2, 3}, {0, 4}});
  const Workload part = load(folder.write("part.jsonl", text + R"({"group":0,"sample":5,"prompt_tokens":1,"tokens":3})"));
  CHECK(part.trace[0].shared.empty());
}

TEST_CASE("workload: responses of a run that failed or were aborted are left out, and groups of which none is left") {
  const ScratchFolder folder;
  const std::string text = R"({"group":0,"sample":0,"prompt_ids":[5],"output_ids":[],"finish_reason":"error","error":"no room"}
{"group":1,"sample":0,"prompt_ids":[5,6],"output_ids":[7],"finish_reason":"abort"}
{"group":1,"sample":1,"prompt_ids":[5,6],"output_ids":[7,8,9],"finish_reason":"stop"}
{"group":1,"sample":2,"prompt_ids":[5,6],"output_ids":[7,8],"finish_reason":"length"}
)";
  const Workload run = load(folder.write("run.jsonl", text));
  CHECK(run.left_out == 2);
  CHECK(run.trace == std::vector<GroupLengths>{{2, {3, 2}, {{}, {0, 2}}}});
  const std::string none = folder.write("none.jsonl", text.substr(0, text.find('\n')));
  CHECK(load_workload(none).error().detail == none + ": all 1 responses failed or were aborted");
}

TEST_CASE("workload: a file adds GPUs and models of its own") {
  const ScratchFolder folder;
  folder.write("hw.json", R"({"gpus": {"Half": {
    "hbm_gb": {"value": 40, "source": "t"}, "hbm_tb_per_s": {"value": 1.5, "source": "t"},
    "bf16_tflops": {"value": 300, "source": "t"}, "fp8_tflops": {"value": 0, "source": "t"},
    "nvlink_gb_per_s": {"value": 100, "source": "t"}, "nic_gb_per_s": {"value": 25, "source": "t"},
    "gpus_per_node": {"value": 4, "source": "t"}}}, "costs": {"step_us": {"value": 7, "source": "t"}}})");
  const Workload w = load(folder.write(
      "w.toml",
      cat(kLeast, "hardware-file = \"hw.json\"\ngpu = \"Half\"\nmodel = \"Qwen2.5-7B\"\ntime-scale = 1.5\nwatermark-share = 0.0\n",
          "verl-block-tokens = 64\n")));
  CHECK(w.name == "w");
  CHECK(w.hardware->gpu.hbm_gb == 40);
  CHECK(w.hardware->costs.step_us == 7);
  CHECK(w.hardware->time_scale == 1.5);
  CHECK(w.watermark_share == 0);
  CHECK(w.verl_block_tokens == 64);
  CHECK(!load(folder.write("n.toml", kLeast)).hardware);
}

TEST_CASE("workload: each bad file gets file, line, field, value and what was expected") {
  const ScratchFolder folder;
  const std::string hardware = "gpu = \"H800\"\nmodel = \"Kimi-K2\"\n";
  const struct {
    std::string text, error;
  } tomls[] = {
      {"x", ":1: not TOML: encountered end-of-file"},
      {"", ": expected the table [workload]"},
      {"[work]\n", ":1: unknown key \"work\": expected the table [workload]"},
      {"[workload]\ngroup-size = 0\n", ":2: group-size = 0: expected an integer, at least 1 and at most 65536"},
      {"[workload]\nicc = 1.5\n", ":2: icc = 1.5: expected a number, at least 0 and at most 1"},
      {"[workload]\nsigma = \"wide\"\n", ":2: sigma = 'wide': expected a number, above 0 and at most 10"},
      {"[workload]\n", ": instances is missing: expected an integer, at least 1 and at most 65536"},
      {"[workload]\ninstances = 1\ngroups = 1\ngroup-size = 2\n",
       ": prompt-tokens is missing: expected an integer, at least 1 and at most 1073741824"},
      {"[workload]\ninstances = 1\ngpu = \"H800\"\n", ": model is missing: expected text"},
      {"[workload]\ninstances = 1\ntrace = \"t\"\ngroups = 4\n",
       ": groups is given, but trace says it, too: expected one of them"},
      {cat(kLeast, "gpu = \"B200\"\nmodel = \"Kimi-K2\"\n"),
       ": gpu is \"B200\": expected one of A100, H100, H200, H800"},
      {cat(kLeast, hardware, "tp = 8\n"), ": gpus-per-instance is 1: expected tp x dp = 8 x 1"},
      {cat(kLeast, hardware),
       ": the weights of Kimi-K2 do not fit: 1028.76 GB on each H800 (tp 1, dp 1, ep 1), which has "
       "80 GB less a reserve of 8"},
      {cat(kLeast, "min-gen = 900\n"), ": min-gen is 900: expected less than max-gen, 900"},
      {cat(kLeast, "runaway-share = 0.5\n"),
       ": avg-gen is 200: expected above 482 and below 900, as min-gen, max-gen and runaway-share say"},
  };
  for (const auto& row : tomls) {
    CAPTURE(row.text);
    const std::string file = folder.write("w.toml", row.text);
    CHECK(error_of(file) == file + row.error);
  }
  const std::string unknown = error_of(folder.write("w.toml", "[workload]\ngroup_size = 8\n"));
  CHECK(unknown.find(":2: unknown key \"group_size\": expected one of name, gpu, model, ") != std::string::npos);

  const std::string first = R"({"group":0,"sample":0,"prompt_tokens":7,"tokens":3})"
                            "\n";
  const struct {
    std::string text, error;
  } traces[] = {
      {"", " holds no responses: expected a JSON object per line"},
      {"{\n", ":1:2: malformed JSON: "},
      {"[]\n", ":1: expected a JSON object, found array"},
      {R"({"group":0,"sample":0})",
       ":1: no field tokens: expected {group, sample, tokens} or {group, sample, output_ids}"},
      {R"({"group":0,"sample":0,"tokens":3})", ":1: no field prompt_tokens: expected it, or prompt_ids"},
      {R"({"group":0,"sample":0,"tokens":0,"prompt_tokens":3})", ":1: tokens is 0: expected an integer of at least 1"},
      {R"({"group":0,"sample":0,"output_ids":[],"prompt_tokens":3})", ":1: output_ids is empty"},
      {R"({"group":0,"sample":0,"output_ids":[1],"prompt_ids":[-1]})",
       ":1: prompt_ids[0] is -1: expected a token id from 0 to 2147483647"},
      {first + first, ":2: group 0 sample 0 has a line before this one"},
      {first + R"({"group":0,"sample":1,"prompt_tokens":8,"tokens":3})",
       ":2: the prompt has 8 tokens: expected 7 as in an earlier line of group 0"},
      {R"({"group":1,"sample":0,"prompt_tokens":8,"tokens":3})", ": no response of group 0 sample 0: "},
      {first + R"({"group":0,"sample":2,"prompt_tokens":7,"tokens":3})", ": no response of group 0 sample 1: "},
      {first + R"({"group":9000000000000000000,"sample":0,"prompt_tokens":7,"tokens":3})",
       ": no response of group 1 sample 0: "},
  };
  for (const auto& row : traces) {
    CAPTURE(row.text);
    const std::string file = folder.write("t.jsonl", row.text);
    CHECK(error_of(file).starts_with(file + row.error));
  }
  folder.write("t.jsonl", first);
  CHECK(error_of(folder.write("w.toml", "[workload]\ninstances = 1\ntrace = \"t.jsonl\"\nmax-gen = 2\n")) ==
        folder.path("t.jsonl") + ": a response has 3 tokens: expected at most max-gen, 2");
  CHECK(error_of("moonlite") ==
        "workload moonlite: expected one of moonlight, qwen2-vl-72b, kimi-k2, a FILE.toml or a TRACE.jsonl");
  CHECK(load_workload("/no/such.toml").error().code == Code::kNotFound);
  CHECK(load_workload("/no/such.jsonl").error().code == Code::kNotFound);
}
