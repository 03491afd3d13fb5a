#include "gpu/model/weight_store.h"

#include <doctest/doctest.h>

#include "gpu/model/finite_scan.h"
#include "gpu/tiny_model.h"

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
    "weight store: rows of integers are within half a step of the file's, and an embedding of its own is not quantised") {
  for (const std::string dtype : {"BF16", "F16", "F32"}) {
    for (bool tied : {false, true}) {
      CAPTURE(dtype);
      CAPTURE(tied);
      TestFolder folder;
      const auto config =
          tiny_config("llama", {{"tie_word_embeddings", tied}, {"hidden_size", 98}, {"vocab_size", 37}});
      write_tiny_model(folder.path(), config, dtype, 3);
      const auto stored = *load_model(folder.path());
      for (const auto& [weights, type] : {std::pair{WeightType::kInt8, MatrixType::kInt8}, {WeightType::kW8a8, MatrixType::kW8a8}}) {
        CAPTURE(to_string(type));
        const auto model = load_model(folder.path(), weights);
        REQUIRE_MESSAGE(model.ok(), model.error().detail);
        CHECK((*model)->weights_hash != stored->weights_hash);
        CHECK((*model)->head.type() == type);
        CHECK((*model)->layers[0].down.type() == type);
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

// A tiny model's folder with one element of one tensor set to these bits.
void write_with_bits(const TestFolder& folder, const nlohmann::json& config, const std::string& dtype,
                     const std::string& tensor, size_t index, uint32_t bits) {
  write_tiny_model(folder.path(), config, dtype, 1);
  const auto file = SafetensorsFile::open(folder.path() / "model.safetensors");
  REQUIRE(file.ok());
  const size_t width = dtype == "F32" ? 4 : 2;
  const size_t at = (*file)->tensors().at(tensor).begin + index * width;
  std::fstream out(folder.path() / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(at));
  out.write(reinterpret_cast<const char*>(&bits), static_cast<std::streamsize>(width));
}

TEST_CASE("weight store: a weight that is NaN or infinite is refused with tensor and place, in all types") {
  const auto config = tiny_config("llama", {{"attention_bias", true}});
  struct Bits {
    const char* dtype;
    uint32_t bits;
    const char* shown;
  };
  const Bits broken[] = {{"BF16", 0x7fc0, "nan"}, {"BF16", 0xff80, "-inf"},   {"F16", 0x7e00, "nan"},
                         {"F16", 0x7c00, "inf"},  {"F32", 0x7f800001, "nan"}, {"F32", 0xff800000, "-inf"}};
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  for (const Bits& b : broken)
    for (const WeightType type : {WeightType::kAsStored, WeightType::kInt8, WeightType::kW8a8}) {
      CAPTURE(b.dtype);
      CAPTURE(b.bits);
      TestFolder folder;
      write_with_bits(folder, config, b.dtype, up, 95 * 64 + 63, b.bits);
      const auto model = load_model(folder.path(), type);
      REQUIRE(!model.ok());
      CHECK(model.error().code == Code::kInvalidArgument);
      CHECK(model.error().detail == cat(folder.path().string(), ": tensor ", up, " holds ", b.shown,
                                        " at [95, 63]: every weight must be a finite number"));
      for (const std::string vector : {"model.norm.weight", "model.layers.0.self_attn.q_proj.bias"}) {
        write_with_bits(folder, config, b.dtype, vector, 7, b.bits);
        const auto again = load_model(folder.path(), type);
        REQUIRE(!again.ok());
        CHECK(again.error().detail.find(cat("tensor ", vector, " holds ", b.shown, " at [7]:")) != std::string::npos);
      }
    }
  // The largest finite numbers are accepted.
  for (const Bits& b : {Bits{"BF16", 0x7f7f, ""}, {"F16", 0xfbff, ""}, {"F32", 0xff7fffff, ""}}) {
    TestFolder folder;
    write_with_bits(folder, config, b.dtype, up, 0, b.bits);
    CHECK(load_model(folder.path()).ok());
  }
}

TEST_CASE("weight store: the search for weights that are not finite finds each place, whatever the alignment") {
  for (const auto& [type, width, bits] : {std::tuple{TensorType::kF32, 4, 0x7f800000u},
                                          {TensorType::kF16, 2, 0xfc00u},
                                          {TensorType::kBf16, 2, 0x7f80u}}) {
    int bad = 0;
    for (int count = 0; count <= 40; ++count)
      for (int shift = 0; shift < 8; ++shift) {
        std::vector<std::byte> memory(200, std::byte{0x3b});  // finite in all three types
        const std::span<std::byte> bytes = std::span(memory).subspan(shift, count * width);
        bad += first_not_finite(bytes, type) != -1;
        for (int i = count - 1; i >= 0; --i) {
          std::memcpy(bytes.data() + i * width, &bits, width);
          bad += first_not_finite(bytes, type) != i;
        }
      }
    CHECK(bad == 0);
  }
}

TEST_CASE("weight store: a tensor that the config has no place for is refused by name") {
  const auto with_extra = [](const nlohmann::json& config, const std::string& name, std::vector<int64_t> shape) {
    auto tensors = tiny_tensors(config);
    tensors.push_back({name, std::move(shape)});
    const std::string said = load_error(config, tensors).detail;
    return said.substr(said.find(": tensor ") + 9);
  };
  const std::string layer = "model.layers.0.";
  const auto llama = tiny_config("llama"), qwen2 = tiny_config("qwen2"), qwen3 = tiny_config("qwen3");
  CHECK(with_extra(llama, layer + "self_attn.q_proj.bias", {64}) ==
        layer + "self_attn.q_proj.bias is a bias, but config.json does not say that attention_bias is true");
  CHECK(with_extra(qwen3, layer + "self_attn.o_proj.bias", {64}) ==
        layer + "self_attn.o_proj.bias is a bias, but config.json does not say that attention_bias is true");
  CHECK(with_extra(llama, layer + "mlp.down_proj.bias", {64}) ==
        layer + "mlp.down_proj.bias is a bias, but config.json does not say that mlp_bias is true");
  CHECK(with_extra(qwen2, layer + "self_attn.o_proj.bias", {64}).find("is no part of a Qwen2 model") !=
        std::string::npos);
  CHECK(with_extra(llama, layer + "self_attn.q_norm.weight", {16}).find("is no part of a Llama model") !=
        std::string::npos);
  CHECK(with_extra(llama, "model.layers.2.input_layernorm.weight", {64}) ==
        "model.layers.2.input_layernorm.weight belongs to a layer that config.json does not have: num_hidden_layers is "
        "2");
  CHECK(with_extra(llama, layer + "self_attn.q_proj.lora_A.weight", {8, 64}).find("LoRA adapter") != std::string::npos);
  CHECK(with_extra(llama, "lm_head.weight", {96, 64}) ==
        "lm_head.weight differs from model.embed_tokens.weight, but config.json says that tie_word_embeddings is true");
  CHECK(with_extra(llama, "score." + std::string(5000, 'x'), {4}).size() < 300);
}

TEST_CASE("weight store: frequencies of old Llama files and a head equal to the tied embedding are harmless") {
  const auto config = tiny_config("llama");
  auto tensors = tiny_tensors(config);
  TestFolder plain;
  write_tiny_model(plain.path(), config, "BF16", 1);
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {8}});
  TestFolder folder;
  write_file(folder.path() / "config.json", config.dump());
  // The head's bytes are those of the embedding, which is the first tensor.
  nlohmann::json header;
  std::string data;
  const auto add = [&](const std::string& name, const TinyTensor& like) {
    const size_t begin = data.size();
    append_tensor(data, like, "BF16", 1);
    header[name] = {{"dtype", "BF16"}, {"shape", like.shape}, {"data_offsets", {begin, data.size()}}};
  };
  for (const TinyTensor& t : tensors) add(t.name, t);
  add("lm_head.weight", tensors[0]);
  const uint64_t size = header.dump().size();
  write_file(folder.path() / "model.safetensors",
             std::string(reinterpret_cast<const char*>(&size), 8) + header.dump() + data);
  const auto model = load_model(folder.path());
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  CHECK((*model)->weights_hash == (*load_model(plain.path()))->weights_hash);
}

TEST_CASE("weight store: what is no model folder is refused with the sentence of model_folder.h") {
  CHECK(load_model("/nonexistent").error().detail == "there is no folder /nonexistent");
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
