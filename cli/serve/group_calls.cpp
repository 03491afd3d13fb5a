#include "cli/serve/group_calls.h"

#include <utility>

#include "cli/json_fields.h"
#include "cli/serve/request_fields.h"

namespace seer {

void answer_trainer(const std::shared_ptr<HttpReply>& reply, bool success, const std::string& message) {
  reply->send(success ? 200 : 400, json_text({{"success", success}, {"message", message}}));
}

Status read_group_call(GroupCall& call, const HttpRequest& request) {
  SEER_RETURN_IF_ERROR(check_shape(request.body, call.path + ": "));
  SEER_RETURN_IF_ERROR(read_group_body(call, request.body));
  if (!names_version(call)) return {};
  SEER_ASSIGN_OR_RETURN(const Json body, read_object(request.body));
  return check_spelling(body, {"weight_version"});
}

void check_paused(Front& front, const std::string& path, bool is_idle, std::function<void(Status)> then) {
  front.ask([](GatewayActor& gateway) { return gateway.loads(); },
            [path, is_idle, then = std::move(then)](const GatewayLoads& now) {
              if (!now.is_paused) return then(fail(Code::kInvalidArgument, path, ": generation is not paused: expected /pause_generation before"));
              if (is_idle && now.running > 0) return then(fail(Code::kInvalidArgument, path, ": ", now.running, " responses run: expected none"));
              then({});
            });
}

void continue_generation(Front& front, const std::shared_ptr<HttpReply>& reply, const std::string& message) {
  front.ask([](GatewayActor& gateway) { return gateway.go_on(), 0; }, [reply, message](int) { answer_trainer(reply, true, message); });
}

}  // namespace seer
