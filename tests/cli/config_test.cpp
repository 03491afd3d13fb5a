#include "cli/config.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "cli/scratch.h"

using namespace seer;

namespace {

using Arguments = std::vector<std::string>;

const Arguments kLeast{"rollout", "--model", "m", "--prompts", "p.jsonl", "--out", "o.jsonl"};

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

RolloutOptions rollout(const Arguments& more) {
  const Result<Command> command = parse_command_line(kLeast + more);
  REQUIRE_MESSAGE(command.ok(), command.error().detail);
  return std::get<RolloutOptions>(*command);
}

std::string error_of(const Arguments& arguments) {
  const Result<Command> command = parse_command_line(arguments);
  REQUIRE(!command.ok());
  return command.error().detail;
}

std::string printed(const Arguments& arguments) {
  const Result<Command> command = parse_command_line(arguments);
  REQUIRE_MESSAGE(command.ok(), command.error().detail);
  return std::get<PrintAndExit>(*command).text;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("config: every flag of the main job reaches its field") {
  const RolloutOptions o = rollout({"--group-size",
                                    "3",
                                    "--instances",
                                    "4",
                                    "--threads-per-instance",
                                    "2",
                                    "--policy",
                                    "las",
                                    "--chunk-tokens",
                                    "17",
                                    "--reserve",
                                    "0.25",
                                    "--max-batch",
                                    "5",
                                    "--prefill-tokens",
                                    "64",
                                    "--lengths",
                                    "l",
                                    "--kv-bytes",
                                    "1MiB",
                                    "--dram-bytes",
                                    "2MiB",
                                    "--cold-dir",
                                    "c",
                                    "--cold-bytes",
                                    "3GB",
                                    "--temperature",
                                    "0.5",
                                    "--raw-logprobs",
                                    "--seed",
                                    "18446744073709551615",
                                    "--report",
                                    "r",
                                    "--limit",
                                    "6",
                                    "--kv-dtype",
                                    "f32",
                                    "--block-tokens",
                                    "32",
                                    "--pin",
                                    "--weights",
                                    "int8"});
  CHECK(o.model == "m");
  CHECK(o.prompts == "p.jsonl");
  CHECK(o.out == "o.jsonl");
  CHECK(o.group_size == 3);
  CHECK(o.instances == 4);
  CHECK(o.threads_per_instance == 2);
  CHECK(o.scheduler.policy == "las");
  CHECK(o.scheduler.chunk_tokens == 17);
  CHECK(o.scheduler.reserve_share == 0.25);
  CHECK(o.max_batch == 5);
  CHECK(o.prefill_tokens == 64);
  CHECK(o.lengths == "l");
  CHECK(o.kv_bytes == 1 << 20);
  CHECK(o.dram_bytes == 2 << 20);
  CHECK(o.cold_dir == "c");
  CHECK(o.cold_bytes == 3'000'000'000);
  CHECK(o.sampling.temperature == 0.5f);  // the others: sampling_options_test.cpp
  CHECK(o.sampling.logprob_mode == LogprobMode::kRaw);
  CHECK(o.seed == ~uint64_t{0});
  CHECK(o.report == "r");
  CHECK(o.limit == 6);
  CHECK((o.kv_dtype == KvType::kF32));
  CHECK(o.pin);
  CHECK((o.weights == WeightType::kInt8));
  CHECK(o.block_tokens == 32);
}

TEST_CASE("config: flags override the file, the file overrides the defaults") {
  const ScratchFolder folder;
  const std::string file = folder.write("c.toml",
                                        "[rollout]\ngroup-size = 4\ntemperature = 1\ninstances = 3\n"
                                        "kv-bytes = 4096\nstop = [\"x\", \"y\"]\nignore-eos = true\n");
  const RolloutOptions o = rollout({"--config", file, "--instances", "5", "--ignore-eos=false"});
  CHECK(o.group_size == 4);
  CHECK(o.instances == 5);
  CHECK(o.kv_bytes == 4096);
  CHECK(o.sampling.stop == Arguments{"x", "y"});
  CHECK(!o.sampling.ignore_eos);
  const RolloutOptions defaults;
  CHECK(o.max_batch == defaults.max_batch);
}

TEST_CASE("config: deploy/seer.toml holds every option with its default and meaning") {
  const std::string shipped = read_file(SEER_SOURCE_DIR "/deploy/seer.toml");
  const auto printed_config = [](Arguments arguments) {
    std::string text = printed(std::move(arguments));
    const std::string emulated = ", cuda, simt";  // in builds with SEER_WITH_SIMT only
    if (const size_t at = text.find(emulated); at != std::string::npos) text.replace(at, emulated.size(), ", cuda");
    return text;
  };
  CHECK_MESSAGE(shipped == printed_config({"rollout", "--print-config"}),
                "make it again: seer rollout --print-config > deploy/seer.toml");
  CHECK(shipped == printed_config({"rollout", "--config", SEER_SOURCE_DIR "/deploy/seer.toml", "--print-config"}));
  const std::string help = printed({"rollout", "--help"});
  for (size_t at = help.find("\n  --"); at != std::string::npos; at = help.find("\n  --", at + 1)) {
    const std::string name = help.substr(at + 5, help.find_first_of(" ,", at + 5) - at - 5);
    CAPTURE(name);
    const bool is_about_the_file = name == "config" || name == "print-config";
    CHECK(contains(shipped, "\n" + name + " = ") == !is_about_the_file);
  }
}

TEST_CASE("config: --print-config reads back to the same options, with every option at an odd value") {
  const ScratchFolder folder;
  const std::vector<std::pair<std::string, Arguments>> commands{
      {"rollout",
       {"--model", "m\"\\", "--prompts", "a b", "--group-size", "999999", "--limit", "4611686018427387904", "--seed",
        "18446744073709551615", "--out", "\xc3\xa9.jsonl", "--report", "#r", "--html", "h \"", "--journal", "j", "--resume", "--policy", "las", "--compare", "verl, seer",
        "--chunk-tokens", "9007199254740993", "--reserve", "-0.1", "--lengths", "[l]", "--drafting", "own", "--draft-max", "1",
        "--draft-shape", "path", "--draft-rule", "printed", "--draft-lambda", "1e17", "--draft-profile", "=", "--draft-history",
        "'", "--instances", "1023", "--nodes", "63", "--cluster", "c", "--controller-wait", "7", "--tls-cert", "t", "--tls-key", "t", "--tls-ca", "t", "--secret-file", "s", "--insecure", "--device", "cuda", "--tensor-parallel", "3", "--threads-per-instance", "3", "--pin", "--step-depth", "1", "--weight-version", "4611686018427387904",
        "--weights", "int8", "--max-batch",
        "65535", "--prefill-tokens", "7", "--kv-bytes", "1000", "--kv-dtype", "f32", "--block-tokens", "17", "--dram-bytes",
        "9007199254740993", "--cold-dir", "\t", "--cold-bytes", "1025", "--max-tokens", "1", "--min-tokens", "1", "--temperature", "0.1", "--top-p",
        "1e-30", "--top-k", "2147483647", "--min-p", "0.99999994", "--repetition-penalty", "1.0000001", "--stop", "a\"\n\\",
        "--stop", "\x7f,\x01", "--stop-token-ids", "0, 2147483647", "--ignore-eos", "--raw-logprobs",
        "--engines", "vllm=http://h:1", "--engine-token-file", "t", "--engine-ca", "c", "--engine-insecure", "--engine-rows", "3",
        "--engine-stream-tokens", "0", "--engine-silence", "7", "--shared-kv", "--profile-out", "p",
        "--log-level", "debug", "--log-file", "l"}},
      {"node",
       {"--name", "1048576", "--listen", "h:1", "--roles", "kv, draft", "--join", ":", "--controller-wait", "0", "--tls-cert", "t", "--tls-key", "t", "--tls-ca", "t", "--secret-file", "s", "--insecure", "--model", "m", "--drafting", "own", "--draft-max", "1",
        "--draft-shape", "path", "--draft-rule", "printed", "--draft-lambda", "1e17", "--draft-profile", "=", "--instances", "1023",
        "--device", "cuda", "--tensor-parallel", "3", "--threads-per-instance", "3", "--pin", "--step-depth", "1", "--weight-version", "2", "--weights", "int8", "--max-batch",
        "65535", "--prefill-tokens", "7", "--kv-bytes", "1000", "--kv-dtype", "f32", "--block-tokens", "17", "--dram-bytes", "0",
        "--cold-dir", "\t", "--cold-bytes", "1025", "--log-level", "debug", "--log-file", "l"}},
      {"simulate",
       {"--workload", "w", "--policies", "las+sd", "--seeds", "9999", "--seed", "9223372036854775808", "--requests", "1", "--faults",
        "--max-tokens", "1", "--kv-bytes-per-token", "3",
        "--report", "r", "--csv", "c", "--html", "h", "--chunk-tokens", "1", "--reserve", "0.3333333333333333", "--unexplained",
        "1e-17", "--without", "spread, need", "--over-issue", "15.999999999999998", "--draft-acceptance", "f", "--drafting", "d", "--draft-rule", "printed",
        "--draft-max", "63", "--profile", "p", "--step-gap-us", "1", "--instances", "99999", "--kv-tokens", "1", "--block-tokens",
        "4095", "--max-batch", "1", "--dram-bytes", "1", "--cold-bytes", "7", "--ssd-read-gb-per-s", "1e-3", "--ssd-write-gb-per-s", "0.3333333333333333",
        "--reward-s", "1e-17", "--reward-workers", "3", "--train-s", "0.1", "--update-s", "1e5", "--sweep", "a,b=\"\\", "--sweep", "c=1", "--sweep-runs-max", "1",
        "--drafter", "mtp", "--log-level", "off", "--log-file", "l"}}};
  for (const auto& [command, odd] : commands) {
    CAPTURE(command);
    const std::string text = printed(Arguments{command} + odd + Arguments{"--print-config"});
    CHECK(printed({command, "--config", folder.write("c.toml", text), "--print-config"}) == text);
    // A new option without an odd value here would not be tried.
    std::istringstream lines(text), defaults(printed({command, "--print-config"}));
    for (std::string line, standard; std::getline(lines, line) && std::getline(defaults, standard);)
      if (!line.starts_with("#") && !line.starts_with("[") && !line.empty()) CHECK(line != standard);
  }
}

TEST_CASE("config: every seed comes back from the file") {
  const ScratchFolder folder;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, (uint64_t{1} << 53) + 1, (uint64_t{1} << 63) - 1, uint64_t{1} << 63,
                              (uint64_t{1} << 63) + 1, ~uint64_t{0} - 1, ~uint64_t{0}}) {
    const std::string file = folder.write("c.toml", printed({"rollout", "--seed", cat(seed), "--print-config"}));
    CHECK(rollout({"--config", file}).seed == seed);
  }
}

TEST_CASE("config: an option without effect is reported if a flag or the file gives it, not if it has its default") {
  const ScratchFolder folder;
  const auto warnings_of = [&](const Arguments& arguments) {
    std::vector<std::string> warnings;
    const Result<Command> command = parse_command_line(arguments, &warnings);
    REQUIRE_MESSAGE(command.ok(), command.error().detail);
    return warnings;
  };
  using Texts = std::vector<std::string>;
  const Texts expected{"--cold-bytes has no effect without --cold-dir"};
  CHECK(warnings_of(kLeast) == Texts{});
  CHECK(warnings_of(kLeast + Arguments{"--config", SEER_SOURCE_DIR "/deploy/seer.toml"}) == Texts{});
  CHECK(warnings_of(kLeast + Arguments{"--cold-bytes", "8GiB"}) == expected);  // a flag with its default was given, too
  const std::string file = folder.write("c.toml", "[rollout]\ncold-bytes = \"1G\"\n");
  CHECK(warnings_of(kLeast + Arguments{"--config", file}) == Texts{file + ": " + expected[0]});
  CHECK(warnings_of(kLeast + Arguments{"--config", file, "--cold-bytes", "2G"}) == expected);
  CHECK(warnings_of({"node", "--model", "m", "--cold-bytes", "8GiB"}) == expected);
  CHECK(warnings_of({"simulate", "--over-issue", "3"}) == Texts{"--over-issue has no effect without the policy partial"});
}

TEST_CASE("config: options that other servers have lead to ours") {
  CHECK(error_of({"serve", "--model", "m", "--host", "0.0.0.0"}) == "unknown option --host; here it is --listen");
  CHECK(error_of({"serve", "--model-path", "m"}) == "unknown option --model-path; here it is --model");
  CHECK(error_of({"serve", "--model", "m", "--tp", "2"}) == "unknown option --tp; here it is --tensor-parallel");
}

TEST_CASE("config: each bad flag gets a sentence with its value and what was expected") {
  const struct {
    Arguments more;
    const char* error;
  } table[] = {
      {{"--group-size", "0"}, "--group-size 0: expected an integer, at least 1 and at most 1000000"},
      {{"--instances", "0"}, "--instances 0: expected auto, or an integer, at least 1 and at most 1024"},
      {{"--reserve", "1.5"}, "--reserve 1.5: expected a number, at least -1 and at most 1"},
      {{"--reserve", "-2"}, "--reserve -2: expected a number, at least -1 and at most 1"},
      {{"--chunk-tokens", "-1"}, "--chunk-tokens -1: expected an integer, at least 0"},
      {{"--kv-bytes", "1Q"}, "--kv-bytes 1Q: expected auto, or a size such as 4096, 64M, 1.5GiB or 2GB, at least 1"},
      {{"--kv-dtype", "fp8"}, "--kv-dtype fp8: expected one of bf16, f32"},
      {{"--weights", "int4"}, "--weights int4: expected one of stored, int8, w8a8; did you mean int8?"},
      {{"--temperature", "1e-5"}, "--temperature 1e-05: expected 0 (greedy) or a number, at least 0.0001"},
      {{"--block-tokens", "17"}, "--block-tokens 17: expected a multiple of 16"},
      {{"--nodes", "3", "--instances", "2"}, "--nodes 3: expected at most --instances, which is 2: each node has at least one instance"},
      {{"--drafting", "grouped", "--draft-history", "/none/such/history/"},
       "--draft-history /none/such/history/: there is no folder /none/such to make it in"},
      {{"--policy", "oracle"}, "--lengths is missing: the oracle policy takes the response lengths from it"},
      {{"--policy", "streamrl-oracle"},
       "--lengths is missing: the streamrl-oracle policy takes the response lengths from it"},
      {{"--policy", "partial"},
       "--policy partial: expected one of auto, verl, divided, divided-rr, las, seer, seer+, oracle, streamrl-oracle; partial carries "
       "unfinished responses over to other weights; Seer is strictly on-policy, so that it is only simulated, for "
       "comparison"},
      {{"--compare", "verl,verl"}, "--compare names verl twice: expected different policies"},
      {{"--report", "o.jsonl"}, "--out and --report both name o.jsonl: expected two files"},
      {{"--report", "r", "--html", "r"}, "--report and --html both name r: expected two files"},
      {{"--log-level", "loud"}, "--log-level loud: expected one of off, error, warn, info, debug"},
      {{"--log-file", "o.jsonl"}, "--log-file and --out both name o.jsonl: expected two files"},
  };
  for (const auto& row : table) {
    CAPTURE(std::string(row.error));
    CHECK(error_of(kLeast + row.more) == row.error);
  }
  CHECK(contains(error_of(kLeast + Arguments{"--policy", "best"}), "--policy best: expected one of "));
  CHECK(
      contains(error_of(kLeast + Arguments{"--compare", "verl,best"}), "--compare verl,best: expected names out of "));
  CHECK(error_of({"completion", "basch"}) == "seer completion basch: expected one of bash, zsh, fish; did you mean bash?");
  CHECK(error_of({"completion"}) == "seer completion: expected one of bash, zsh, fish");
}

TEST_CASE("config: a missing option is named") {
  CHECK(contains(error_of({"rollout"}), "--model is missing"));
  CHECK(contains(error_of({"rollout", "--model", "m"}), "--prompts is missing"));
  CHECK(contains(error_of({"rollout", "--model", "m", "--prompts", "p"}), "--out is missing"));
  CHECK(contains(error_of({"score", "--model", "m", "--out", "o"}), "--in is missing"));
  CHECK(parse_command_line({"rollout", "--model", "m", "--prompts", "p", "--compare", "verl,seer"}).ok());
}

TEST_CASE("config: keys of a file are flags of its command") {
  const ScratchFolder folder;
  const std::string file = folder.write("c.toml", "[rollout]\ngroup_size = 8\n");
  CHECK(error_of(kLeast + Arguments{"--config", file}) ==
        file + ":2: unknown key \"group_size\": expected the name of a flag of seer rollout without its dashes; did you mean group-size?");
  CHECK(error_of({"simulate", "--config", file}) == file + ":1: unknown key \"rollout\": expected the table [simulate]");
  CHECK(error_of(kLeast + Arguments{"--config", "/no/such.toml"}) == "cannot read /no/such.toml: No such file or directory");
}

TEST_CASE("config: score, profile, simulate and doctor are read, and help ends with examples") {
  const Result<Command> score = parse_command_line({"score", "--model", "m", "--in", "i", "--out", "o", "--temperature",
                                                    "0.7", "--raw-logprobs", "--threads", "3", "--kv-bytes", "5MiB"});
  REQUIRE(score.ok());
  const ScoreOptions& o = std::get<ScoreOptions>(*score);
  CHECK(o.in == "i");
  CHECK(o.temperature == 0.7f);
  CHECK(o.logprob_mode == LogprobMode::kRaw);
  CHECK(o.threads == 3);
  CHECK(o.kv_bytes == 5 << 20);
  const Result<Command> profile =
      parse_command_line({"profile", "--model", "m", "--out", "o", "--threads", "2", "--kv-bytes", "1GiB", "--kv-dtype", "f32",
                          "--rows-max", "8", "--context-max", "99", "--repeats", "3", "--quick"});
  REQUIRE(profile.ok());
  const ProfileOptions& p = std::get<ProfileOptions>(*profile);
  CHECK(p.model == "m");
  CHECK(p.out == "o");
  CHECK(p.threads == 2);
  CHECK(p.kv_bytes == 1 << 30);
  CHECK((p.kv_dtype == KvType::kF32));
  CHECK(p.rows_max == 8);
  CHECK(p.context_max == 99);
  CHECK(p.repeats == 3);
  CHECK(p.quick);
  CHECK(contains(error_of({"profile", "--model", "m"}), "--out is missing"));
  CHECK(contains(error_of({"profile", "--out", "o"}), "--model is missing"));
  const Result<Command> simulate = parse_command_line(
      {"simulate", "--workload", "w.toml", "--policies", "verl,seer+", "--seeds", "4", "--seed", "9", "--chunk-tokens", "512",
       "--reserve", "0.2", "--unexplained", "0.5", "--profile", "p.json", "--step-gap-us", "400", "--instances", "3", "--kv-tokens", "99",
       "--block-tokens", "32", "--max-batch", "7", "--dram-bytes", "1MiB", "--report", "r", "--csv", "c", "--html", "h"});
  REQUIRE(simulate.ok());
  const SimulateOptions& s = std::get<SimulateOptions>(*simulate);
  CHECK(s.workload == "w.toml");
  CHECK(s.policies == std::vector<std::string>{"verl", "seer+"});
  CHECK(s.seeds == 4);
  CHECK(s.seed == 9);
  CHECK(s.scheduler.chunk_tokens == 512);
  CHECK(s.scheduler.reserve_share == 0.2);
  CHECK(s.scheduler.unexplained_before == 0.5);
  CHECK(s.profile == "p.json");
  CHECK(s.step_gap_us == 400);
  CHECK(s.instances == 3);
  CHECK(s.kv_tokens == 99);
  CHECK(s.block_tokens == 32);
  CHECK(s.max_batch == 7);
  CHECK(s.dram_bytes == 1 << 20);
  CHECK(s.report + s.csv + s.html == "rch");
  const Result<Command> doctor = parse_command_line({"doctor"});
  REQUIRE(doctor.ok());
  CHECK(std::holds_alternative<DoctorOptions>(*doctor));
  for (const char* command : {"rollout", "score", "profile", "simulate", "doctor"})
    CHECK(contains(printed({command, "--help"}), "Examples:\n  seer " + std::string(command)));
  CHECK(contains(printed({"--help"}), "rollout"));
  CHECK(printed({"--version"}).starts_with("seer "));
}

TEST_CASE("config: roles of a machine, as given, or else as its other options allow") {
  const auto roles = [](const Arguments& more) {
    const Result<Command> command = parse_command_line(Arguments{"node", "--model", "m"} + more);
    REQUIRE_MESSAGE(command.ok(), command.error().detail);
    return joined(role_names(roles_of(std::get<NodeOptions>(*command))));
  };
  CHECK(roles({}) == "controller, instances, kv, draft");
  CHECK(roles({"--drafting", "own"}) == "controller, instances, kv");
  CHECK(roles({"--device", "cuda"}) == "controller, instances, kv");
  CHECK(roles({"--device", "cuda", "--drafting", "grouped"}) == "controller, instances, kv, draft");
  CHECK(roles({"--instances", "0"}) == "controller");
  CHECK(roles({"--join", "127.0.0.1:1"}) == "instances, kv, draft");
  CHECK(roles({"--join", "127.0.0.1:1", "--dram-bytes", "0"}) == "instances, draft");
  CHECK(roles({"--join", "127.0.0.1:1", "--roles", "kv"}) == "kv");
  CHECK(roles({"--join", "127.0.0.1:1", "--roles", "draft,kv"}) == "kv, draft");
  CHECK(roles({"--roles", "controller"}) == "controller");
  CHECK(roles({"--roles", "controller,instances"}) == "controller, instances");
  const ScratchFolder folder;
  CHECK(roles({"--join", "127.0.0.1:1", "--config", folder.write("c.toml", "[node]\nroles = [\"kv\", \"instances\"]\n")}) == "instances, kv");
}

TEST_CASE("config: roles that do not exist or do not go with other options are refused with a sentence") {
  const auto error = [](const Arguments& arguments) {
    const Result<Command> command = parse_command_line(Arguments{"node"} + arguments);
    REQUIRE_FALSE(command.ok());
    return command.error().detail;
  };
  CHECK(error({"--roles", "kvs"}) == "--roles kvs: expected names out of controller, instances, kv, draft; did you mean kv?");
  CHECK(error({"--roles", "kv"}) == "--roles kv needs --join: only the controller joins none");
  CHECK(error({"--roles", "controller,kv", "--join", "127.0.0.1:1"}) ==
        "--roles controller, kv cannot go with --join: the controller joins none");
  CHECK(error({"--roles", "kv", "--join", "127.0.0.1:1", "--dram-bytes", "0"}) ==
        "--roles kv cannot go with --dram-bytes 0: the pool is in DRAM");
  CHECK(error({"--roles", "instances", "--join", "127.0.0.1:1", "--instances", "0"}) == "--roles instances cannot go with --instances 0");
  CHECK(error({"--roles", "instances", "--join", "127.0.0.1:1"}) == "--model is missing: expected a model folder in Hugging Face layout");
  CHECK(error({"--instances", "0", "--join", "127.0.0.1:1"}) ==
        "--instances 0 cannot go with --join: expected instances, or --roles kv or draft, or the controller alone");
}

TEST_CASE("config: a name for clients has no control characters, and an address to listen at resolves") {
  CHECK(error_of({"serve", "--model", "m", "--served-name", "a\nb"}) == "--served-name a?b: expected a name without control characters");
  CHECK(error_of({"serve", "--model", "m", "--listen", "999.1.1.1:0"}) == "--listen 999.1.1.1:0: the name 999.1.1.1 cannot be resolved");
  CHECK(error_of({"serve", "--model", "m", "--listen", "0.0.0.0:0"}).starts_with("--listen 0.0.0.0:0: other hosts can reach this address"));
}

TEST_CASE("config: help shows no default that would be refused") {
  const std::string help = printed({"drain", "--help"});
  CHECK(contains(help, "number of the machine to drain"));
  CHECK_FALSE(contains(help, "[-1]"));
  CHECK(contains(help, "[300]"));
}
