// ResponseHistory: the seam to what earlier iterations answered to a prompt, for drafting where prompts come again.
// Used by whoever registers groups with the draft trees: it asks for a group's history when the group begins and stores
// the group's responses when it ends. A draft never changes a response, so history may be missing, cut or old.
//
// Operations are queued and run in order on a thread of the history: a get sees every put before it. `done` runs on that
// thread and must only hand the result over. At most `queue_max` operations are open: beyond that they answer kFull at
// once. Thread-safe.
//
// Bounds: of each response its first response_tokens_max tokens are kept; of each prompt its newest responses_max
// responses (by iteration, then in the order of their put); in all bytes_max bytes, beyond which the prompts go whole
// whose last put came longest ago.
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
  /// Stores what an iteration answered to a prompt (extend_prefix() of its tokens); what the same iteration had stored
  /// for this prompt before is replaced. `done` may be empty. REQUIRES: tokens are not negative.
  virtual Status put(PrefixHash prompt, uint64_t iteration, std::vector<std::vector<int32_t>> responses,
                     PutDone done) = 0;
  /// The responses kept for the prompt, newest iteration first, until they have tokens_max tokens; the last may be cut.
  /// None is an answer, not an error.
  virtual Status get(PrefixHash prompt, int64_t tokens_max, GetDone done) = 0;
  virtual ResponseHistoryStats stats() const = 0;
};

}  // namespace seer
