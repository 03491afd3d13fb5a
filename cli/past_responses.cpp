#include "cli/past_responses.h"

#include <chrono>
#include <future>
#include <map>
#include <utility>

#ifdef SEER_HAVE_ROCKSDB
#include "storage/rocksdb_response_history.h"
#endif

namespace seer {

Result<std::unique_ptr<PastResponses>> PastResponses::open(const std::string& dir, [[maybe_unused]] int32_t vocab_tokens,
                                                         [[maybe_unused]] std::span<const GroupSpec> groups) {
#ifdef SEER_HAVE_ROCKSDB
  auto history = std::make_unique<PastResponses>();
  SEER_ASSIGN_OR_RETURN(history->store_, open_rocksdb_response_history({.dir = dir, .vocab_tokens = vocab_tokens}));
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  // In microseconds, so that it also rises between rollouts of the same second: a put of an equal iteration would replace the
  // earlier one.
  history->iteration_ = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  std::map<PrefixHash, size_t> index_of;
  for (const GroupSpec& group : groups) {
    const PrefixHash hash = extend_prefix({}, group.prompt_ids);
    const auto [known, is_new] = index_of.emplace(hash, history->prompts_.size());
    if (is_new) history->prompts_.push_back({.hash = hash, .responses = {}});
    Prompt& prompt = history->prompts_[known->second];
    ++prompt.groups;
    prompt.open += group.samples;
    history->prompt_of_.push_back(known->second);
  }
  return history;
#else
  return fail(Code::kUnavailable, "--draft-history ", dir,
              " needs RocksDB, but this build was made without it: apt-get install librocksdb-dev, and build again");
#endif
}

std::vector<CstPast> PastResponses::recall(int64_t tokens_max) {
  std::vector<CstPast> pasts;
  for (uint32_t g = 0; g < prompt_of_.size(); ++g) {
    using Found = Result<std::vector<PastResponse>>;
    std::promise<Found> promise;
    const Status asked =
        store_->get(prompts_[prompt_of_[g]].hash, tokens_max, [&](Found found) { promise.set_value(std::move(found)); });
    if (!asked.ok()) continue;
    Found found = promise.get_future().get();
    if (!found.ok() || found->empty()) continue;
    CstPast& past = pasts.emplace_back(CstPast{GroupId{g}, {}});
    for (PastResponse& response : *found) past.responses.push_back(std::move(response.tokens));
  }
  return pasts;
}

void PastResponses::keep(const Response& response) {
  Prompt& prompt = prompts_[prompt_of_[response.request.group.index]];
  if (response.finish != FinishReason::kError) prompt.responses.push_back(response.output.ids);
  if (--prompt.open > 0 || prompt.responses.empty()) return;
  std::promise<Status> promise;
  const Status asked = store_->put(prompt.hash, iteration_, std::exchange(prompt.responses, {}),
                                   [&](Status stored) { promise.set_value(std::move(stored)); });
  if (!asked.ok() || !promise.get_future().get().ok()) failed_groups_ += prompt.groups;
}

}  // namespace seer
