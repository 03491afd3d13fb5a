// Rollout: what is asked for (groups of requests), how tokens are sampled, and how a request travels as chunks.
// Plain data. Lengths are in tokens; times in microseconds of the actor clock.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "protocols/ids.h"

namespace seer {

/// Which log-probability comes with a sampled token. Processed: log-softmax(logits / temperature), what a trainer
/// that divides its logits by the temperature computes. Raw: log-softmax(logits). Penalties and the top-k/top-p/min-p
/// cut never enter it. At temperature 0 both are raw. None: the response comes without log-probabilities.
/// Kept: log-softmax(logits / temperature) over the ids that the cut left, which come with each token (KeptIds). At temperature 0
/// only the token itself is left.
enum class LogprobMode : uint8_t { kProcessed = 0, kRaw = 1, kNone = 2, kKept = 3 };

struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy (lowest id wins a tie)
  float top_p = 1.0f;               // (0, 1]; 1: off
  int32_t top_k = 0;                // 0: off
  float min_p = 0.0f;               // [0, 1); 0: off
  float repetition_penalty = 1.0f;  // > 0; 1: off. Over prompt and output, as in Hugging Face
  int64_t max_tokens = 1024;        // output tokens at most, the stop token included
  int64_t min_tokens = 0;           // output tokens before an EOS or stop token, at least; 0: off. A stop string ends it earlier
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop;    // stop strings; needs a tokenizer. The match stays in the output
  bool ignore_eos = false;
  LogprobMode logprob_mode = LogprobMode::kProcessed;
  bool operator==(const SamplingParams&) const = default;
  SEER_FIELDS(SamplingParams, temperature, top_p, top_k, min_p, repetition_penalty, max_tokens, min_tokens, stop_token_ids, stop,
              ignore_eos, logprob_mode)
};

/// A prompt and how many responses it wants.
struct GroupSpec {
  GroupId id;
  std::vector<int32_t> prompt_ids;   // not empty
  uint32_t samples = 0;              // group size
  SamplingParams sampling;
  std::vector<uint64_t> seeds;       // one per sample: hash of (run seed, group, sample)
  std::vector<int64_t> known_tokens; // response lengths known beforehand, one per sample, for the `oracle` policy; or empty
  int32_t priority = 0;              // groups of higher priority are served first, whatever the policy's own order
  std::vector<int64_t> generated_tokens = {};  // how many tokens each response has already, one per sample; or empty
  bool streams = false;              // report its tokens as they are added to the token log (RolloutCommits)
  bool is_live = false;              // somebody reads them as they come, so instances report them more often
  int64_t length_hint = 0;           // tokens that a response is expected to have, until one has ended; 0: max_tokens. Changes only the order
  SEER_FIELDS(GroupSpec, id, prompt_ids, samples, sampling, seeds, known_tokens, priority, generated_tokens,
              streams, is_live, length_hint)
};

enum class FinishReason : uint8_t { kNone = 0, kStop, kLength, kAborted, kError };
constexpr const char* to_string(FinishReason r) {
  switch (r) {
    case FinishReason::kNone: return "none";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAborted: return "abort";
    case FinishReason::kError: return "error";
  }
  return "unknown";
}

/// How a request ended.
struct Ending {
  FinishReason reason = FinishReason::kNone;
  std::string matched;  // kStop: the stop string or token id that ended it
  std::string error;    // kError: why, in one sentence
  SEER_FIELDS(Ending, reason, matched, error)

  static Ending failed(std::string why) { return {FinishReason::kError, {}, std::move(why)}; }
  static Ending aborted() { return {FinishReason::kAborted, {}, {}}; }
};

/// Why a chunk gave up its instance. With the first three the request has ended.
enum class ChunkEnd : uint8_t {
  kFinished = 0,  // the response is complete
  kFailed,        // the request ended with an error of its own: its length says nothing about its group
  kAborted,       // the request was cancelled: it ends with the tokens that it has
  kChunkFull,     // chunk_tokens were generated
  kYielded,       // KV ran short or the instance leaves: its KV went to the pool, if there is one
  kPreempted,     // KV ran short or the instance leaves: its KV was dropped and must be recomputed
  kNotBegun,      // the instance leaves, or has other weights than asked for, or gets them now
  kServerFailed,  // the server that ran it failed
  kLost,          // its instance died or fell silent: what it had reported is kept, its KV is not
};

constexpr bool is_over(ChunkEnd end) { return end <= ChunkEnd::kAborted; }
/// REQUIRES: the request has ended, reason != kNone.
constexpr ChunkEnd end_of(FinishReason reason) {
  if (reason == FinishReason::kError) return ChunkEnd::kFailed;
  return reason == FinishReason::kAborted ? ChunkEnd::kAborted : ChunkEnd::kFinished;
}

}  // namespace seer
