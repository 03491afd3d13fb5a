// RolloutJournal: the state of a rollout on disk: tokens as they are committed and responses as they are finished. If the process
// dies, another one continues from there. Needs RocksDB. Used by `seer rollout --journal`. Single owner.
//
// Always true of a journal that is opened again:
//  (1) it belongs to the same work (model, weights, what ends responses, and groups); otherwise it is refused;
//  (2) a response is there once finish() has returned, even after SIGKILL; after a crash of the machine, once sync() has;
//  (3) the tokens of a request are those that were committed, from the first on, without a gap.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocols/chunk.h"
#include "protocols/result.h"

namespace seer {

/// What the rollout works on.
struct JournalWork {
  std::string model;             // its name
  uint64_t weights = 0;          // checksum, also of how they compute
  WeightVersion version;
  std::string endings;           // as in ClusterIdentity, like the next
  uint64_t tokenizer = 0;
  std::vector<uint64_t> groups;  // hash_group() of each
  SEER_FIELDS(JournalWork, model, weights, version, endings, tokenizer, groups)
};
/// Hash of all that decides the group's responses: prompt, sampling and seeds.
uint64_t hash_group(const GroupSpec& group);

/// Its ids are of rollout 0, whatever the id of the rollout that wrote them.
struct JournalContents {
  std::vector<Response> responses;     // in the order in which they were finished
  std::vector<CommittedTokens> parts;  // all tokens of each request without a response, by request
};

class RolloutJournal {
 public:
  /// Makes the folder if need be. Each error is one sentence that names it: kInvalidArgument (it has the journal of another rollout,
  /// that of an unfinished one without `may_resume`, or other files), kUnavailable (in use), kIo, kCorrupt.
  static Result<std::unique_ptr<RolloutJournal>> open(const std::string& dir, const JournalWork& work, bool may_resume);
  virtual ~RolloutJournal() = default;

  virtual Result<JournalContents> read() const = 0;
  virtual Status commit(const RolloutCommits& commits) = 0;
  virtual Status finish(const Response& response) = 0;
  virtual Status sync() = 0;
  /// The rollout is over and its output is safe: the folder is ready for another one.
  virtual Status clear() = 0;
};

}  // namespace seer
