#include "cli/ineffective_options.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

using Names = std::set<std::string>;
using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("ineffective options: an option that was not given is not reported, whatever its value") {
  RolloutOptions rollout;
  rollout.lengths = "l";
  rollout.draft_tokens_max = 3;
  CHECK(ineffective_options(rollout, {}) == Texts{});
  CHECK(ineffective_options(SimulateOptions{}, {}) == Texts{});
  CHECK(ineffective_options(NodeOptions{}, {"model", "drafting", "dram-bytes"}) == Texts{});
}

TEST_CASE("ineffective options: draft options need drafts, and lambda a rule that asks for it") {
  NodeOptions o;
  CHECK(ineffective_options(o, {"draft-max", "draft-shape", "draft-rule"}) == Texts{});  // the default has drafts, but on GPUs
  o.device = DeviceKind::kCuda;
  CHECK(ineffective_options(o, {"draft-max"}) == Texts{"--draft-max has no effect on a GPU without --drafting"});
  o.device = DeviceKind::kCpu;
  o.drafting = DraftSource::kOff;
  CHECK(ineffective_options(o, {"draft-max", "draft-shape", "draft-rule"}) ==
        Texts{"--draft-max has no effect with --drafting off", "--draft-shape has no effect with --drafting off",
              "--draft-rule has no effect with --drafting off"});
  // One sentence for an option with two reasons.
  CHECK(ineffective_options(o, {"draft-lambda"}) == Texts{"--draft-lambda has no effect with --drafting off"});
  o.drafting = DraftSource::kOwn;
  CHECK(ineffective_options(o, {"draft-max", "draft-lambda"}) == Texts{"--draft-lambda has no effect with --draft-rule uniform"});
  o.draft_rule = DraftRule::kPrinted;
  CHECK(ineffective_options(o, {"draft-max", "draft-lambda"}) == Texts{});
}

TEST_CASE("ineffective options: the cold tier needs its folder and DRAM before it, the log file a level") {
  NodeOptions o;
  CHECK(ineffective_options(o, {"cold-bytes"}) == Texts{"--cold-bytes has no effect without --cold-dir"});
  o.cold_dir = "c";
  CHECK(ineffective_options(o, {"cold-dir", "cold-bytes"}) == Texts{});
  o.dram_bytes = 0;
  CHECK(ineffective_options(o, {"cold-dir"}) == Texts{"--cold-dir has no effect with --dram-bytes 0: KV goes to disk from DRAM"});
  CHECK(ineffective_options(o, {"log-file"}) == Texts{});
  o.log.level = LogLevel::kOff;
  CHECK(ineffective_options(o, {"log-file"}) == Texts{"--log-file has no effect with --log-level off"});
}

TEST_CASE("ineffective options: a profile is for drafts or for the choice of a policy") {
  RolloutOptions o;
  const Names profile{"draft-profile"};
  CHECK(ineffective_options(o, profile) == Texts{});  // --policy auto, the default
  o.scheduler.policy = "seer";
  CHECK(ineffective_options(o, profile) == Texts{});  // drafts are the default
  o.drafting = DraftSource::kOff;
  CHECK(ineffective_options(o, profile) == Texts{"--draft-profile has no effect with --drafting off and without --policy auto, or seer+ without --reserve"});
  o.compare = {"verl", "auto"};
  CHECK(ineffective_options(o, profile) == Texts{});
  o.compare = {};
  o.drafting = DraftSource::kOwn;
  CHECK(ineffective_options(o, profile) == Texts{});
}

TEST_CASE("ineffective options: lengths are for oracles, and --compare names the policies") {
  RolloutOptions o;
  o.scheduler.policy = "las";
  CHECK(ineffective_options(o, {"policy", "lengths"}) ==
        Texts{"--lengths has no effect without a policy that takes lengths: oracle, streamrl-oracle"});
  o.compare = {"verl", "oracle"};
  CHECK(ineffective_options(o, {"policy", "lengths"}) == Texts{"--policy has no effect beside --compare, which names the policies"});
}

TEST_CASE("ineffective options: certificates, a secret and a controller to wait for are of clusters") {
  RolloutOptions o;
  CHECK(ineffective_options(o, {"controller-wait"}) == Texts{"--controller-wait has no effect without --cluster"});
  CHECK(ineffective_options(o, {"tls-cert", "secret-file", "insecure"}) ==
        Texts{"--tls-cert has no effect without --cluster", "--secret-file has no effect without --cluster",
              "--insecure has no effect without --cluster"});
  CHECK(ineffective_options(ServeOptions{}, {"cluster-secret-file"}) == Texts{"--cluster-secret-file has no effect without --cluster"});
  o.cluster = "10.0.0.1:7000";
  CHECK(ineffective_options(o, {"tls-cert", "secret-file", "insecure"}) == Texts{});
}

TEST_CASE("ineffective options: in a cluster the machines have the options of a machine") {
  RolloutOptions o;
  o.cluster = "127.0.0.1:1";
  CHECK(ineffective_options(o, {"instances", "kv-bytes", "chunk-tokens", "temperature", "drafting"}) ==
        Texts{"--instances has no effect with --cluster, whose machines have their own",
              "--kv-bytes has no effect with --cluster, whose machines have their own",
              "--drafting has no effect with --cluster, whose machines have their own"});
  ServeOptions serve;
  serve.cluster = o.cluster;
  CHECK(ineffective_options(serve, {"drafting"}) == Texts{"--drafting has no effect with --cluster, whose machines have their own"});
  serve.cluster.clear();
  serve.router.engines = {"http://a:1"};
  CHECK(ineffective_options(serve, {"drafting"}) == Texts{"--drafting has no effect with --engines, whose servers have their own"});
}

TEST_CASE("ineffective options: a sweep over instances says how many there are") {
  SimulateOptions o;
  o.policies = {"seer"};
  o.sweep = {"kv=1000,2000"};
  CHECK(ineffective_options(o, {"instances", "sweep"}) == Texts{});
  o.sweep.push_back("instances=2,4");
  CHECK(ineffective_options(o, {"instances", "sweep"}) == Texts{"--instances has no effect beside --sweep instances=..."});
}

TEST_CASE("ineffective options: options of drafts, partial and seer+ need a simulation with them") {
  SimulateOptions o;
  o.policies = {"verl", "seer"};
  CHECK(ineffective_options(o, {"draft-max", "over-issue", "unexplained"}) ==
        Texts{"--draft-max has no effect without a policy that ends in +sd", "--over-issue has no effect without the policy partial",
              "--unexplained has no effect without the policy seer+"});
  o.policies = {"partial+sd", "seer+"};
  CHECK(ineffective_options(o, {"draft-max", "over-issue", "unexplained"}) == Texts{});
}

TEST_CASE("ineffective options: runs with faults have drafts and memory of their own") {
  SimulateOptions o;
  o.policies = {"seer+sd"};
  const Names given{"draft-acceptance", "draft-max", "dram-bytes", "block-tokens", "kv-tokens"};
  CHECK(ineffective_options(o, given) == Texts{});
  o.faults = true;
  CHECK(ineffective_options(o, given) == Texts{"--draft-acceptance has no effect with --faults", "--dram-bytes has no effect with --faults",
                                               "--block-tokens has no effect with --faults"});
}

TEST_CASE("ineffective options: those of a role need the role") {
  NodeOptions o;
  o.roles = {"kv"};
  o.join = "127.0.0.1:1";
  CHECK(ineffective_options(o, {"model", "instances", "dram-bytes"}) ==
        Texts{"--model has no effect without the role instances", "--instances has no effect without the role instances"});
  o.device = DeviceKind::kCuda;
  CHECK(ineffective_options(o, {"tensor-parallel"}) == Texts{"--tensor-parallel has no effect without the role instances"});
  o.roles = {"draft"};
  CHECK(ineffective_options(o, {"dram-bytes"}) == Texts{"--dram-bytes has no effect without the role kv"});
}

TEST_CASE("ineffective options: servers of others have machines of their own, but the weights' version is the caller's") {
  RolloutOptions o;
  CHECK(ineffective_options(o, {"engine-ca", "profile-out"}) == Texts{"--engine-ca has no effect without --engines", "--profile-out has no effect without --engines"});
  o.router.engines = {"http://a:1"};
  CHECK(ineffective_options(o, {"kv-bytes", "weight-version", "engine-ca", "profile-out"}) == Texts{"--kv-bytes has no effect with --engines, whose servers have their own"});
}
