// PastResponses: what earlier rollouts answered to the same prompts, for drafting: asked for as a rollout starts, kept as
// its groups are completed (--draft-history). A draft never changes a response, so a history may be old, cut or missing.
// Used by local_rollout on the caller's thread, which waits for the disk; no actor does.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocols/chunk.h"
#include "protocols/result.h"
#include "storage/response_history.h"

namespace seer {

class PastResponses {
 public:
  /// Opens the folder, or makes it. Errors: kUnavailable (this build has no RocksDB), and those of the folder.
  static Result<std::unique_ptr<PastResponses>> open(const std::string& dir, int32_t vocab_tokens,
                                                    std::span<const GroupSpec> groups);

  /// Of each group that has any, about tokens_max tokens, newest first.
  std::vector<CstPast> recall(int64_t tokens_max);
  /// Stores the responses to a prompt once the last of them is here, without those that failed.
  void keep(const Response& response);
  /// Groups whose responses could not be stored.
  int64_t failed_groups() const { return failed_groups_; }

 private:
  struct Prompt {
    PrefixHash hash;
    int64_t groups = 0;  // with this prompt: they are stored together, since a later put would replace an earlier one
    int64_t open = 0;    // requests of theirs that are not over
    std::vector<std::vector<int32_t>> responses;  // so far
  };
  std::unique_ptr<ResponseHistory> store_;
  std::vector<Prompt> prompts_;
  std::vector<size_t> prompt_of_;  // by group, its index in prompts_
  uint64_t iteration_ = 0;
  int64_t failed_groups_ = 0;
};

}  // namespace seer
