// bench_engine: compares steps of the CPU engine with the limits of the machine: one line per point, with --json as
// JSON.
//
//   bench_engine [--model DIR] [--threads N] [--batch 1,4,16,64] [--context 0,2048] [--verify-rows 4] [--prefill 512]
//                [--dtype bf16|int8|w8a8] [--isa auto|scalar|avx2|avxvnni|avx512|amx] [--rounds 15] [--json]
//
// Points: for every context and batch a decode step (1 row per sequence) and a verify step (--verify-rows rows, all
// sampled; 0: none); and one prefill of --prefill tokens of one sequence, the last one sampled (0: none).
//   tokens_per_s     rows of the step / its time; for a verify step all rows, accepted or not
//   step_us          the engine's own time of the step
//   bytes_moved      packed weights of the layers and of the head, once; K and V of all positions attended to, once; K
//                    and V written. Not the rows of the embedding, nor activations
//   stream_gb_s      reading memory in order with prefetch, 1 GiB, the same number of threads (read_stream.h)
//   bandwidth_share  bytes_moved / step_us / stream_gb_s; above 1 if weights stay in a cache between steps
//   peak_gflop_s     multiplying and adding with operands in registers only, same kernels, as many threads
//   peak_share       operations of the step's GEMMs (not of its attention) / step_us / peak_gflop_s
//   gemm_chain_us    the step's GEMMs alone (gemm_chain.h), same kernels, as many threads
//   gemm_share       gemm_chain_us / step_us
// Every round measures stream, peak, step and chain in turn, after a warm-up; the figures are medians over the rounds. Short
// steps and chains are repeated within a round, without the first after the stream, so that caches are as between the
// steps of a rollout. KV of the context is written as zeros, not computed: the time of a step does not depend on its
// values. Steps go through the positions of one KV block in turn, as decoding does.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bench/gpu/gemm_chain.h"
#include "gpu/cpu/cpu_engine.h"
#include "gpu/cpu/machine_limits.h"
#include "gpu/cpu/read_stream.h"
#include "gpu/step_runner.h"

using namespace seer;

namespace {

// ---- arguments: seer_gpu and its benchmarks build without the command line's library ------------------------------

struct Options {
  std::string model = "deploy/models/scratchpad-1m8";
  int32_t threads = 1;
  std::vector<int32_t> batch{1, 4, 16, 64}, context{0, 2048};
  int32_t verify_rows = 4, prefill = 512, rounds = 15;
  std::string dtype = "bf16";  // of the weights
  CpuIsa isa = CpuIsa::kAuto;
  bool json = false;
};

/// Numbers between commas, each in [low, high]; empty where the text is anything else.
std::vector<int32_t> numbers(const std::string& text, int32_t low, int32_t high) {
  std::vector<int32_t> values;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    int32_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc{} || value < low || value > high) return {};
    values.push_back(value);
    if (next == end) return values;
    if (*next != ',') return {};
    at = next + 1;
  }
}

Result<Options> parse(const std::vector<std::string>& arguments) {
  constexpr int32_t kTokensMax = 1 << 20;
  const std::map<std::string, CpuIsa> isas{{"auto", CpuIsa::kAuto},
                                           {"scalar", CpuIsa::kScalar},
                                           {"avx2", CpuIsa::kAvx2},
                                           {"avxvnni", CpuIsa::kAvxVnni},
                                           {"avx512", CpuIsa::kAvx512},
                                           {"amx", CpuIsa::kAmx}};
  Options o;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& flag = arguments[i];
    if (flag == "--json") {
      o.json = true;
      continue;
    }
    if (i + 1 == arguments.size())
      return fail(Code::kInvalidArgument, flag,
                  ": unknown, or its value is missing; the head of bench_engine.cpp says what is known");
    const std::string& value = arguments[++i];
    const auto set_list = [&](std::vector<int32_t>& field, int32_t low, int32_t high) -> Status {
      field = numbers(value, low, high);
      if (!field.empty()) return {};
      return fail(Code::kInvalidArgument, flag, " ", value, ": expected integers from ", low, " to ", high,
                  " with commas between");
    };
    const auto set = [&](int32_t& field, int32_t low, int32_t high) -> Status {
      const std::vector<int32_t> one = numbers(value, low, high);
      if (one.size() != 1)
        return fail(Code::kInvalidArgument, flag, " ", value, ": expected an integer from ", low, " to ", high);
      field = one[0];
      return {};
    };
    Status status;
    if (flag == "--model") {
      o.model = value;
    } else if (flag == "--threads") {
      status = set(o.threads, 1, 256);
    } else if (flag == "--batch") {
      status = set_list(o.batch, 1, 4096);
    } else if (flag == "--context") {
      status = set_list(o.context, 0, kTokensMax);
    } else if (flag == "--verify-rows") {
      status = set(o.verify_rows, 0, 16);
    } else if (flag == "--prefill") {
      status = set(o.prefill, 0, kTokensMax);
    } else if (flag == "--rounds") {
      status = set(o.rounds, 1, 1000);
    } else if (flag == "--dtype" && (value == "bf16" || value == "int8" || value == "w8a8")) {
      o.dtype = value;
    } else if (flag == "--isa" && isas.contains(value)) {
      o.isa = isas.at(value);
    } else {
      status = fail(Code::kInvalidArgument, flag, " ", value,
                    ": expected a flag and a value that the head of bench_engine.cpp names");
    }
    SEER_RETURN_IF_ERROR(status);
  }
  return o;
}

Result<std::shared_ptr<const Model>> load(const Options& o) {
  return load_model(o.model, o.dtype == "int8" ? WeightType::kInt8 : o.dtype == "w8a8" ? WeightType::kW8a8 : WeightType::kAsStored);
}

// ---- points --------------------------------------------------------------------------------------------------------

struct Point {
  const char* phase;
  int32_t batch, context;
  int32_t rows;         // per sequence
  int32_t sample_rows;  // per sequence
};

std::vector<Point> points_of(const Options& o) {
  std::vector<Point> points;
  for (const int32_t context : o.context)
    for (const int32_t batch : o.batch) {
      points.push_back({"decode", batch, context, 1, 1});
      if (o.verify_rows > 0) points.push_back({"verify", batch, context, o.verify_rows, o.verify_rows});
    }
  if (o.prefill > 0) points.push_back({"prefill", 1, 0, o.prefill, 1});
  return points;
}

/// The point's step for the n-th time.
std::vector<SequenceShape> sequences_of(const Point& p, int64_t n, int64_t block_tokens) {
  const int64_t moved = p.rows < block_tokens ? n * p.rows % block_tokens : 0;
  return std::vector<SequenceShape>(
      static_cast<size_t>(p.batch),
      SequenceShape{.start = p.context + moved, .rows = p.rows, .sample_rows = p.sample_rows});
}

/// Blocks of the point's step wherever it stands in its block.
int64_t blocks_max(const Point& p, int64_t block_tokens) {
  return p.batch * ((p.context + p.rows + 2 * block_tokens) / block_tokens);
}

double bytes_moved(const Model& model, const EngineInfo& info, const Point& p) {
  const StepShape shape = step_shape(sequences_of(p, 0, info.block_tokens));
  int64_t weights = model.head.bytes();
  for (const LayerWeights& w : model.layers)
    weights += w.qkv.bytes() + w.output.bytes() + w.gate_up.bytes() + w.down.bytes();
  const int64_t token_bytes = info.block_bytes / info.block_tokens;
  return static_cast<double>(weights + (shape.kv_tokens + shape.rows) * token_bytes);
}

/// Two operations per weight and row; the head's only for sampled rows.
double gemm_operations(const Model& model, const Point& p) {
  const auto weights = [](const PackedMatrix& m) { return static_cast<double>(m.rows()) * m.columns(); };
  double layers = 0;
  for (const LayerWeights& w : model.layers) layers += weights(w.qkv) + weights(w.output) + weights(w.gate_up) + weights(w.down);
  return 2.0 * p.batch * (p.rows * layers + p.sample_rows * weights(model.head));
}

// ---- measuring -----------------------------------------------------------------------------------------------------

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Measured {
  double step_us = 0, chain_us = 0, stream_gb_s = 0, peak_gflop_s = 0;
};

/// Mean of the middle half: steps are timed in whole microseconds, and a short one takes tens of them.
double middle_mean(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t quarter = values.size() / 4;
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(quarter);
  const auto end = values.end() - static_cast<std::ptrdiff_t>(quarter);
  return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
}

/// `measure_us` once, and if it is short some times more: then without the first.
template <class Fn>
double settled_us(Fn&& measure_us) {
  constexpr double kShortUs = 30'000;
  const double first_us = measure_us();
  if (first_us >= kShortUs) return first_us;
  std::vector<double> more(static_cast<size_t>(std::clamp(kShortUs / first_us, 1.0, 256.0)));
  for (double& us : more) us = measure_us();
  return middle_mean(std::move(more));
}

Measured measure(StepRunner& engine, GemmChain& chain, ReadStream& stream, const std::function<double()>& peak_gflop_s,
                 const Point& p, int32_t rounds) {
  int64_t steps = 0;
  const auto step_us = [&] {
    const auto sequences = sequences_of(p, steps++, engine.info().block_tokens);
    return static_cast<double>(engine.run(synthetic_step(engine.info(), sequences)).step_us);
  };
  const auto chain_us = [&] { return chain.measure_us(p.batch * p.rows, p.batch * p.sample_rows); };
  step_us();
  chain_us();
  stream.measure_gb_s();
  std::vector<double> step, gemm, gb_s, gflop_s;
  for (int32_t round = 0; round < rounds; ++round) {
    gb_s.push_back(stream.measure_gb_s());
    gflop_s.push_back(peak_gflop_s());
    step.push_back(settled_us(step_us));
    gemm.push_back(settled_us(chain_us));
  }
  return {middle_mean(std::move(step)), middle_mean(std::move(gemm)), median(std::move(gb_s)), median(std::move(gflop_s))};
}

// ---- output --------------------------------------------------------------------------------------------------------

void print_row(const nlohmann::ordered_json& line) {
  std::printf("%-8s %6d %8d %12.1f %12.1f %12.2f %8.2f %10.2f\n", line["phase"].get<std::string>().c_str(),
              line["batch"].get<int>(), line["context"].get<int>(), line["tokens_per_s"].get<double>(),
              line["step_us"].get<double>(), line["bandwidth_share"].get<double>(), line["peak_share"].get<double>(),
              line["gemm_share"].get<double>());
  std::fflush(stdout);
}

Status run(const Options& o) {
  SEER_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, load(o));
  const CpuKernels* kernels = cpu_kernels(o.isa);
  if (!kernels) return fail(Code::kUnavailable, "--isa: this processor cannot run these kernels");
  const std::vector<Point> points = points_of(o);
  CpuEngineConfig config;
  config.threads = o.threads;
  config.isa = o.isa;
  for (const Point& p : points) {
    const int64_t positions = int64_t{p.context} + p.rows;
    if (positions > model->config.context_tokens_max)
      return fail(Code::kInvalidArgument, p.phase, " at context ", p.context, " needs ", positions,
                  " positions, and the model has ", model->config.context_tokens_max);
    const int64_t blocks = blocks_max(p, config.block_tokens);
    config.device_blocks = std::max(config.device_blocks, static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX)));
  }
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> made, make_cpu_engine(model, config));
  StepRunner engine(std::move(made));
  engine.zero_blocks(config.device_blocks);
  ThreadPool pool(o.threads);  // as the engine's own, which sleeps meanwhile
  GemmChain chain(*model, *kernels, pool);
  ReadStream stream(pool);

  if (!o.json) {
    std::printf("%s, %s kernels, %d threads, medians of %d rounds\n", o.model.c_str(), kernels->name, o.threads,
                o.rounds);
    const double gb_s = stream.measure_gb_s(), gflop_s = measure_gflop_s(*kernels, pool);
    std::printf("limits: reading %.1f GB/s, registers only %.0f GFLOP/s\n", gb_s, gflop_s);
    std::printf("%-8s %6s %8s %12s %12s %12s %8s %10s\n", "phase", "batch", "context", "tokens/s", "step, us",
                "of bandwidth", "of peak", "of it GEMM");
  }
  for (const Point& p : points) {
    const Measured m = measure(engine, chain, stream, [&] { return measure_gflop_s(*kernels, pool); }, p, o.rounds);
    const double bytes = bytes_moved(*model, engine.info(), p);
    const nlohmann::ordered_json line{{"bench", "engine"},
                                      {"phase", p.phase},
                                      {"batch", p.batch},
                                      {"context", p.context},
                                      {"rows", p.rows},
                                      {"tokens_per_s", p.batch * p.rows / m.step_us * 1e6},
                                      {"step_us", m.step_us},
                                      {"bytes_moved", bytes},
                                      {"bandwidth_share", bytes / m.step_us * 1e-3 / m.stream_gb_s},
                                      {"peak_share", gemm_operations(*model, p) / m.step_us * 1e-3 / m.peak_gflop_s},
                                      {"gemm_share", m.chain_us / m.step_us},
                                      {"stream_gb_s", m.stream_gb_s},
                                      {"peak_gflop_s", m.peak_gflop_s},
                                      {"gemm_chain_us", m.chain_us},
                                      {"isa", kernels->name},
                                      {"threads", o.threads},
                                      {"dtype", to_string(model->head.type())},
                                      {"model", o.model},
                                      {"rounds", o.rounds}};
    if (o.json)
      std::cout << line << std::endl;
    else
      print_row(line);
  }
  if (stream.checksum() == 0) return fail(Code::kIo, "the memory of the stream reads as zeros");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const Result<Options> options = parse({argv + 1, argv + argc});
  const Status status = options.ok() ? run(*options) : Status(options.error());
  if (status.ok()) return 0;
  std::cerr << "bench_engine: " << status.error().detail << "\n";
  return 1;
}
