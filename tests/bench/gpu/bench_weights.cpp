// bench_weights: an engine gets new weights while it computes. Measures the time to stage them, how much longer steps take
// meanwhile, the time of the switch, and the peak of memory. The model is random and in BF16; its file is in the page cache.
// Prints one JSON line.
//
//   bench_weights [--layers 8] [--hidden 2048] [--updates 3] [--rows 4] [--threads 2]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpu/cpu/cpu_engine.h"
#include "gpu/tiny_model.h"

using namespace seer;

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

/// VmRSS, or VmHWM: the peak since reset_peak().
double resident_gib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / (1 << 20);
  return 0;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// An engine whose results are waited for.
class Runner {
 public:
  explicit Runner(Engine& engine) : engine_(engine) {
    engine_.set_notify([this] {
      const std::lock_guard lock(mutex_);
      ++ready_;
      changed_.notify_one();
    });
  }
  /// Queues a step of decode rows, each of its own sequence.
  void submit_step(int32_t rows) {
    StepBatch step{.id = 1};
    for (int32_t r = 0; r < rows; ++r)
      step.sequences.push_back({.start = 0, .tokens = {5 + r}, .blocks = {r}, .sample_rows = 1,
                                .sampling = std::make_shared<const SamplingParams>()});
    engine_.submit(std::move(step));
  }
  std::vector<EngineResult> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ready_ > 0; });
    ready_ = 0;
    lock.unlock();
    return engine_.take_results();
  }

 private:
  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int ready_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  int64_t layers = 8, hidden = 2048, updates = 3;
  int32_t rows = 4, threads = 2;
  CLI::App app("new weights for an engine that computes");
  app.add_option("--layers", layers);
  app.add_option("--hidden", hidden, "a multiple of 128");
  app.add_option("--updates", updates);
  app.add_option("--rows", rows, "decode rows of a step");
  app.add_option("--threads", threads, "of the engine");
  CLI11_PARSE(app, argc, argv);

  const TestFolder folder;
  nlohmann::json config = tiny_config("qwen3");
  config["num_hidden_layers"] = layers;
  config["hidden_size"] = hidden;
  config["intermediate_size"] = 3 * hidden;
  config["num_attention_heads"] = hidden / 128;
  config["num_key_value_heads"] = std::max<int64_t>(1, hidden / 256);
  config["head_dim"] = 128;
  config["vocab_size"] = 32768;
  write_tiny_model(folder.path(), config, "BF16", 1);

  double start = now_s();
  auto model = load_model(folder.path());
  if (!model.ok()) return std::cerr << "bench_weights: " << model.error().detail << "\n", 1;
  const double load_s = now_s() - start;
  auto made = make_cpu_engine(*std::move(model), {.threads = threads, .device_blocks = rows});
  if (!made.ok()) return std::cerr << "bench_weights: " << made.error().detail << "\n", 1;
  Engine& engine = **made;
  Runner runner(engine);

  std::vector<double> alone_us, beside_us, stage_s, switch_us, peaks;
  for (int i = 0; i < 10; ++i) {
    runner.submit_step(rows);
    alone_us.push_back(static_cast<double>(std::get<StepResult>(runner.wait().at(0)).step_us));
  }
  const double resident = resident_gib("VmRSS");
  for (int64_t update = 1; update <= updates; ++update) {
    reset_peak();
    start = now_s();
    engine.submit(StageWeights{.id = 2, .version = WeightVersion{static_cast<uint64_t>(1 + update)}, .folder = folder.path().string()});
    runner.submit_step(rows);
    bool is_staged = false, is_running = true;
    while (!is_staged || is_running)
      for (const EngineResult& result : runner.wait())
        if (const auto* const weights = std::get_if<WeightResult>(&result)) {
          if (!weights->status.ok()) return std::cerr << "bench_weights: " << weights->status.error().detail << "\n", 1;
          stage_s.push_back(now_s() - start);
          is_staged = true;
        } else {
          beside_us.push_back(static_cast<double>(std::get<StepResult>(result).step_us));
          is_running = !is_staged;
          if (is_running) runner.submit_step(rows);
        }
    start = now_s();
    engine.submit(SwitchWeights{.id = 3});
    runner.wait();
    switch_us.push_back(1e6 * (now_s() - start));
    peaks.push_back(resident_gib("VmHWM"));
  }
  std::cout << nlohmann::json{{"bench", "weights"},
                              {"file_gib", static_cast<double>(std::filesystem::file_size(folder.path() / "model.safetensors")) / (1 << 30)},
                              {"threads", threads},
                              {"load_s", load_s},
                              {"stage_s", median(stage_s)},
                              {"step_us_alone", median(alone_us)},
                              {"step_us_beside", median(beside_us)},
                              {"step_ratio", median(beside_us) / median(alone_us)},
                              {"switch_us", median(switch_us)},
                              {"resident_gib", resident},
                              {"peak_gib", *std::ranges::max_element(peaks)}}
                   .dump()
            << "\n";
}
