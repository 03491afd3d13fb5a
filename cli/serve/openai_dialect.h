// The HTTP interface of OpenAI: models, completions and chat completions, with vLLM's additions that trainers use (token ids in and
// out, return_token_ids, return_tokens_as_token_ids, stop_token_ids, ignore_eos) and Seer's (group_id, group_size, priority, and
// weight_version in each choice). Errors have OpenAI's shape.
//
// A choice's log-probabilities are those of its own tokens; other candidates have none, so top_logprobs above 0 are refused, as is
// all that would change the tokens and that Seer does not do.
#pragma once
#include <memory>
#include <string>

#include "cli/chat_prompts.h"
#include "cli/serve/front.h"

namespace seer {

class OpenaiDialect {
 public:
  /// `chat`: null: the model has no chat template.
  OpenaiDialect(Front& front, std::shared_ptr<const ChatPrompts> chat);
  /// False: the path is not of this dialect.
  bool handle(HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
  using Reply = std::shared_ptr<HttpReply>;
  void models(const HttpRequest& request, const Reply& reply);
  void complete(HttpRequest& request, bool is_chat, const Reply& reply);

  Front& front_;
  const std::shared_ptr<const ChatPrompts> chat_;
  const int64_t created_s_;  // when the model was loaded, in Unix time
  uint64_t last_id_ = 0;
};

}  // namespace seer
