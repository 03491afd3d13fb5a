#include "gpu/weight_store.h"

#include <doctest/doctest.h>

#include "tiny_model.h"

namespace seer {
namespace {

Error load_error(const nlohmann::json& config, std::vector<TinyTensor> tensors, const std::string& dtype = "BF16") {
  TestFolder folder;
  write_file(folder.path() / "config.json", config.dump());
  write_file(folder.path() / "model.safetensors", safetensors_bytes(tensors, dtype, 1));
  const auto model = load_model(folder.path());
  REQUIRE(!model.ok());
  return model.error();
}

TEST_CASE("weight store: packed rows are the file's rows, in all types") {
  for (const std::string dtype : {"BF16", "F16", "F32"}) {
    CAPTURE(dtype);
    TestFolder folder;
    const auto config = tiny_config("llama", {{"tie_word_embeddings", false}, {"hidden_size", 50}, {"vocab_size", 37}});
    write_tiny_model(folder.path(), config, dtype, 3);
    const auto model = load_model(folder.path());
    REQUIRE_MESSAGE(model.ok(), model.error().detail);
    CHECK(((*model)->head.type() == MatrixType::kBf16) == (dtype == "BF16"));
    CHECK((*model)->weight_bytes() > 0);
    int bad = 0;
    const TinyTensor head{"lm_head.weight", {37, 50}}, k_proj{"model.layers.1.self_attn.k_proj.weight", {32, 50}};
    float row[50];
    for (int r = 0; r < 37; ++r) {
      (*model)->head.read_row(r, row);
      for (int i = 0; i < 50; ++i) bad += row[i] != tiny_value(head, 3, r * 50 + i);
    }
    for (int r = 0; r < 32; ++r) {
      (*model)->layers[1].qkv.read_row(64 + r, row);
      for (int i = 0; i < 50; ++i) bad += row[i] != tiny_value(k_proj, 3, r * 50 + i);
    }
    CHECK(bad == 0);
  }
}

TEST_CASE(
    "weight store: int8 rows are within half a step of the file's, and an embedding of its own is not quantised") {
  for (const std::string dtype : {"BF16", "F16", "F32"}) {
    for (bool tied : {false, true}) {
      CAPTURE(dtype);
      CAPTURE(tied);
      TestFolder folder;
      const auto config =
          tiny_config("llama", {{"tie_word_embeddings", tied}, {"hidden_size", 98}, {"vocab_size", 37}});
      write_tiny_model(folder.path(), config, dtype, 3);
      const auto stored = *load_model(folder.path());
      const auto model = load_model(folder.path(), WeightType::kInt8);
      REQUIRE_MESSAGE(model.ok(), model.error().detail);
      CHECK((*model)->weights_hash != stored->weights_hash);
      CHECK((*model)->head.type() == MatrixType::kInt8);
      CHECK((*model)->layers[0].down.type() == MatrixType::kInt8);
      CHECK((*model)->embedding.type() == stored->embedding.type());
      CHECK((*model)->weight_bytes() < stored->weight_bytes());
      const TinyTensor head{tied ? "model.embed_tokens.weight" : "lm_head.weight", {37, 98}},
          v_proj{"model.layers.1.self_attn.v_proj.weight", {32, 98}};
      int bad = 0;
      const auto compare = [&](const TinyTensor& tensor, int r, const float* row) {
        for (int begin = 0; begin < 98; begin += kInt8GroupColumns) {
          const int end = std::min(98, begin + kInt8GroupColumns);
          float largest = 0;
          for (int i = begin; i < end; ++i) largest = std::max(largest, std::fabs(tiny_value(tensor, 3, r * 98 + i)));
          for (int i = begin; i < end; ++i)
            bad += !(std::fabs(row[i] - tiny_value(tensor, 3, r * 98 + i)) <= 0.5001f * largest / 127.0f);
        }
      };
      float row[98];
      for (int r = 0; r < 37; ++r) {
        (*model)->head.read_row(r, row);
        compare(head, r, row);
        (*model)->embedding_matrix().read_row(r, row);
        const TinyTensor embedding{"model.embed_tokens.weight", {37, 98}};
        if (tied) continue;
        for (int i = 0; i < 98; ++i) bad += row[i] != tiny_value(embedding, 3, r * 98 + i);
      }
      for (int r = 0; r < 32; ++r) {
        (*model)->layers[1].qkv.read_row(96 + r, row);  // after 64 rows of queries and 32 of keys
        compare(v_proj, r, row);
      }
      CHECK(bad == 0);
    }
  }
}

TEST_CASE("weight store: half floats convert exactly") {
  int bad = 0;
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double want =
        bits < 0x400 ? std::ldexp(bits, -24) : std::ldexp(0x400 + bits % 0x400, static_cast<int>(bits >> 10) - 25);
    bad += half_to_float(static_cast<uint16_t>(bits)) != want;
    bad += half_to_float(static_cast<uint16_t>(bits | 0x8000)) != -want;
  }
  CHECK(bad == 0);
  CHECK(half_to_float(0x7c00) == INFINITY);
  CHECK(std::isnan(half_to_float(0x7e00)));
  CHECK(float_to_bf16(1.00390625f) == 0x3f80);  // halfway: to even
  CHECK(float_to_bf16(1.01171875f) == 0x3f82);
  CHECK(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("weight store: the hash tells models apart by any bit of them") {
  const auto hash = [](const nlohmann::json& config, uint64_t seed) {
    TestFolder folder;
    write_tiny_model(folder.path(), config, "BF16", seed);
    return (*load_model(folder.path()))->weights_hash;
  };
  const uint64_t first = hash(tiny_config("qwen3"), 1);
  CHECK(first == hash(tiny_config("qwen3"), 1));
  CHECK(first != hash(tiny_config("qwen3"), 2));
  CHECK(first != hash(tiny_config("qwen3", {{"rope_theta", 10001.0}}), 1));
  CHECK(first != hash(tiny_config("qwen3", {{"rms_norm_eps", 1e-5}}), 1));
}

TEST_CASE("weight store: a missing or wrong tensor is named, with what was expected and found") {
  const auto config = tiny_config("qwen3");
  auto tensors = tiny_tensors(config);
  std::erase_if(tensors, [](const TinyTensor& t) { return t.name == "model.layers.1.mlp.up_proj.weight"; });
  CHECK(load_error(config, tensors)
            .detail.ends_with("tensor model.layers.1.mlp.up_proj.weight of shape [96, 64] is missing"));
  tensors = tiny_tensors(config);
  for (TinyTensor& t : tensors)
    if (t.name == "model.layers.0.self_attn.k_norm.weight") t.shape = {8, 2};
  CHECK(load_error(config, tensors)
            .detail.ends_with("tensor model.layers.0.self_attn.k_norm.weight should have shape [16], found [8, 2]"));
  CHECK(load_error(tiny_config("llama", {{"tie_word_embeddings", false}}), tiny_tensors(tiny_config("llama"))).code ==
        Code::kNotFound);
  // A model larger than its file is refused before memory is taken for it.
  CHECK(load_error(tiny_config("qwen3", {{"vocab_size", 1 << 24}, {"hidden_size", 1 << 16}}), tensors).code ==
        Code::kInvalidArgument);
}

TEST_CASE("weight store: matrices of different types are refused") {
  const auto config = tiny_config("llama");
  std::vector<TinyTensor> tensors = tiny_tensors(config), rest;
  const auto is_down = [](const TinyTensor& t) { return t.name.ends_with("down_proj.weight"); };
  for (const TinyTensor& t : tensors)
    if (is_down(t)) rest.push_back(t);
  std::erase_if(tensors, is_down);
  TestFolder folder;
  write_file(folder.path() / "config.json", config.dump());
  write_file(folder.path() / "1.safetensors", safetensors_bytes(tensors, "BF16", 1));
  write_file(folder.path() / "2.safetensors", safetensors_bytes(rest, "F32", 1));
  nlohmann::json map;
  for (const TinyTensor& t : tensors) map[t.name] = "1.safetensors";
  for (const TinyTensor& t : rest) map[t.name] = "2.safetensors";
  write_file(folder.path() / "model.safetensors.index.json", nlohmann::json({{"weight_map", map}}).dump());
  CHECK(load_model(folder.path()).error().detail == folder.path().string() +
                                                        ": tensor model.layers.0.mlp.down_proj.weight should have "
                                                        "dtype BF16 like model.embed_tokens.weight, found F32");
}

}  // namespace
}  // namespace seer
