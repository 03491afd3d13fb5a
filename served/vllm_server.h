// VllmServer: the HTTP interface of vLLM's servers.
//
//   POST /inference/v1/generate   token ids in and out, where the server has it; else
//   POST /v1/completions          with a list of token ids as prompt and return_token_ids
//   GET /v1/models, /version, /metrics   model, version, capacity and load
//   with VLLM_SERVER_DEV_MODE=1:  POST /pause, /collective_rpc (reload_weights), /update_weight_version, /resume; GET /weight_info
//
// Events have the new tokens only. /inference/v1/generate sends none for an end without a token, so a stream may close with no reason:
// that counts as failed, and the request goes on from the tokens it has. Closing the connection ends a request.
//
// Seeds: a server draws a response's noise from a generator that starts anew with each request. So a request that continues a response
// gets a seed made from the response's seed and its position; otherwise it would repeat the noise of the first ask.
#pragma once
#include "served/server_dialect.h"

namespace seer {

class VllmServer final : public ServerDialect {
 public:
  HttpAsk generate(const ServedAsk& ask) const override;
  std::unique_ptr<AnswerReader> reader(const ServedAsk& ask) const override;
  std::optional<HttpAsk> abort(const std::string& rid) const override;
  std::vector<HttpAsk> look() const override;
  Result<ServerState> state(const std::vector<HttpAnswer>& answers) override;
  UpdateAsks update_weights(const std::string& folder, const std::string& label) const override;

 private:
  // What state() found out.
  bool has_generate_ = false;  // the server has /inference/v1/generate
  std::string model_;
};

}  // namespace seer
