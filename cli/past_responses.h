// PastResponses: responses of earlier rollouts to the same prompts, to make drafts from (--draft-history). They are read when a
// rollout starts; its own responses to a prompt are stored when the last of them has come. A draft never changes a response, so a
// history may be old, cut or missing.
// Used by rollout_run on the caller's thread, which may wait for the disk; actors may not.
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

  /// For each group with past responses: the newest, up to tokens_max tokens.
  std::vector<CstPast> recall(int64_t tokens_max);
  /// Adds a response. With the last response to a prompt, stores all of them that did not fail.
  void keep(const Response& response);
  /// Groups whose responses could not be stored.
  int64_t failed_groups() const { return failed_groups_; }

 private:
  struct Prompt {
    PrefixHash hash;
    int64_t groups = 0;  // groups with this prompt; stored together, because a later put would replace an earlier one
    int64_t open = 0;    // their requests without a response yet
    std::vector<std::vector<int32_t>> responses;  // so far
  };
  std::unique_ptr<ResponseHistory> store_;
  std::vector<Prompt> prompts_;
  std::vector<size_t> prompt_of_;  // by group, its index in prompts_
  uint64_t iteration_ = 0;
  int64_t failed_groups_ = 0;
};

}  // namespace seer
