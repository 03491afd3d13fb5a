// `seer score`: runs each response of the file through one prefill, which scores its tokens instead of sampling. The engine is the
// same as in a rollout, so the scores are the rollout's log-probabilities, bit for bit.
#include <algorithm>
#include <thread>

#include "cli/engine_source.h"
#include "cli/jsonl.h"
#include "cli/kv_size.h"
#include "cli/machine_memory.h"
#include "cli/output_writer.h"
#include "cli/rollout_command.h"
#include "gpu/step_runner.h"

namespace seer {
namespace {

constexpr size_t kScoreRowsMax = 512;  // rows of one step

struct Scores {
  std::vector<float> of_tokens;
  std::string error;  // not empty: why there are none
};

/// The rollout's options for the same engine.
MachineOptions machine_of(const ScoreOptions& options) {
  MachineOptions machine;
  machine.model = options.model;
  machine.weights = options.weights;
  machine.device = options.device;
  machine.tensor_parallel = options.tensor_parallel;
  machine.instances = 1;
  machine.threads_per_instance = options.threads > 0 ? options.threads : find_cpus();
  machine.kv_bytes = options.kv_bytes;
  machine.kv_dtype = options.kv_dtype;
  return machine;
}

/// Scores one response. Row i predicts token i + 1. Errors: the engine's.
Result<Scores> score(StepRunner& engine, const ScoreLine& line, std::shared_ptr<const SamplingParams> params) {
  std::vector<int32_t> tokens = line.prompt_ids;
  tokens.insert(tokens.end(), line.output_ids.begin(), line.output_ids.end());
  const size_t prompt = line.prompt_ids.size(), rows = tokens.size() - 1;  // the last token predicts nothing here
  std::vector<DeviceBlockId> blocks((rows + engine.info().block_tokens - 1) / engine.info().block_tokens);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<DeviceBlockId>(i);
  Scores scores;
  if (line.output_ids.empty()) return scores;
  for (size_t at = 0; at < rows; at += kScoreRowsMax) {
    const size_t end = std::min(rows, at + kScoreRowsMax);
    const size_t first_scored = std::clamp(prompt - 1, at, end);
    SequenceStep step{.start = static_cast<int64_t>(at),
                      .tokens = {tokens.begin() + static_cast<ptrdiff_t>(at), tokens.begin() + static_cast<ptrdiff_t>(end)},
                      .blocks = blocks,
                      .sample_rows = static_cast<int32_t>(end - first_scored),
                      .seed = 0,
                      .sampling = params,
                      .history = {},
                      .targets = {tokens.begin() + static_cast<ptrdiff_t>(first_scored) + 1,
                                  tokens.begin() + static_cast<ptrdiff_t>(end) + 1}};
    StepBatch batch{.id = at, .sequences = {}};
    batch.sequences.push_back(std::move(step));
    const StepResult result = engine.run(std::move(batch));
    SEER_RETURN_IF_ERROR(result.status);
    for (const SampledToken& token : result.sampled[0]) {
      if (token.token == kNotFinite) return Scores{{}, not_finite_text(std::ssize(scores.of_tokens))};
      scores.of_tokens.push_back(token.logprob);
    }
  }
  return scores;
}

/// Checks that the model can take the line and the KV cache can hold it.
Status check_line(const ScoreOptions& options, const ScoreLine& line, const EngineInfo& engine) {
  SEER_RETURN_IF_ERROR(check_score_line(options.in, line, engine.vocab_size, engine.context_tokens_max));
  const int64_t kv_tokens = std::ssize(line.prompt_ids) + std::ssize(line.output_ids) - 1;
  const int64_t kv_tokens_max = int64_t{engine.device_blocks} * engine.block_tokens;
  if (kv_tokens <= kv_tokens_max) return {};
  return fail(Code::kInvalidArgument, options.in, ":", line.line, ": the prompt has ", line.prompt_ids.size(),
              " tokens and the output ", line.output_ids.size(), ", all but the last need KV, and --kv-bytes ",
              options.kv_bytes, " has room for ", kv_tokens_max, ": the least that works is ",
              (kv_tokens + engine.block_tokens - 1) / engine.block_tokens * engine.block_bytes);
}

}  // namespace

Status score_command(const ScoreOptions& options, const std::atomic<bool>& stop) {
  SEER_RETURN_IF_ERROR(check_two_files("--out", options.out, "--in", options.in));
  const MachineOptions machine = machine_of(options);
  SEER_RETURN_IF_ERROR(check_device(machine));
  SEER_ASSIGN_OR_RETURN(OutputWriter out, OutputWriter::open(options.out));
  SEER_ASSIGN_OR_RETURN(const std::vector<ScoreLine> lines, read_score_lines(options.in));
  SEER_RETURN_IF_ERROR(check_memory({demand_of_weights(options.model, options.weights)}, find_memory()));
  SEER_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, load_model(options.model, options.weights));
  // Lines are scored one after another, in the same blocks.
  size_t longest = 0;
  for (const ScoreLine& line : lines) longest = std::max(longest, line.prompt_ids.size() + line.output_ids.size());
  const EngineSource source = engine_source(machine, model);
  const int64_t longest_bytes = bytes_of(static_cast<int64_t>(longest / source.block_tokens + 1), source.block_bytes);
  if (options.device == DeviceKind::kCpu)
    SEER_RETURN_IF_ERROR(check_memory(
        {{cat("--kv-bytes ", options.kv_bytes), options.kv_bytes, std::min(options.kv_bytes, longest_bytes)}}, find_memory()));
  SEER_RETURN_IF_ERROR(check_kv_bytes(options.kv_bytes, source.block_bytes, source.block_tokens));
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, source.make(InstanceId{0}, 0));
  StepRunner runner(std::move(engine));
  SamplingParams sampling;
  sampling.temperature = options.temperature;
  sampling.logprob_mode = options.logprob_mode;
  const auto params = std::make_shared<const SamplingParams>(std::move(sampling));
  for (const ScoreLine& line : lines) SEER_RETURN_IF_ERROR(check_line(options, line, runner.info()));
  int64_t failed = 0;
  std::string first_failure;
  for (const ScoreLine& line : lines) {
    if (stop.load()) return fail(Code::kCancelled, "stopped on request");
    SEER_ASSIGN_OR_RETURN(const Scores scores, score(runner, line, params));
    if (!scores.error.empty() && failed++ == 0) first_failure = cat(options.in, ":", line.line, ": ", scores.error);
    SEER_RETURN_IF_ERROR(out.append(scored_line(line, scores.of_tokens, scores.error)));
  }
  SEER_RETURN_IF_ERROR(out.finish());
  if (failed == 0) return {};
  return fail(Code::kUnavailable, failed, " of ", lines.size(), " lines have no scores, the first of them ", first_failure);
}

}  // namespace seer
