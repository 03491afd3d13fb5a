#include "gpu/model/model_loader.h"

#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "gpu/tiny_model.h"

namespace seer {
namespace {

using Loaded = Result<std::shared_ptr<const Model>>;

Loaded load(ModelLoader& loader, const std::filesystem::path& folder, WeightVersion version,
            const std::shared_ptr<const Model>& like) {
  std::promise<Loaded> loaded;
  loader.load(folder.string(), version, like, [&](const Loaded& model) { loaded.set_value(model); });
  return loaded.get_future().get();
}

/// What is wrong with a folder of this config, tensors and dtype as new weights of a tiny llama.
std::string refusal(const nlohmann::json& config, const std::vector<TinyTensor>& tensors, const std::string& dtype = "BF16",
                    const TinyEdit& edit = {}) {
  TestFolder running, next;
  write_tiny_model(running.path(), tiny_config("llama"), "BF16", 1);
  write_file(next.path() / "config.json", config.dump());
  write_file(next.path() / "model.safetensors", safetensors_bytes(tensors, dtype, 2, edit));
  const Loaded model = load_weights(next.path(), **load_model(running.path()));
  return model.ok() ? "" : model.error().detail;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("new weights: a folder gives the same weights as when loaded alone, with a config.json or without") {
  TestFolder running, next;
  write_tiny_model(running.path(), tiny_config("llama"), "BF16", 1);
  write_tiny_model(next.path(), tiny_config("llama"), "BF16", 2);
  for (const WeightType type : {WeightType::kAsStored, WeightType::kInt8, WeightType::kW8a8}) {
    const auto like = *load_model(running.path(), type);
    const auto alone = *load_model(next.path(), type);
    const Loaded beside = load_weights(next.path(), *like);
    REQUIRE(beside.ok());
    CHECK((*beside)->weights_hash == alone->weights_hash);
    CHECK((*beside)->weights_hash != like->weights_hash);
  }
  const auto like = *load_model(running.path());
  std::filesystem::remove(next.path() / "config.json");
  CHECK(load_weights(next.path(), *like).ok());
}

TEST_CASE("new weights: those of another model are refused, with the tensor or the field that differs") {
  const auto config = tiny_config("llama");
  const auto wide = tiny_config("llama", {{"intermediate_size", 128}});
  CHECK(contains(refusal(wide, tiny_tensors(wide)),
                 "tensor model.layers.0.mlp.gate_proj.weight should have shape [96, 64], found [128, 64]"));
  const auto deep = tiny_config("llama", {{"num_hidden_layers", 3}});
  CHECK(contains(refusal(deep, tiny_tensors(deep)), "tensor model.layers.2."));
  CHECK(contains(refusal(config, tiny_tensors(config), "F32"),
                 "tensor model.embed_tokens.weight should have dtype BF16 like the running weights, found F32"));
  const TinyEdit infinite = [](const TinyTensor& t, uint64_t index, float value) {
    return t.name == "model.layers.1.mlp.down_proj.weight" && index == 5 ? INFINITY : value;
  };
  CHECK(contains(refusal(config, tiny_tensors(config), "BF16", infinite),
                 "tensor model.layers.1.mlp.down_proj.weight holds inf at [0, 5]"));
  const auto turned = tiny_config("llama", {{"rope_theta", 500.0}});
  CHECK(contains(refusal(turned, tiny_tensors(turned)), "rope_theta (500, expected 10000)"));
  const auto heads = tiny_config("llama", {{"num_attention_heads", 2}, {"head_dim", 32}, {"num_key_value_heads", 1}});
  CHECK(contains(refusal(heads, tiny_tensors(heads)), "num_attention_heads (2, expected 4)"));
  CHECK(refusal(config, tiny_tensors(config)) == "");
}

TEST_CASE("model loader: engines that ask for one version of a folder share it, while somebody holds it") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("llama"), "BF16", 1);
  const auto first = *load_model(folder.path());
  ModelLoader loader;
  Loaded a = load(loader, folder.path(), WeightVersion{2}, first);
  Loaded b = load(loader, folder.path(), WeightVersion{2}, first);
  REQUIRE(a.ok());
  CHECK(*a == *b);
  CHECK(loader.loads() == 1);
  // The same folder, written anew by a trainer, is another version.
  write_tiny_model(folder.path(), tiny_config("llama"), "BF16", 7);
  const Loaded c = load(loader, folder.path(), WeightVersion{3}, first);
  REQUIRE(c.ok());
  CHECK((*c)->weights_hash != (*a)->weights_hash);
  a = b = fail(Code::kCancelled, "let go");
  CHECK(load(loader, folder.path(), WeightVersion{2}, first).ok());
  CHECK(loader.loads() == 3);
}

TEST_CASE("model loader: offered memory gives the weights of a folder, and what an engine changed to stays when it is withdrawn") {
  TestFolder running, next;
  write_tiny_model(running.path(), tiny_config("llama"), "BF16", 1);
  write_tiny_model(next.path(), tiny_config("llama"), "BF16", 2);
  const auto like = *load_model(running.path());
  const auto expected = *load_model(next.path());
  const auto memory = *WeightMemory::create();
  REQUIRE(memory->append(safetensors_bytes(tiny_tensors(tiny_config("llama")), "BF16", 2)).ok());
  CHECK(static_cast<int64_t>(memory->bytes()) <= like->stored_bytes_max + like->stored_tensors * 1024);
  ModelLoader loader;
  loader.offer("upload 1", memory);
  {
    const Loaded model = load(loader, "upload 1", WeightVersion{2}, like);
    REQUIRE(model.ok());
    CHECK((*model)->weights_hash == expected->weights_hash);
    loader.keep({*model, WeightVersion{2}});
  }
  loader.withdraw("upload 1");
  const auto others = *WeightMemory::create();
  REQUIRE(others->append(safetensors_bytes(tiny_tensors(tiny_config("llama")), "BF16", 1)).ok());
  loader.offer("upload 2", others);
  CHECK(load(loader, "upload 2", WeightVersion{3}, like).ok());  // staged, and no engine changes to it
  CHECK(load(loader, "upload 1", WeightVersion{2}, like).ok());  // an engine that was started again
  CHECK(loader.loads() == 2);
  CHECK_FALSE(load(loader, "upload 1", WeightVersion{3}, like).ok());
}

TEST_CASE("model loader: an engine starts with the weights that engines changed to once that is settled, and those before are freed") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("llama"), "BF16", 1);
  auto first = *load_model(folder.path());
  const std::weak_ptr<const Model> old = first;
  ModelLoader loader({std::move(first), WeightVersion{1}});
  for (uint64_t version = 2; version < 4; ++version) {
    CAPTURE(version);
    auto next = load(loader, folder.path(), WeightVersion{version}, loader.current().model);
    REQUIRE(next.ok());
    loader.keep({*next, WeightVersion{version}});
    loader.keep({*next, WeightVersion{version}});  // another engine of the process
    CHECK(loader.current().version == WeightVersion{version - 1});
    loader.settle(WeightVersion{version - 1});
    CHECK(loader.current().version == WeightVersion{version - 1});
    loader.settle(WeightVersion{version});
    CHECK(loader.current().version == WeightVersion{version});
    CHECK(loader.current().model == *next);
    for (int i = 0; i < 60'000 && !old.expired(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the loader's thread had it
    CHECK(old.expired());
  }
}

TEST_CASE("model loader: weights for which there is no memory are refused, and what is there stays") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("llama"), "BF16", 1);
  const auto first = *load_model(folder.path());
  int64_t free_bytes = first->weight_bytes() - 1;
  ModelLoader loader({first, WeightVersion{1}}, [&](const std::string& what, int64_t bytes) {
    CHECK(what == "the weights of " + folder.path().string());
    return bytes <= free_bytes ? Status() : fail(Code::kInvalidArgument, "not enough memory for ", what);
  });
  const auto refused = load(loader, folder.path(), WeightVersion{2}, first);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().detail == "not enough memory for the weights of " + folder.path().string());
  CHECK(loader.current().model == first);
  ++free_bytes;
  CHECK(load(loader, folder.path(), WeightVersion{2}, first).ok());
}

TEST_CASE("model loader: weights that no engine changed to are read again, for they may be others under the same name") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("llama"), "BF16", 1);
  const auto like = *load_model(folder.path());
  ModelLoader loader;
  const uint64_t failed = (*load(loader, folder.path(), WeightVersion{2}, like))->weights_hash;
  write_tiny_model(folder.path(), tiny_config("llama"), "BF16", 7);
  CHECK((*load(loader, folder.path(), WeightVersion{2}, like))->weights_hash != failed);
}

TEST_CASE("model loader: an error of a folder is answered, and the next load goes on") {
  TestFolder folder;
  write_tiny_model(folder.path(), tiny_config("llama"), "BF16", 1);
  const auto like = *load_model(folder.path());
  ModelLoader loader;
  const Loaded missing = load(loader, folder.path() / "none", WeightVersion{2}, like);
  REQUIRE(!missing.ok());
  CHECK(contains(missing.error().detail, "none"));
  CHECK(load(loader, folder.path(), WeightVersion{2}, like).ok());
}

}  // namespace seer
