#include "protocols/cluster.h"

#include <doctest/doctest.h>

#include <array>
#include <filesystem>

using namespace seer;

namespace {

const ClusterIdentity kExpected{.model = "qwen3-0.6b", .shape = 0x51, .kv_layout = 0xabc, .weights = 0x12, .version = {4},
                                .endings = endings_text(std::array{2, 7}, 512), .tokenizer = 0x64};

std::string refusal(ClusterIdentity found) {
  const Status status = check_identity("node 3", found, kExpected);
  return status.ok() ? "" : status.error().detail;
}

}  // namespace

TEST_CASE("cluster: a machine with the same model, layout, version and protocol may join") {
  CHECK(refusal(kExpected).empty());
}

TEST_CASE("cluster: a foreign node is refused with the field, what was found and what was expected") {
  ClusterIdentity protocol = kExpected, model = kExpected, shape = kExpected, layout = kExpected, version = kExpected, weights = kExpected;
  protocol.protocol = kProtocolNumber + 1;
  model.model = "moonlight";
  layout.kv_layout = 0xabd;
  version.version = {5};
  CHECK(refusal(protocol) == cat("node 3 is refused: its protocol number is ", kProtocolNumber + 1, ", expected ", kProtocolNumber));
  CHECK(refusal(model) == "node 3 is refused: its model is \"moonlight\", expected \"qwen3-0.6b\"");
  shape.shape = 0x52;
  CHECK(refusal(shape) == "node 3 is refused: its config.json's checksum is 0000000000000052, expected 0000000000000051");
  shape.shape = 0;
  CHECK(refusal(shape).empty());
  CHECK(refusal(layout) == "node 3 is refused: its KV layout is 0000000000000abd, expected 0000000000000abc: --kv-dtype, --block-tokens, --device and, with GPUs, --tensor-parallel and their kind must be the same");
  weights.weights = 0x13;
  CHECK(refusal(weights) == "node 3 is refused: its weights' checksum is 0000000000000013, expected 0000000000000012");
  weights.weights = 0;
  CHECK(refusal(weights).empty());
  CHECK(refusal(version) == "node 3 is refused: its weight version is 5, expected 4");
  ClusterIdentity endings = kExpected;
  endings.endings = endings_text(std::array{3}, 512);
  CHECK(refusal(endings) == "node 3 is refused: its end of responses is \"EOS 3, context 512\", expected \"EOS 2 7, context 512\"");
  endings.endings.clear();
  CHECK(refusal(endings).empty());
  ClusterIdentity tokenizer = kExpected;
  tokenizer.tokenizer = 0x65;
  CHECK(refusal(tokenizer) == "node 3 is refused: its tokenizer's checksum is 0000000000000065, expected 0000000000000064");
  tokenizer.tokenizer = 0;
  CHECK(refusal(tokenizer).empty());
}

TEST_CASE("cluster: the protocol is compared first, because other fields mean nothing in another protocol") {
  ClusterIdentity other = kExpected;
  other.protocol = kProtocolNumber + 1;
  other.model = "moonlight";
  CHECK(refusal(other).find("protocol") != std::string::npos);
}

TEST_CASE("cluster: weight version 0 matches any weights, an empty model only an empty one") {
  ClusterIdentity unbound = kExpected, nameless = kExpected;
  unbound.version = {};
  nameless.model = "";
  CHECK(refusal(unbound).empty());
  CHECK_FALSE(refusal(nameless).empty());
  CHECK(check_identity("node 3", {}, {}).ok());
}

TEST_CASE("cluster: a long model name is cut in the message") {
  ClusterIdentity other = kExpected;
  other.model = std::string(5000, 'x');
  CHECK(refusal(other).size() < 200);
}

TEST_CASE("cluster: a model's name is the last part of its folder's path") {
  CHECK(model_name("/data/models/qwen3-0.6b") == "qwen3-0.6b");
  CHECK(model_name("/data/models/qwen3-0.6b//") == "qwen3-0.6b");
  CHECK(model_name("qwen3-0.6b") == "qwen3-0.6b");
  CHECK(model_name("") == "");
  CHECK(model_name("/") == "/");
  CHECK(model_name("/data/qwen3-0.6b/.") == "qwen3-0.6b");
  CHECK(model_name(".") == std::filesystem::current_path().filename());
}
