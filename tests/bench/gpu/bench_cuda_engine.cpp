// bench_cuda_engine: times of steps of the CUDA engine on the first GPU, one JSON line per point.
//   bench_cuda_engine MODEL [ROUNDS [POINT]]
//   MODEL   a folder with a bf16 model, or `7b`: the shape of Qwen2.5-7B with random weights, or `7b/N`: N of its 28 layers
//   POINT   of these points only that one: decode-16-1024
// Points: decode at batches 1, 4, 16, 64 and contexts 128, 1024, 4096 as far as the model goes, verify of 4 drafts at batch 16, prefill
// of 512 and 2048 tokens.
// With SEER_BENCH_NO_GRAPHS set, kernels are launched one by one, so that a profiler shows them.
//   step_us      decode: the mean of a running batch, two orders open; others: the median of the engine's own time of a step
//   bytes_moved  weights of the layers and the head once, K and V attended to once
//   gb_s         bytes_moved / step_us; tflop_s: operations of the matrices and of attention
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/cuda_engine.h"
#include "gpu/model/weight_store.h"
#include "gpu/step_runner.h"
#include "protocols/hash.h"

using namespace seer;

namespace {

struct Point {
  const char* phase;
  StepSequences sequences;
};
constexpr int32_t kRowsMax = 2048;

std::string name_of(const Point& p) {
  return std::string(p.phase) + "-" + std::to_string(p.sequences.size()) + "-" + std::to_string(p.sequences[0].start);
}

std::vector<Point> points_of(int64_t context_tokens_max, int rounds, const std::string& only) {
  std::vector<Point> points;
  for (const int64_t context : {128, 1024, 4096})
    for (const size_t batch : {1, 4, 16, 64})
      if (context + rounds + 8 <= context_tokens_max) points.push_back({"decode", StepSequences(batch, {.start = context})});
  for (const int32_t rows : {1, 5})
    points.push_back({"verify", StepSequences(16, {.start = 1024, .rows = rows, .sample_rows = rows})});
  for (const int32_t rows : {512, kRowsMax}) points.push_back({"prefill", {{.start = 0, .rows = rows, .sample_rows = 1}}});
  std::erase_if(points, [&](const Point& p) {
    return p.sequences[0].start + p.sequences[0].rows > context_tokens_max || (!only.empty() && name_of(p) != only);
  });
  return points;
}

/// bf16 numbers of either sign from 2^-7 to 2^-5, so that no step overflows.
void fill_random(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t bits = mix64(seed + i), word = (bits & 0x80ff80ff80ff80ffu) | 0x3c003c003c003c00u;
    std::memcpy(&bytes[i], &word, 8);
  }
}

PackedMatrix random_matrix(int32_t rows, int32_t columns, uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows) * columns * 2);
  fill_random(bytes, seed);
  PackedMatrix matrix(rows, columns, MatrixType::kBf16);
  matrix.fill(0, TensorView{.type = TensorType::kBf16, .shape = {rows, columns}, .bytes = bytes});
  return matrix;
}

/// Random weights in the shape of Qwen2.5-7B.
std::shared_ptr<const Model> random_7b(int32_t layers) {
  const auto model = std::make_shared<Model>();
  model->folder = "7b";
  ModelConfig& c = model->config;
  c = {.family = ModelFamily::kQwen2, .hidden_size = 3584, .intermediate_size = 18944, .layers = layers, .heads = 28, .kv_heads = 4,
       .head_dim = 128, .vocab_size = 152064, .context_tokens_max = 8192, .qkv_bias = true};
  c.rope.theta = 1e6;
  const std::vector<float> ones(static_cast<size_t>(c.hidden_size), 1.0f), bias(static_cast<size_t>(c.query_size() + 2 * c.kv_size()), 0.125f);
  model->final_norm = ones;
  model->layers.resize(static_cast<size_t>(c.layers));
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < model->layers.size(); ++i)
    threads.emplace_back([&c, &ones, &bias, i, &layer = model->layers[i]] {
      layer = {.input_norm = ones, .post_norm = ones, .qkv_bias = bias};
      layer.qkv = random_matrix(c.query_size() + 2 * c.kv_size(), c.hidden_size, i << 40);
      layer.output = random_matrix(c.hidden_size, c.query_size(), i << 40 | 1ull << 36);
      layer.gate_up = random_matrix(2 * c.intermediate_size, c.hidden_size, i << 40 | 2ull << 36);
      layer.down = random_matrix(c.hidden_size, c.intermediate_size, i << 40 | 3ull << 36);
    });
  model->head = random_matrix(c.vocab_size, c.hidden_size, 100ull << 40);
  model->embedding = random_matrix(c.vocab_size, c.hidden_size, 101ull << 40);
  threads.clear();
  return model;
}

Status run(const std::string& name, int rounds, const std::string& only) {
  std::shared_ptr<const Model> model;
  if (name == "7b" || name.starts_with("7b/")) {
    model = random_7b(name == "7b" ? 28 : std::atoi(name.c_str() + 3));
  } else {
    SEER_ASSIGN_OR_RETURN(model, load_model(name));
  }
  const ModelConfig& c = model->config;
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Device> device, cuda::open_cuda_device(0));
  const std::string gpu = device->properties().name;
  const std::vector<Point> points = points_of(c.context_tokens_max, rounds, only);
  CudaEngineConfig config{.rows_max = kRowsMax, .weights_beside = false};
  config.graphs = std::getenv("SEER_BENCH_NO_GRAPHS") == nullptr;
  for (Point p : points) {
    for (SequenceShape& s : p.sequences) s.rows += rounds + 8;
    config.device_blocks = std::max(config.device_blocks, static_cast<int32_t>(blocks_of(p.sequences, config.block_tokens)));
  }
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, make_cuda_engine(model, std::move(device), config));
  StepRunner runner(std::move(engine));
  std::vector<std::byte> block(static_cast<size_t>(runner.info().block_bytes));
  fill_random(block, 7);
  runner.fill_blocks(config.device_blocks, block);
  if (points.empty()) return fail(Code::kInvalidArgument, "no point ", only, " for this model");
  for (const Point& p : points) {
    double step_us = 0;
    if (std::string(p.phase) == "decode") {
      step_us = runner.decoding_step_us(p.sequences, rounds);
    } else {
      std::vector<double> us;
      for (int round = 0; round <= rounds; ++round)
        us.push_back(static_cast<double>(runner.run(synthetic_step(runner.info(), p.sequences)).step_us));
      us.erase(us.begin());  // makes a graph
      std::nth_element(us.begin(), us.begin() + std::ssize(us) / 2, us.end());
      step_us = us[us.size() / 2];
    }
    if (!runner.status().ok()) return runner.status();
    step_us = std::max(1.0, step_us);
    double positions = 0, pairs = 0, rows = 0;
    for (const SequenceShape& s : p.sequences) {
      positions += static_cast<double>(s.start + s.rows);
      pairs += static_cast<double>(s.rows) * (static_cast<double>(s.start) + (s.rows + 1) / 2.0);
      rows += s.rows;
    }
    const double bytes = static_cast<double>(model->weight_bytes() - (c.tied_head ? 0 : model->embedding.bytes())) +
                         positions * static_cast<double>(runner.info().block_bytes) / config.block_tokens;
    const double layer = static_cast<double>(c.hidden_size) * (2 * c.query_size() + 2 * c.kv_size() + 3.0 * c.intermediate_size);
    const double operations = 2 * rows * c.layers * layer + 4 * pairs * c.layers * c.query_size();
    std::cout << nlohmann::ordered_json{{"bench", "cuda_engine"}, {"gpu", gpu}, {"model", name}, {"phase", p.phase},
                                        {"batch", p.sequences.size()}, {"context", p.sequences[0].start},
                                        {"rows", rows}, {"step_us", step_us}, {"bytes_moved", bytes},
                                        {"gb_s", bytes / step_us * 1e-3}, {"tflop_s", operations / step_us * 1e-6}}
              << std::endl;
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: bench_cuda_engine MODEL|7b|7b/LAYERS [ROUNDS [POINT]]\n";
    return 2;
  }
  const Status status = run(argv[1], argc > 2 ? std::max(1, std::atoi(argv[2])) : 30, argc > 3 ? argv[3] : "");
  if (status.ok()) return 0;
  std::cerr << "bench_cuda_engine: " << status.error().detail << "\n";
  return 1;
}
