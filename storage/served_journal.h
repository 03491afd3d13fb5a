// ServedJournal: the rollouts that clients of `seer serve` have open, on disk: what they asked for, tokens as they are committed, and
// responses until they are acknowledged. After the process died, another one goes on from there. Needs RocksDB. Used by RolloutsJournal.
// Single owner, but for sync().
//
// Always true of a journal that is opened again:
//  (1) what a call wrote is there once it has returned, also after SIGKILL; after a crash of the machine, once sync() has;
//  (2) a request has its response or the tokens that were committed, from the first on, without a gap;
//  (3) these tokens were made with the weights of the mark.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocols/chunk.h"
#include "protocols/result.h"

namespace seer {

/// What the process serves. Tokens go on only with the weights that made them, and where the same ends responses.
struct ServedModelMark {
  std::string model;      // its name
  uint64_t weights = 0;   // checksum
  WeightVersion version;  // of these weights
  std::string endings;    // as in ClusterIdentity, like the next
  uint64_t tokenizer = 0;
  SEER_FIELDS(ServedModelMark, model, weights, version, endings, tokenizer)
  bool operator==(const ServedModelMark&) const = default;
};

/// Ends a rollout before all of its responses are complete. A field of 0 does nothing. The other responses are given with the tokens
/// they have, and no more groups are taken. A response that was cut short or failed does not count as complete.
struct ServedStop {
  uint32_t groups = 0;     // ends when this many groups are complete
  uint64_t samples = 0;    // ends when this many responses are complete
  int64_t deadline_s = 0;  // ends this long after it came; after a restart the time counts anew
  SEER_FIELDS(ServedStop, groups, samples, deadline_s)
};

/// A rollout, but for its groups and responses.
struct ServedHead {
  uint64_t number = 0;        // its own among the rollouts that are kept
  std::string id;             // the client's name for it
  uint64_t request = 0;       // hash of what the client sent to make it
  uint64_t seed = 0;          // of groups that bring none
  int64_t samples = 0;        // of groups that do not say; so is the next one
  SamplingParams sampling;
  int32_t priority = 0;
  bool is_open = false;       // groups may be added
  uint64_t acknowledged = 0;  // responses up to this one are forgotten
  ServedStop stop;
  bool streams_groups = false;  // the responses of a group come together, as one line
  std::string expected_label;      // what clients call the weights that are to make the responses; empty: any may
  WeightVersion expected_version;  // their number when the rollout came
  SEER_FIELDS(ServedHead, number, id, request, seed, samples, sampling, priority, is_open, acknowledged, stop, streams_groups, expected_label,
              expected_version)
};

/// A group as it runs.
struct ServedGroup {
  std::string id;       // PromptLine::id
  std::string carried;  // PromptLine::carried
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  std::vector<uint64_t> seeds;  // by sample
  int64_t length_hint = 0;      // PromptLine::length_hint
  SEER_FIELDS(ServedGroup, id, carried, prompt_ids, sampling, seeds, length_hint)
};

/// A response that was given.
struct ServedResponse {
  uint64_t seq = 0;  // in its rollout, from 1
  uint32_t group = 0, sample = 0;
  FinishReason finish = FinishReason::kNone;
  int64_t output_tokens = 0;
  WeightVersion version;
  std::string line;  // as it is sent; empty once it was acknowledged, or where the line of a later one has it too
  SEER_FIELDS(ServedResponse, seq, group, sample, finish, output_tokens, version, line)
};

struct ServedContents {
  struct Rollout {
    ServedHead head;
    std::vector<ServedGroup> groups;
    std::vector<ServedResponse> responses;  // by seq
    std::vector<CommittedTokens> begun;     // all tokens that each request has; one that has a response may have some, too
  };
  std::vector<Rollout> rollouts;  // by number
  bool has_same_weights = false;  // its mark was that of now, with a checksum
};

class ServedJournal {
 public:
  /// Makes the folder if need be. Errors, of one sentence that names it: kInvalidArgument (another model's; a folder of others),
  /// kUnavailable (in use, or this build has no RocksDB), kIo, kCorrupt.
  static Result<std::unique_ptr<ServedJournal>> open(const std::string& dir, const ServedModelMark& mark);
  virtual ~ServedJournal() = default;

  virtual Result<ServedContents> read() const = 0;
  /// Weights of a larger version are served now. What was committed with those before is dropped.
  virtual Status set_mark(const ServedModelMark& mark) = 0;
  /// Adds the rollout, or replaces its head.
  virtual Status put(const ServedHead& head) = 0;
  /// A rollout and groups for it; the first of them has this index. Drops what a call that failed may have left after them.
  virtual Status add(const ServedHead& head, uint32_t first, const std::vector<ServedGroup>& groups) = 0;
  /// Tokens of later weights than the mark's count once it is set to these; those of earlier ones are dropped.
  virtual Status commit(uint64_t rollout, const CommittedTokens& part, WeightVersion version) = 0;
  /// Responses that are given together: all of them are there, or none.
  virtual Status finish(uint64_t rollout, const std::vector<ServedResponse>& responses) = 0;
  /// The responses were acknowledged. Their lines are not needed any more.
  virtual Status acknowledge(const ServedHead& head, const std::vector<ServedResponse>& responses) = 0;
  virtual Status forget(uint64_t rollout) = 0;
  /// After a call failed: makes it possible that later ones work. What was written is there, and the call that failed may have left some
  /// of its own. Errors: as of open(). Then all calls fail until one of this works.
  virtual Status reopen() = 0;
  /// Thread-safe.
  virtual Status sync() = 0;
};

}  // namespace seer
