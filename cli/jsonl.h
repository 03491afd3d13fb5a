// JSON Lines in and out: prompts, known response lengths, lines to score, and responses. Every error of a reader names
// the file and line (for malformed JSON the column too). Readers read the whole file, so that every error in it is found before
// the first token is made; PromptLines is for prompts that arrive one by one.
// Used by the commands. Pure except for reading the named file.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocols/ids.h"
#include "protocols/kept_ids.h"
#include "protocols/result.h"
#include "protocols/rollout.h"

namespace seer {

/// Values of fields that a prompt line leaves out.
struct PromptDefaults {
  int64_t samples = 1;
  SamplingParams sampling{};
};
/// A prompt line: {id?, prompt | prompt_ids | messages, n?, seed?, length_hint?, max_tokens?, temperature?, ...}. One of prompt, prompt_ids and
/// chat is not empty.
struct PromptLine {
  int64_t line = 0;              // in the file, from 1
  std::string id;                // as JSON (7 or "a7"); empty: none
  std::string prompt;            // text, to be tokenized
  std::vector<int32_t> prompt_ids;
  std::string chat;              // a conversation for ChatPrompts: {"messages":[...],"tools":[...]}
  int64_t samples = 1;           // its n, or the default
  SamplingParams sampling;       // the defaults, overridden by the line
  std::optional<uint64_t> seed;  // replaces the run seed for this group
  int64_t length_hint = 0;       // as in GroupSpec
  std::string carried;           // all other fields, copied to each response: "answer":12,"level":"easy"
};
/// Reads n and sampling from an object of their own, written as in a prompt line, over the values of `defaults`. Errors begin with `found`.
Status read_prompt_defaults(const std::string& text, const std::string& found, PromptDefaults& defaults);

/// Reads the first `limit` prompts (0: all). Skips blank lines; a null field counts as not given. Errors: a duplicate id, a field
/// that Seer writes in responses, and a field that changes sampling in other programs.
Result<std::vector<PromptLine>> read_prompts(const std::string& path, int64_t limit, const PromptDefaults& defaults = {});

/// Does the same, a line at a time.
class PromptLines {
 public:
  PromptLines(const std::string& path, const PromptDefaults& defaults);
  ~PromptLines();
  /// Returns nothing for a blank line. REQUIRES: lines come in order, and none after an error.
  Result<std::optional<PromptLine>> take(int64_t line, std::string text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Seed of a sample of a prompt, made from the line's seed and the sample; without a seed, from the run seed, the line's id and
/// the sample; with neither, from the run seed, the group (the prompt's number in its file) and the sample. So prompts with ids
/// or seeds may be reordered, added and removed.
uint64_t prompt_sample_seed(const PromptLine& line, uint64_t run_seed, uint32_t group, uint32_t sample);

/// Checks that the model can take these tokens: ids are in the vocabulary, the prompt is shorter than the context.
Status check_prompt(const std::string& path, int64_t line, std::span<const int32_t> prompt_ids, int32_t vocab_size,
                    int64_t context_tokens_max);

/// Does the same for a line to score, whose prompt and output together may fill the context.
struct ScoreLine;
Status check_score_line(const std::string& path, const ScoreLine& line, int32_t vocab_size, int64_t context_tokens_max);

/// Response lengths by group and sample, from lines {group, sample, tokens} or from responses. `group_sizes` has the number of
/// samples of each group. Lines of other groups and samples are skipped; a sample without a line is an error.
Result<std::vector<std::vector<int64_t>>> read_lengths(const std::string& path, std::span<const int64_t> group_sizes);

/// The beginning that a response shares with an earlier one of its group. They may also share KV blocks.
struct SharedBeginning {
  uint32_t sample = 0;  // of the earlier one
  int64_t tokens = 0;   // equal output tokens
  bool operator==(const SharedBeginning&) const = default;
};
/// Lengths of the requests of a group, in tokens.
struct GroupLengths {
  int64_t prompt_tokens = 0;
  std::vector<int64_t> output_tokens;     // by sample
  std::vector<SharedBeginning> shared{};  // by sample, the longest such beginning; empty if only lengths are known
  bool operator==(const GroupLengths&) const = default;
};

struct Trace {
  std::vector<GroupLengths> groups;
  int64_t left_out = 0;  // responses that failed or were aborted
};
/// The lengths of a run by group, and the beginnings that its responses share if their tokens are known. Reads responses as
/// `seer rollout --out` writes them or lines {group, sample, prompt_tokens, tokens}, in any order. Groups are numbered from 0
/// without a gap, and so are the samples of each group; all lines of a group have the same prompt length. Errors name the missing
/// response, or the line that does not fit.
Result<Trace> read_trace(const std::string& path);

/// A line to score: {prompt_ids, output_ids, ...}.
struct ScoreLine {
  int64_t line = 0;
  std::string text;  // the whole object as it was read
  std::vector<int32_t> prompt_ids, output_ids;
};
Result<std::vector<ScoreLine>> read_score_lines(const std::string& path);
/// The line as read, with "scores" added and a newline. With an `error`, scores are null and "score_error" says why (the name
/// "error" may be taken by the response).
std::string scored_line(const ScoreLine& line, std::span<const float> scores, std::string_view error = {});

/// A finished response. Its texts and lists belong to the caller.
struct ResponseLine {
  RequestId request;
  std::string_view id;       // PromptLine::id
  uint64_t seed = 0;
  std::span<const int32_t> prompt_ids, output_ids;
  std::span<const float> logprobs;  // one per output token, or none (LogprobMode::kNone)
  const KeptIds* kept_ids = nullptr;  // null: not asked for
  std::optional<std::string_view> text;
  FinishReason finish_reason = FinishReason::kNone;
  std::string_view error;    // with FinishReason::kError
  WeightVersion weight_version;
  std::string_view weight_version_name;  // empty: none
  int64_t chunks = 0, migrations = 0, preemptions = 0;
  double queue_s = 0, run_s = 0;
  std::string_view carried;  // PromptLine::carried
};
/// One line with its newline. Each log-probability reads back to the same float, also through a double; one that is not finite is
/// written as null.
std::string response_line(const ResponseLine& response);

}  // namespace seer
