// What the server does with every call of a trainer that sends weights over a communication group of its own (served/weights_group.h),
// whoever takes part in the group. Used by RouterDialect and WeightsReceiver, on the HTTP server's thread.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "cli/serve/front.h"
#include "cli/serve/http_server.h"
#include "served/weights_group.h"

namespace seer {

/// As SGLang and vLLM answer the calls of a trainer.
void answer_trainer(const std::shared_ptr<HttpReply>& reply, bool success, const std::string& message);
/// Reads its body into the call. Errors: kInvalidArgument.
Status read_group_call(GroupCall& call, const HttpRequest& request);
/// Whether generation is paused, and with `is_idle` whether nothing runs either. `then` gets what is wrong, on the server's thread.
void check_paused(Front& front, const std::string& path, bool is_idle, std::function<void(Status)> then);
/// Ends the pause, and tells the trainer.
void continue_generation(Front& front, const std::shared_ptr<HttpReply>& reply, const std::string& message);

}  // namespace seer
