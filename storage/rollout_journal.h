// RolloutJournal: what a rollout has so far, on disk: tokens as they are committed and responses as they are finished. After the
// process died, another one goes on from there. Needs RocksDB. Used by `seer rollout --journal`. Single owner.
//
// Always true of a journal that is opened again:
//  (1) it is of the same work: model, weights and groups, else it is refused;
//  (2) a response is there once finish() has returned, also after SIGKILL; after a crash of the machine, once sync() has;
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
  uint64_t weights = 0;          // checksum
  WeightVersion version;
  std::vector<uint64_t> groups;  // of each: hash_group()
  SEER_FIELDS(JournalWork, model, weights, version, groups)
};
/// Of all that decides its responses: prompt, sampling and seeds.
uint64_t hash_group(const GroupSpec& group);

/// Of rollout 0, whatever the id of the one that wrote.
struct JournalContents {
  std::vector<Response> responses;     // in the order in which they were finished
  std::vector<CommittedTokens> parts;  // of each request without a response, all of its tokens; by request
};

class RolloutJournal {
 public:
  /// Makes the folder if need be. Errors, of one sentence that names it: kInvalidArgument (the journal of another rollout, or of one
  /// that is not over, without `may_resume`; a folder of others), kUnavailable (in use), kIo, kCorrupt.
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
