// ResponseHistory: the seam to the responses of earlier iterations, for drafting when prompts repeat.
// Used by whoever registers groups with the draft trees: it asks for a group's history when the group begins and stores
// the group's responses when it ends. A draft never changes a response, so history may be missing, cut or old.
//
// Operations are queued and run in order on a thread of the history: a get sees every put before it. `done` runs on that
// thread and must only hand the result over. At most `queue_max` operations are open: beyond that they answer kFull at
// once. Thread-safe.
//
// Bounds: it keeps the first response_tokens_max tokens of a response, the newest responses_max responses of a prompt (by
// iteration, then in the order of their put), and bytes_max bytes in all. Beyond that it drops whole prompts, the one with
// the oldest last put first.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "protocols/kv.h"
#include "protocols/result.h"

namespace seer {

struct PastResponse {
  uint64_t iteration = 0;
  std::vector<int32_t> tokens;
};

struct ResponseHistoryStats {
  int64_t prompts = 0, used_bytes = 0;  // kept now; bytes of records, before compression
  int64_t put_tokens = 0, got_tokens = 0;
  int64_t dropped_prompts = 0;  // to stay below bytes_max
  int64_t skipped_records = 0;  // corrupt, of another format or of another vocabulary: left out of answers
  int64_t failed_puts = 0;      // the disk or the database refused
  int64_t refused = 0;          // operations beyond queue_max
};

class ResponseHistory {
 public:
  using PutDone = std::function<void(Status)>;
  using GetDone = std::function<void(Result<std::vector<PastResponse>>)>;

  virtual ~ResponseHistory() = default;
  /// Stores the responses of an iteration to a prompt (named by extend_prefix() of its tokens). They replace what the same
  /// iteration stored for this prompt before. `done` may be empty. REQUIRES: tokens are not negative.
  virtual Status put(PrefixHash prompt, uint64_t iteration, std::vector<std::vector<int32_t>> responses,
                     PutDone done) = 0;
  /// The responses kept for the prompt, newest iteration first, up to tokens_max tokens; the last may be cut. Having none is
  /// not an error.
  virtual Status get(PrefixHash prompt, int64_t tokens_max, GetDone done) = 0;
  virtual ResponseHistoryStats stats() const = 0;
};

}  // namespace seer
