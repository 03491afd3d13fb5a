// `seer score`: every response of the file is one prefill whose rows are scored instead of sampled. The engine is the same
// as in a rollout, so that the scores are the log-probabilities of the rollout, bit for bit.
#include <algorithm>
#include <thread>

#include "cli/jsonl.h"
#include "cli/output_writer.h"
#include "cli/rollout_command.h"
#include "cli/engine_types.h"
#include "gpu/cpu_engine.h"
#include "gpu/step_runner.h"

namespace seer {
namespace {

constexpr size_t kScoreRowsMax = 512;  // rows of one step

/// Scores of one response: row i of the prefix predicts token i + 1.
std::vector<float> score(StepRunner& engine, const ScoreLine& line, std::shared_ptr<const SamplingParams> params) {
  std::vector<int32_t> tokens = line.prompt_ids;
  tokens.insert(tokens.end(), line.output_ids.begin(), line.output_ids.end());
  const size_t prompt = line.prompt_ids.size(), rows = tokens.size() - 1;  // the last token predicts nothing here
  std::vector<DeviceBlockId> blocks((rows + engine.info().block_tokens - 1) / engine.info().block_tokens);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<DeviceBlockId>(i);
  std::vector<float> scores;
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
    for (const SampledToken& token : result.sampled[0]) scores.push_back(token.logprob);
  }
  return scores;
}

}  // namespace

Status score_command(const ScoreOptions& options, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(OutputWriter out, OutputWriter::open(options.out));
  SEER_ASSIGN_OR_RETURN(const std::vector<ScoreLine> lines, read_score_lines(options.in));
  SEER_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> model, load_model(options.model, weight_type_of(options.weights)));
  const auto threads = options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                        make_cpu_engine(model, {.threads = static_cast<int32_t>(threads),
                                                .kv_bytes = options.kv_bytes,
                                                .kv_type = kv_type_of(options.kv_dtype)}));
  StepRunner runner(std::move(engine));
  SamplingParams sampling;
  sampling.temperature = options.temperature;
  sampling.logprob_mode = options.logprob_mode;
  const auto params = std::make_shared<const SamplingParams>(std::move(sampling));
  const int64_t kv_tokens_max = int64_t{runner.info().device_blocks} * runner.info().block_tokens;
  for (const ScoreLine& line : lines) {
    std::vector<int32_t> tokens = line.prompt_ids;
    tokens.insert(tokens.end(), line.output_ids.begin(), line.output_ids.end());
    SEER_RETURN_IF_ERROR(check_prompt(options.in, line.line, tokens, model->config.vocab_size,
                                      model->config.context_tokens_max + 1));
    const auto kv_tokens = static_cast<int64_t>(tokens.size()) - 1;
    if (kv_tokens > kv_tokens_max)
      return fail(Code::kInvalidArgument, options.in, ":", line.line, ": ", kv_tokens, " tokens need KV, and --kv-bytes ",
                  options.kv_bytes, " has room for ", kv_tokens_max, ": the least that works is ",
                  (kv_tokens + runner.info().block_tokens - 1) / runner.info().block_tokens * runner.info().block_bytes);
    if (stop.load()) return fail(Code::kCancelled, "stopped on request");
    SEER_RETURN_IF_ERROR(out.append(scored_line(line, score(runner, line, params))));
  }
  return out.finish();
}

}  // namespace seer
