// SglangServer: the HTTP interface of SGLang's servers, and of `seer serve`, which speaks it too.
//
//   POST /generate            input_ids, streamed. output_ids of an event are all so far, or with --incremental-streaming-output only
//                             the new ones; completion_tokens tells which
//   POST /abort_request       by rid
//   GET /server_info, /v1/loads   capacity and load (older servers: /get_server_info)
//   POST /update_weights_from_disk   with a weight_version, which all later answers carry
//
// Seeds: with --enable-deterministic-inference SGLang's noise depends on the seed and the position in the sequence, as Seer's does.
// So a request continues what another server began. Its seeds have 31 bits; larger ones are cut. Without that flag it ignores them.
//
// Extensions of `seer serve`: 64-bit seeds, `incremental` (events with new tokens only), `logprob_mode`, group_id.
#pragma once
#include "served/server_dialect.h"

namespace seer {

class SglangServer final : public ServerDialect {
 public:
  /// `must_be_seer`: other servers are refused.
  explicit SglangServer(bool must_be_seer) : must_be_seer_(must_be_seer), is_seer_(must_be_seer) {}
  HttpAsk generate(const ServedAsk& ask) const override;
  std::unique_ptr<AnswerReader> reader(const ServedAsk& ask) const override;
  std::optional<HttpAsk> abort(const std::string& rid) const override;
  std::vector<HttpAsk> look() const override;
  Result<ServerState> state(const std::vector<HttpAnswer>& answers) override;
  UpdateAsks update_weights(const std::string& folder, const std::string& label) const override;

 private:
  const bool must_be_seer_;
  bool is_seer_;  // as state() found out
};

}  // namespace seer
