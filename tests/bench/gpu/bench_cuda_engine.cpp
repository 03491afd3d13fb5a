// bench_cuda_engine: times of steps of the CUDA engine on the first GPU, one JSON line per point.
//   bench_cuda_engine MODEL [ROUNDS]
// Points: decode at batches 1, 4, 16, 64 and contexts 0, 1024, 4096 as far as the model goes, verify of 4 drafts at batch 16, prefill of
// 512 tokens.
//   step_us      median of the engine's own time of a step
//   bytes_moved  weights of the layers and the head once, K and V attended to once
//   gb_s         bytes_moved / step_us
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "gpu/cuda/cuda_device.h"
#include "gpu/cuda/cuda_engine.h"
#include "gpu/model/weight_store.h"
#include "gpu/step_runner.h"

using namespace seer;

namespace {

struct Point {
  const char* phase;
  StepSequences sequences;
};

std::vector<Point> points_of(int64_t context_tokens_max) {
  std::vector<Point> points;
  for (const int64_t context : {0, 1024, 4096})
    for (const size_t batch : {1, 4, 16, 64}) points.push_back({"decode", StepSequences(batch, {.start = context})});
  points.push_back({"verify", StepSequences(16, {.start = 1024, .rows = 5, .sample_rows = 5})});
  points.push_back({"prefill", {{.start = 0, .rows = 512, .sample_rows = 1}}});
  std::erase_if(points, [&](const Point& p) { return p.sequences[0].start + p.sequences[0].rows > context_tokens_max; });
  return points;
}

Status run(const std::string& folder, int rounds) {
  SEER_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, load_model(folder));
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Device> device, cuda::open_cuda_device(0));
  const std::string name = device->properties().name;
  const std::vector<Point> points = points_of(model->config.context_tokens_max);
  CudaEngineConfig config;
  for (const Point& p : points)
    config.device_blocks = std::max(config.device_blocks, static_cast<int32_t>(blocks_of(p.sequences, config.block_tokens)));
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, make_cuda_engine(model, std::move(device), config));
  StepRunner runner(std::move(engine));
  runner.zero_blocks(config.device_blocks);
  for (const Point& p : points) {
    std::vector<double> us;
    for (int round = 0; round <= rounds; ++round) {
      const StepResult result = runner.run(synthetic_step(runner.info(), p.sequences));
      if (!result.status.ok()) return result.status;
      if (round > 0) us.push_back(static_cast<double>(result.step_us));  // the first makes a graph
    }
    std::nth_element(us.begin(), us.begin() + std::ssize(us) / 2, us.end());
    const double step_us = std::max(1.0, us[us.size() / 2]);
    int64_t positions = 0, rows = 0;
    for (const SequenceShape& s : p.sequences) {
      positions += s.start + s.rows;
      rows += s.rows;
    }
    const double bytes = static_cast<double>(model->weight_bytes()) +
                         static_cast<double>(positions) * static_cast<double>(runner.info().block_bytes) / config.block_tokens;
    std::cout << nlohmann::ordered_json{{"bench", "cuda_engine"}, {"gpu", name}, {"model", folder}, {"phase", p.phase},
                                        {"batch", p.sequences.size()}, {"context", p.sequences[0].start},
                                        {"rows", rows}, {"step_us", step_us}, {"bytes_moved", bytes},
                                        {"gb_s", bytes / step_us * 1e-3}, {"tokens_per_s", static_cast<double>(rows) / step_us * 1e6}}
              << std::endl;
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: bench_cuda_engine MODEL [ROUNDS]\n";
    return 2;
  }
  const Status status = run(argv[1], argc > 2 ? std::max(1, std::atoi(argv[2])) : 30);
  if (status.ok()) return 0;
  std::cerr << "bench_cuda_engine: " << status.error().detail << "\n";
  return 1;
}
