// A cluster of real processes: whatever machines join, leave and die, a rollout on them gives the bits of one within a process.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <filesystem>
#include <map>
#include <string>

#include "gpu/tiny_model.h"
#include "integration/cluster.h"
#include "integration/free_rows.h"
#include "integration/optional_parts.h"

using namespace seer;

namespace {

/// Until some response is written, or the run is over.
void wait_for_response(ChildProcess& seer, const std::string& out) {
  const std::string partial = out + ".partial";
  std::error_code missing;
  while (!seer.wait(5) && (std::filesystem::file_size(partial, missing) == 0 || missing)) {
  }
}

}  // namespace

TEST_CASE("cluster: a rollout on the machines of a cluster gives the bits of one within a process, and so do several at once") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  REQUIRE(right.size() == 96);
  Cluster cluster;
  cluster.join(1);
  cluster.join(2);
  const std::string out = folder.path("a.jsonl"), report = folder.path("a.json"), other = folder.path("b.jsonl");
  HeldPrompts prompts(11), same_prompts(11);  // until all machines are in both
  ChildProcess first(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--report", report, "--log-level", "info"}), prompts.fd());
  ChildProcess second(HeldPrompts::rollout(other, {"--cluster", cluster.address, "--log-level", "info"}), same_prompts.fd());
  for (ChildProcess* const seer : {&first, &second}) wait_for_log(*seer, " instance_up ", 3);
  prompts.end();
  same_prompts.end();
  CHECK(responses_of_run(first, out) == right);
  CHECK(responses_of_run(second, other) == right);
  const Json figures = Json::parse(folder.read("a.json"));
  CHECK(figures["instances"].size() == 3);
  for (const Json& instance : figures["instances"]) CHECK(instance["tokens"] > 0);
  CHECK(figures["migrations"] > 0);
  CHECK(figures["fetch_failures"] == 0);
}

TEST_CASE("cluster: requests that move find the KV of long texts at the other machine") {
  if (!has_ucx()) return;
  const ScratchFolder folder;
  Cluster cluster;
  cluster.join(1);
  // Which request moves depends on timing; with some seed one moves.
  int64_t fetched_bytes = 0;
  for (int seed = 1; fetched_bytes == 0 && seed <= 40; ++seed) {
    CAPTURE(seed);
    const auto run = [&](const std::string& out, const Arguments& more) {
      Arguments all{SEER_PROGRAM, "rollout", "--model", kModel, "--prompts", kPrompts, "--limit", "3", "--group-size", "4",
                    "--max-tokens", "900", "--ignore-eos", "--policy", "seer", "--chunk-tokens", "128", "--seed",
                    std::to_string(seed), "--out", out, "--report", folder.path("report.json")};
      all.insert(all.end(), more.begin(), more.end());
      ChildProcess seer(all);
      return responses_of_run(seer, out);
    };
    const Responses moved = run(folder.path("a.jsonl"), {"--cluster", cluster.address});
    const Json figures = Json::parse(folder.read("report.json"));
    fetched_bytes = figures["fetched_bytes"];
    CHECK(figures["fetch_failures"] == 0);
    CHECK(moved == run(folder.path("b.jsonl"), {"--instances", "1", "--threads-per-instance", "1"}));
  }
  CHECK(fetched_bytes > 0);
}

TEST_CASE("cluster: machines that are killed or join during a rollout change no bit") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  Cluster cluster;
  cluster.join(1);
  cluster.join(2);
  HeldPrompts prompts;
  const std::string out = folder.path("a.jsonl");
  ChildProcess seer(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--log-level", "info"}), prompts.fd());
  wait_for_response(seer, out);
  wait_for_log(seer, " instance_up ", 3);
  cluster.nodes.at(1)->send(SIGKILL);
  cluster.join(3);
  cluster.nodes.at(2)->send(SIGKILL);
  REQUIRE(cluster.nodes.at(1)->wait(kWaitMs));
  cluster.start(1);  // its name is free again
  wait_for_log(seer, " warn instance_lost rollout=", 2);
  prompts.end();
  CHECK(responses_of_run(seer, out) == right);
}

TEST_CASE("cluster: a machine that does not fit is refused with a sentence, and the others go on") {
  Cluster cluster;
  const auto refused = [&](const std::map<std::string, std::string>& flags) {
    cluster.start(7, flags);
    ChildProcess& node = *cluster.nodes.at(7);
    REQUIRE(node.wait(kWaitMs));
    CHECK(node.exit_code() != 0);
    return node.err();
  };
  CHECK(refused({{"--name", "0"}}) ==
        "seer: node 0 is refused: a node of that name is in the cluster, expected another name for each machine\n");
  const TestFolder other;
  write_tiny_model(other.path(), tiny_config("qwen3"), "BF16", 1);
  CHECK(refused({{"--model", other.path().string()}}).find("seer: node 7 is refused: its model is \"seer_test_") == 0);
  CHECK(refused({{"--kv-dtype", "f32"}}).find("seer: node 7 is refused: its KV layout is ") == 0);
  CHECK(refused({{"--weight-version", "2"}}) == "seer: node 7 is refused: its weight version is 2, expected 1\n");
  CHECK(refused({{"--join", "nowhere"}}) == "seer: --join nowhere: expected HOST:PORT, as 127.0.0.1:7000\n");
  CHECK(refused({{"--listen", "10.0.0.1:0"}}) ==
        "seer: --listen 10.0.0.1:0 is not of this host: expected --tls-cert, --tls-key and --tls-ca with it, or --insecure\n");
  CHECK(refused({{"--listen", cluster.address}}).find("seer: cannot listen on " + cluster.address) == 0);
  cluster.join(2, {{"--controller-wait", "0"}});

  cluster.nodes.at(0)->send(SIGTERM);
  REQUIRE(cluster.nodes.at(0)->wait(kWaitMs));
  CHECK(cluster.nodes.at(0)->exit_code() == 0);
  REQUIRE(cluster.nodes.at(2)->wait(kWaitMs));
  CHECK(cluster.nodes.at(2)->err().find("seer: the controller at " + cluster.address + " is gone\n") != std::string::npos);
  CHECK(refused({}).find("seer: --join " + cluster.address + ": no controller answers there, in ") == 0);
}

TEST_CASE("cluster: a node that is stopped before it is in the cluster ends with exit code 0, as a later one does") {
  const auto stop = [](ChildProcess& node) {
    node.send(SIGTERM);
    REQUIRE(node.wait(kWaitMs));
    CHECK_MESSAGE(node.exit_code() == 0, node.err());
  };
  Cluster cluster({}, {{"--roles", "controller"}}, "the controller is alone, at ");
  cluster.start(1, {{"--roles", "kv"}});
  wait_for_line(*cluster.nodes[1], "node 1 waits for a machine with instances");
  cluster.nodes[0]->send(SIGSTOP);  // the node may be waiting for an answer
  stop(*cluster.nodes[1]);

  const UniqueFd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  REQUIRE(::bind(silent.get(), reinterpret_cast<const sockaddr*>(&at), size) == 0);
  REQUIRE(::listen(silent.get(), 8) == 0);
  REQUIRE(::getsockname(silent.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  cluster.start(2, {{"--join", cat("127.0.0.1:", ntohs(at.sin_port))}});
  const UniqueFd dialled(::accept(silent.get(), nullptr, nullptr));
  REQUIRE(dialled.get() >= 0);
  stop(*cluster.nodes[2]);
}

TEST_CASE("cluster: rollouts and servers with another model are refused with a sentence") {
  const ScratchFolder folder;
  const auto copy_without_weights = [&](const std::string& to) {
    std::filesystem::create_directories(to);
    for (const char* file : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy(kModel + "/" + file, to);
    return to;
  };
  const std::string renamed = copy_without_weights(folder.path("renamed")), same = copy_without_weights(folder.path("a/scratchpad-1m8")),
                    changed = copy_without_weights(folder.path("b/scratchpad-1m8"));
  Json config = Json::parse(folder.read("b/scratchpad-1m8/config.json"));
  config["rms_norm_eps"] = 0.5;
  std::ofstream(changed + "/config.json") << config;
  Cluster cluster;
  const std::string refused = "seer: --cluster " + cluster.address + ": a rollout is refused: its ";
  for (const char* command : {"rollout", "serve"}) {
    CAPTURE(command);
    const auto error_with = [&](const std::string& model) {
      Arguments all{SEER_PROGRAM, command, "--model", model, "--cluster", cluster.address};
      if (command == std::string("rollout")) all.insert(all.end(), {"--prompts", kPrompts, "--limit", "1", "--out", folder.path("a.jsonl")});
      else all.insert(all.end(), {"--listen", "127.0.0.1:0"});
      ChildProcess seer(all);
      REQUIRE(seer.wait(kWaitMs));
      CHECK(seer.exit_code() != 0);
      return seer.err();
    };
    CHECK(error_with(renamed) == refused + "model is \"renamed\", expected \"scratchpad-1m8\"\n");
    CHECK(error_with(changed).find(refused + "config.json's checksum is ") == 0);
  }
  ChildProcess seer({SEER_PROGRAM, "rollout", "--model", same, "--cluster", cluster.address, "--prompts", kPrompts, "--limit", "1",
                     "--max-tokens", "100", "--out", folder.path("a.jsonl")});
  REQUIRE(seer.wait(kWaitMs));
  CHECK_MESSAGE(seer.exit_code() == 0, seer.err());
}

TEST_CASE("cluster: a machine that is drained during a rollout leaves in order, and its work goes on elsewhere") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  Cluster cluster;
  cluster.join(1);
  HeldPrompts prompts;
  const std::string out = folder.path("a.jsonl");
  ChildProcess seer(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--report", folder.path("a.json")}), prompts.fd());
  wait_for_response(seer, out);
  cluster.join(2);
  const Json before = status_when(cluster, [](const Json& status) { return are_up(status, 3); });
  REQUIRE(before["nodes"].size() == 3);
  ChildProcess unknown({SEER_PROGRAM, "drain", "--cluster", cluster.address, "--name", "7"});
  REQUIRE(unknown.wait(kWaitMs));
  CHECK(unknown.err() == "seer: node 7 is not in the cluster\n");
  ChildProcess drain({SEER_PROGRAM, "drain", "--cluster", cluster.address, "--name", "1"});
  REQUIRE(drain.wait(kWaitMs));
  CHECK_MESSAGE(drain.exit_code() == 0, drain.err());
  CHECK(drain.out() == "node 1 has left\n");
  REQUIRE(cluster.nodes.at(1)->wait(kWaitMs));
  CHECK(cluster.nodes.at(1)->exit_code() == 0);
  CHECK(cluster.nodes.at(1)->out().find("node 1 was drained and leaves\n") != std::string::npos);
  prompts.end();
  CHECK(responses_of_run(seer, out) == right);
  const Json figures = Json::parse(folder.read("a.json"));
  CHECK(figures["instances_lost"] == 0);
  CHECK(figures["parts_lost"].empty());
  CHECK(status_when(cluster, keeps_nothing)["nodes"].size() == 2);
}

TEST_CASE("cluster: a machine that is stopped, or the controller, is lost after some seconds, and comes back when it wakes up") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  for (const uint32_t stopped : {1, 0}) {
    CAPTURE(stopped);
    Cluster cluster;
    cluster.join(1);
    cluster.join(2);
    HeldPrompts prompts;
    const std::string out = folder.path("a.jsonl");
    ChildProcess seer(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--report", folder.path("a.json"), "--log-level", "info"}), prompts.fd());
    wait_for_response(seer, out);
    cluster.nodes.at(stopped)->send(SIGSTOP);
    wait_for_log(seer, " instance_lost ", 1);
    cluster.nodes.at(stopped)->send(SIGCONT);
    wait_for_log(seer, " instance_up ", 4);
    if (stopped == 0) wait_for_log(seer, " controller_returned ", 1);
    prompts.end();
    CHECK(responses_of_run(seer, out) == right);
    CHECK(Json::parse(folder.read("a.json"))["instances_lost"] == 1);
    const Json after = status_when(cluster, [](const Json& status) { return are_up(status, 3) && keeps_nothing(status); });
    CHECK(after["nodes"].size() == 3);
  }
}

TEST_CASE("cluster: a stopped machine of which a restarted controller knows nothing does not hold up a rollout that dials it again") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  Cluster cluster;
  cluster.join(1);
  HeldPrompts prompts;
  const std::string out = folder.path("a.jsonl");
  ChildProcess seer(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--log-level", "info"}), prompts.fd());
  wait_for_response(seer, out);
  wait_for_log(seer, " instance_up ", 2);
  cluster.nodes.at(1)->send(SIGSTOP);
  cluster.nodes.at(0)->send(SIGKILL);
  REQUIRE(cluster.nodes.at(0)->wait(kWaitMs));
  cluster.start_controller_again();
  prompts.end();
  CHECK(responses_of_run(seer, out) == right);
  cluster.nodes.at(1)->send(SIGCONT);
}

TEST_CASE("cluster: machines that hang when a rollout begins do not keep it from one that answers") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  Cluster cluster({}, {{"--roles", "controller"}}, "the controller is alone, at ");
  for (const uint32_t node : {1, 2, 3, 4, 5}) cluster.join(node);
  for (const uint32_t node : {1, 2, 3, 4}) cluster.nodes.at(node)->send(SIGSTOP);
  const std::string out = folder.path("a.jsonl");
  ChildProcess seer(rollout(out, {"--cluster", cluster.address}));
  CHECK(responses_of_run(seer, out) == right);
  for (const uint32_t node : {1, 2, 3, 4}) cluster.nodes.at(node)->send(SIGCONT);
}

TEST_CASE("cluster: a restarted controller takes the running machines and rollouts back, and the rollout goes on meanwhile") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  Cluster cluster;
  cluster.join(1);
  cluster.join(2);
  HeldPrompts prompts;
  const std::string out = folder.path("a.jsonl");
  ChildProcess seer(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--report", folder.path("a.json"), "--log-level", "info"}), prompts.fd());
  wait_for_response(seer, out);
  wait_for_log(seer, " instance_up ", 3);
  cluster.nodes.at(0)->send(SIGKILL);
  REQUIRE(cluster.nodes.at(0)->wait(kWaitMs));
  wait_for_log(seer, " warn controller_lost ", 1);
  cluster.start_controller_again();
  wait_for_log(seer, " info controller_returned ", 1);
  prompts.end();
  CHECK(responses_of_run(seer, out) == right);
  CHECK(Json::parse(folder.read("a.json"))["instances_lost"] == 1);  // that of the controller's own machine
  const Json after = status_when(cluster, [](const Json& status) { return are_up(status, 3) && keeps_nothing(status); });
  CHECK(after["nodes"].size() == 3);
  ChildProcess again(rollout(folder.path("b.jsonl"), {"--cluster", cluster.address}));
  CHECK(responses_of_run(again, folder.path("b.jsonl")) == right);
}

TEST_CASE("cluster: machines and rollouts whose controller does not come back end with a sentence") {
  const ScratchFolder folder;
  Cluster cluster;
  cluster.join(1, {{"--controller-wait", "1"}});
  const std::string out = folder.path("a.jsonl");
  HeldPrompts prompts;  // which do not end
  ChildProcess seer(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--controller-wait", "0"}), prompts.fd());
  wait_for_response(seer, out);
  cluster.nodes.at(0)->send(SIGKILL);
  REQUIRE(seer.wait(kWaitMs));
  CHECK(seer.exit_code() != 0);
  CHECK(seer.err().find("seer: the controller at " + cluster.address + " is gone after ") != std::string::npos);
  REQUIRE(cluster.nodes.at(1)->wait(kWaitMs));
  CHECK(cluster.nodes.at(1)->err().ends_with("seer: the controller at " + cluster.address + " is gone\n"));
}

TEST_CASE("cluster: with certificates, only machines and rollouts of the same CA take part") {
  const ScratchFolder folder;
  const auto make = [&](const std::string& to) {
    ChildProcess made({SEER_SOURCE_DIR "/deploy/make_certs.sh", folder.path(to)});
    REQUIRE(made.wait(kWaitMs));
    REQUIRE_MESSAGE(made.exit_code() == 0, made.err());
    return std::map<std::string, std::string>{{"--tls-cert", folder.path(to + "/node.pem")},
                                              {"--tls-key", folder.path(to + "/node.key")},
                                              {"--tls-ca", folder.path(to + "/ca.pem")}};
  };
  const auto ours = make("ours"), others = make("others");
  const auto as_arguments = [](const std::map<std::string, std::string>& flags, Arguments all) {
    for (const auto& [flag, value] : flags) all.insert(all.end(), {flag, value});
    return all;
  };
  const Responses right = local_responses(folder);
  Cluster cluster(ours);
  cluster.join(1);
  const std::string out = folder.path("a.jsonl");
  ChildProcess seer(rollout(out, as_arguments(ours, {"--cluster", cluster.address})));
  ChildProcess stranger(as_arguments(others, {SEER_PROGRAM, "status", "--cluster", cluster.address}));
  ChildProcess bare({SEER_PROGRAM, "status", "--cluster", cluster.address});
  CHECK(responses_of_run(seer, out) == right);
  REQUIRE(stranger.wait(kWaitMs));
  CHECK(stranger.err().find("seer: --cluster " + cluster.address + ": no controller answers there, in ") == 0);
  CHECK(stranger.err().ends_with(" s, or its certificate is of another CA\n"));
  REQUIRE(bare.wait(kWaitMs));
  CHECK(bare.exit_code() == 1);
}

TEST_CASE("cluster: KV that machines have no room for goes to one that only keeps KV; its loss costs time, and no bit changes") {
  if (!has_ucx()) return;
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  const std::map<std::string, std::string> small{{"--dram-bytes", "512KiB"}};
  for (const bool is_killed : {false, true}) {
    CAPTURE(is_killed);
    Cluster cluster({}, small);
    cluster.join(1, small);
    cluster.join_kv(2);
    const std::string out = folder.path(is_killed ? "a.jsonl" : "b.jsonl"), report = folder.path("report.json");
    HeldPrompts prompts;
    ChildProcess seer(HeldPrompts::rollout(out, {"--cluster", cluster.address, "--report", report, "--log-level", "info"}), prompts.fd());
    if (is_killed) {
      status_when(cluster, [](const Json& status) {  // these only grow, so that a look that comes late sees them too
        const auto has = [&](const char* figure) {
          return std::ranges::any_of(status["nodes"], [&](const Json& node) { return node.value(figure, int64_t{0}) > 0; });
        };
        return has("moved_bytes") && has("fetched_bytes");
      });
      cluster.nodes.at(2)->send(SIGKILL);
      wait_for_log(seer, " part_lost ", 1);
    }
    prompts.end();
    CHECK(responses_of_run(seer, out) == right);
    const Json figures = Json::parse(folder.read("report.json"));
    CHECK(figures["instances_lost"] == 0);
    CHECK(figures["parts_lost"].size() == (is_killed ? 1 : 0));
    CHECK(figures["moved_bytes"] > 0);
    CHECK(figures["fetched_bytes"] > 0);
    status_when(cluster, keeps_nothing);
  }
}

TEST_CASE("cluster: the controller, KV, drafts and instances may be on a machine each, which join in any order") {
  const ScratchFolder folder;
  const Responses right = local_responses(folder);
  Cluster cluster({}, {{"--roles", "controller"}}, "the controller is alone, at ");
  const auto refusal = [&] {
    ChildProcess seer(rollout(folder.path("none.jsonl"), {"--cluster", cluster.address}));
    REQUIRE(seer.wait(kWaitMs));
    CHECK(seer.exit_code() == 1);  // no wrong option: the same command works later
    return seer.err();
  };
  const std::string begin = "seer: --cluster " + cluster.address + ": ";
  CHECK(refusal().find(begin + "the cluster has no machine yet\n") != std::string::npos);
  cluster.start(1, {{"--roles", "kv"}});
  wait_for_line(*cluster.nodes[1], "node 1 waits for a machine with instances");
  cluster.start(2, {{"--roles", "draft"}});
  wait_for_line(*cluster.nodes[2], "node 2 has joined, with a draft server, at ");
  CHECK(refusal().find(begin + "no machine of the cluster has instances yet\n") != std::string::npos);
  cluster.start(3, {{"--roles", "instances"}, {"--drafting", "grouped"}, {"--draft-profile", kFreeRows}});
  wait_for_line(*cluster.nodes[3], "node 3 has joined, with 1 instances, at ");
  wait_for_line(*cluster.nodes[1], "node 1 has joined, with 64.0 MiB for KV, at ");
  const Json status = status_of(cluster);
  REQUIRE(status["nodes"].size() == 3);
  CHECK(status["nodes"][0]["roles"] == Json{"kv"});
  CHECK(status["nodes"][1]["roles"] == Json{"draft"});
  CHECK(status["nodes"][2]["roles"] == Json{"instances"});
  const std::string out = folder.path("a.jsonl");
  ChildProcess seer(rollout(out, {"--cluster", cluster.address, "--report", folder.path("report.json")}));
  CHECK(responses_of_run(seer, out) == right);
  CHECK(Json::parse(folder.read("report.json"))["accepted_tokens"] > 0);
}
