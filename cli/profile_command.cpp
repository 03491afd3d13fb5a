#include "cli/profile_command.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "cli/doctor.h"
#include "cli/engine_source.h"
#include "cli/machine_memory.h"
#include "cli/output_writer.h"
#include "gpu/cpu/cpu_engine.h"
#include "protocols/check.h"
#include "protocols/hash.h"

namespace seer {
namespace {

// Contexts end inside a KV block, as most real ones do, with room for a few more rows.
constexpr int64_t kIntoBlock = 4;

std::vector<int64_t> up_to(std::vector<int64_t> values, int64_t max) {
  std::erase_if(values, [&](int64_t v) { return v > max; });
  return values;
}

/// Prints progress, about every 2 s.
class VisitLog {
 public:
  explicit VisitLog(size_t total) : total_(total) {}
  void step() {
    ++done_;
    const auto now = std::chrono::steady_clock::now();
    if (now < next_line_) return;
    next_line_ = now + std::chrono::seconds(2);
    std::cerr << cat("  ", done_, "/", total_, " done  ", 100 * done_ / total_, " %\n");
  }

 private:
  const size_t total_;
  size_t done_ = 0;
  std::chrono::steady_clock::time_point next_line_ = std::chrono::steady_clock::now() + std::chrono::seconds(2);
};

/// Microseconds of every point: the median over `repeats` rounds, after a warm-up round. Each round visits the points in a
/// different order, so that other load on the machine affects all points alike.
Result<std::vector<double>> measure(StepRunner& engine, StepNeighbours& neighbours, const std::vector<GridPoint>& grid,
                                    int64_t repeats, const std::atomic<bool>& stop) {
  std::vector<std::vector<double>> visits(grid.size());
  VisitLog log(grid.size() * static_cast<size_t>(repeats + 1));
  std::vector<size_t> order(grid.size());
  std::iota(order.begin(), order.end(), 0);
  for (int64_t round = 0; round <= repeats; ++round) {
    const auto place = [&](size_t i) { return hash_pair(static_cast<uint64_t>(round), i); };
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
    for (const size_t i : order) {
      if (stop.load()) return fail(Code::kCancelled, "stopped on request");
      neighbours.go_to(i);
      const double us = typical_step_us(engine, grid[i].sequences);
      SEER_RETURN_IF_ERROR(engine.status());
      if (round > 0) visits[i].push_back(us);
      log.step();
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& v : visits) {
    std::sort(v.begin(), v.end());
    medians.push_back(v[v.size() / 2]);
  }
  return medians;
}

/// The rollout's options for the same engines.
MachineOptions machine_of(const ProfileOptions& options, const MachineFindings& found) {
  MachineOptions machine;
  machine.model = options.model;
  machine.weights = options.weights;
  machine.device = options.device;
  machine.tensor_parallel = options.tensor_parallel;
  machine.instances = options.instances;
  machine.threads_per_instance = options.threads > 0 ? options.threads : std::max<int64_t>(1, found.cores / options.instances);
  machine.kv_dtype = options.kv_dtype;
  return machine;
}

template <class... Args>
std::string formatted(const char* format, Args... args) {
  char line[160];
  std::snprintf(line, sizeof line, format, args...);
  return line;
}

}  // namespace

std::vector<GridPoint> profile_grid(const ProfileOptions& options, int64_t context_tokens_max) {
  const bool quick = options.quick;
  using List = std::vector<int64_t>;
  const List batches =
      up_to(quick ? List{1, 4, 16, 64, 256, 1024} : List{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
            options.rows_max);
  const List contexts =
      up_to(quick ? List{0, 512, 2048, 8192, 32768} : List{0, 256, 1024, 2048, 4096, 8192, 16384, 32768},
            options.context_max);
  const List widths = quick ? List{1, 4} : List{1, 2, 4, 8};
  const List pieces = quick ? List{64, 512} : List{32, 128, 512, 1024};

  std::vector<GridPoint> grid;
  const auto add = [&](const char* kind, std::vector<SequenceShape> sequences) {
    for (const SequenceShape& s : sequences)
      if (s.start + s.rows > context_tokens_max) return;
    grid.push_back({kind, std::move(sequences)});
  };
  const auto decode = [](int64_t batch, int64_t context, int64_t width) {
    const SequenceShape one{
        .start = context + kIntoBlock, .rows = static_cast<int32_t>(width), .sample_rows = static_cast<int32_t>(width)};
    return std::vector<SequenceShape>(static_cast<size_t>(batch), one);
  };
  for (const int64_t context : contexts) {
    for (const int64_t batch : batches)
      for (const int64_t width : widths) add(width == 1 ? "decode" : "verify", decode(batch, context, width));
    for (const int64_t piece : pieces)
      for (const int32_t sampled : {0, 1})
        add("prefill", {{.start = context, .rows = static_cast<int32_t>(piece), .sample_rows = sampled}});
  }
  for (const int64_t context : up_to(contexts, 2048))
    for (const int64_t batch : up_to({4, 32}, options.rows_max))
      for (const int64_t piece : pieces) {
        std::vector<SequenceShape> sequences = decode(batch, context, 1);
        sequences.push_back({.start = 0, .rows = static_cast<int32_t>(piece), .sample_rows = 0});
        add("mixed", std::move(sequences));
      }
  if (grid.empty()) grid.push_back({"decode", {SequenceShape{.start = 0, .rows = 1, .sample_rows = 1}}});
  return grid;
}

std::string profile_table(const StepProfile& profile) {
  std::string text = formatted("%-10s %8s %9s %14s %12s %16s %14s\n", "steps", "fitted", "held out", "median error",
                               "max error", "held out: median", "held out: max");
  for (const char* kind : {"decode", "verify", "prefill", "mixed", ""}) {
    const PredictionError in = prediction_error(profile, kind, false), out = prediction_error(profile, kind, true);
    text += formatted("%-10s %8ld %9ld %12.1f %% %10.1f %% %14.1f %% %12.1f %%\n", *kind ? kind : "all",
                      static_cast<long>(in.points), static_cast<long>(out.points), 100 * in.median, 100 * in.max,
                      100 * out.median, 100 * out.max);
  }
  text += "\n";
  for (size_t i = 0; i < kStepFeatures.size(); ++i)
    if (profile.cost.us[i] > 0) text += formatted("%14.4f us per %s\n", profile.cost.us[i], kStepFeatures[i].unit);
  return text;
}

Status profile_command(const ProfileOptions& options, const std::atomic<bool>& stop) {
  const MachineFindings machine = inspect_machine();
  const MachineOptions engines_of = machine_of(options, machine);
  SEER_RETURN_IF_ERROR(check_device(engines_of));
  SEER_ASSIGN_OR_RETURN(OutputWriter out, OutputWriter::open(options.out));
  SEER_RETURN_IF_ERROR(check_memory({demand_of_weights(options.model, options.weights)}, find_memory()));
  SEER_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, load_model(options.model, options.weights));
  const EngineSource source = engine_source(engines_of, model);
  const bool on_cpu = options.device == DeviceKind::kCpu;

  // Allocates only the KV that the grid needs; leaves out steps that need more than is allowed.
  int64_t kv_bytes = options.kv_bytes;
  if (kv_bytes == 0) kv_bytes = on_cpu ? machine.memory_free_bytes / (2 * options.instances) : std::numeric_limits<int64_t>::max();
  std::vector<GridPoint> grid = profile_grid(options, model->config.context_tokens_max);
  const size_t wanted = grid.size();
  std::erase_if(
      grid, [&](const GridPoint& p) { return blocks_of(p.sequences, source.block_tokens) > kv_bytes / source.block_bytes; });
  if (grid.empty())
    return fail(Code::kInvalidArgument, "--kv-bytes ", kv_bytes,
                ": expected room for a step; one KV block of this model needs ", source.block_bytes);
  if (grid.size() < wanted)
    std::cerr << cat("  ", wanted - grid.size(), " of ", wanted, " steps need more than ", kv_bytes,
                     " bytes of KV and are left out\n");
  int32_t device_blocks = 0;
  for (const GridPoint& p : grid)
    device_blocks = std::max(device_blocks, static_cast<int32_t>(blocks_of(p.sequences, source.block_tokens)));
  if (on_cpu)
    SEER_RETURN_IF_ERROR(check_memory({{cat("--kv-bytes ", kv_bytes, " for --instances ", options.instances),
                                        bytes_of(kv_bytes, options.instances),
                                        bytes_of(device_blocks * source.block_bytes, options.instances)}},
                                      find_memory()));

  std::vector<std::unique_ptr<Engine>> engines;
  for (int64_t i = 0; i < options.instances; ++i) {
    SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> made, source.make(InstanceId{static_cast<uint32_t>(i)}, device_blocks));
    engines.push_back(std::move(made));
  }
  StepRunner engine(std::move(engines.back()));
  engines.pop_back();
  engine.zero_blocks(device_blocks);
  std::vector<StepSequences> steps;
  for (const GridPoint& p : grid) steps.push_back(p.sequences);
  StepNeighbours neighbours(std::move(engines), std::move(steps));
  SEER_ASSIGN_OR_RETURN(const std::vector<double> measured_us, measure(engine, neighbours, grid, options.repeats, stop));

  StepProfile profile;
  profile.model = options.model;
  profile.processor = machine.processor;
  profile.cores = machine.cores;
  profile.memory_bytes = machine.memory_bytes;
  profile.isa = on_cpu ? cpu_kernels(CpuEngineConfig{}.isa)->name : kDeviceKindNames[static_cast<size_t>(options.device)];
  profile.weight_dtype = to_string(model->head.type());
  profile.kv_dtype = kKvTypeNames[static_cast<size_t>(options.kv_dtype)];
  profile.threads = source.threads;
  profile.block_tokens = source.block_tokens;
  for (size_t i = 0; i < grid.size(); ++i)
    profile.points.push_back({grid[i].kind, step_shape(grid[i].sequences), measured_us[i], false});
  hold_out_fifth(profile.points);
  profile.cost = fit_step_cost(profile.points);
  SEER_RETURN_IF_ERROR(out.append(step_profile_json(profile)));
  SEER_RETURN_IF_ERROR(out.finish());
  std::cout << profile_table(profile);
  return {};
}

}  // namespace seer
