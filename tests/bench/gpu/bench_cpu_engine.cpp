// Tokens per second of the CPU engine, one JSON line per (context, batch): {"bench", "isa", "threads",
// "context_tokens", "batch", "decode_tokens_per_s", "decode_tokens_per_cpu_s", "prefill_tokens_per_s"}. Decode is the
// median step; per CPU second is what one core gives when nothing else runs on it. usage: bench_cpu_engine [model
// folder] [threads] [scalar|avx2|avx512]
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "gpu/cpu_engine.h"

using namespace seer;

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Submits one step and waits for it.
class Stepper {
 public:
  explicit Stepper(Engine& engine) : engine_(engine) {
    engine_.set_notify([this] {
      const std::lock_guard lock(mutex_);
      ++ready_;
      wake_.notify_one();
    });
  }
  StepResult run(StepBatch batch) {
    engine_.submit(std::move(batch));
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return ready_ > 0; });
    --ready_;
    return std::get<StepResult>(std::move(engine_.take_results().at(0)));
  }

 private:
  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable wake_;
  int ready_ = 0;
};

nlohmann::json measure(Stepper& stepper, const EngineInfo& info, int32_t context, int32_t batch) {
  const auto sampling = std::make_shared<const SamplingParams>();
  const int32_t steps = std::max(8, 256 / batch);
  const int32_t blocks = (context + steps) / static_cast<int32_t>(info.block_tokens) + 1;
  std::vector<SequenceStep> sequences(static_cast<size_t>(batch));
  double prefill_s = 0;
  for (int32_t i = 0; i < batch; ++i) {
    SequenceStep& s = sequences[static_cast<size_t>(i)];
    s.blocks.resize(static_cast<size_t>(blocks));
    std::iota(s.blocks.begin(), s.blocks.end(), i * blocks);
    for (int32_t t = 0; t < context; ++t) s.tokens.push_back((t * 7919 + i * 13) % info.vocab_size);
    s.sample_rows = 1;
    s.seed = static_cast<uint64_t>(i);
    s.sampling = sampling;
    const StepResult result = stepper.run({.id = 0, .sequences = {s}});
    prefill_s += static_cast<double>(result.step_us) * 1e-6;
    s.tokens = {result.sampled[0][0].token};
    s.start = context;
  }
  std::vector<double> step_s;
  int64_t cpu_us = 0;
  for (int32_t step = 0; step < steps; ++step) {
    const double start_s = now_s();
    const StepResult result = stepper.run({.id = 1, .sequences = sequences});
    step_s.push_back(now_s() - start_s);
    cpu_us += result.cpu_us;
    for (size_t i = 0; i < sequences.size(); ++i) {
      sequences[i].tokens = {result.sampled[i][0].token};
      ++sequences[i].start;
    }
  }
  std::sort(step_s.begin(), step_s.end());
  return {{"context_tokens", context},
          {"batch", batch},
          {"decode_tokens_per_s", batch / step_s[step_s.size() / 2]},
          {"decode_tokens_per_cpu_s", 1e6 * batch * steps / static_cast<double>(cpu_us)},
          {"prefill_tokens_per_s", context * batch / prefill_s}};
}

}  // namespace

int main(int argc, char** argv) {
  const auto model = load_model(argc > 1 ? argv[1] : "deploy/models/scratchpad-1m8");
  if (!model.ok()) {
    std::cerr << model.error() << "\n";
    return 1;
  }
  const int32_t threads = argc > 2 ? std::atoi(argv[2]) : 1;
  const std::string isa = argc > 3 ? argv[3] : "auto";
  const auto engine = make_cpu_engine(*model, {.threads = threads,
                                               .device_blocks = 64 * ((2000 + 256) / 16 + 1),
                                               .isa = isa == "scalar"   ? CpuIsa::kScalar
                                                      : isa == "avx2"   ? CpuIsa::kAvx2
                                                      : isa == "avx512" ? CpuIsa::kAvx512
                                                      : isa == "amx"    ? CpuIsa::kAmx
                                                                        : CpuIsa::kAuto});
  if (!engine.ok()) {
    std::cerr << engine.error() << "\n";
    return 1;
  }
  Stepper stepper(**engine);
  for (int32_t context : {100, 1000, 2000}) {
    for (int32_t batch : {1, 16, 64}) {
      nlohmann::json line = measure(stepper, (*engine)->info(), context, batch);
      line.update({{"bench", "cpu_engine"}, {"isa", isa}, {"threads", threads}});
      std::cout << line << std::endl;
    }
  }
}
