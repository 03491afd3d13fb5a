// The HTTP interface of SGLang, as trainers use it (slime, AReaL, ROLL): a router and one logical engine at one address. What a
// client sends beyond it is ignored, but for what would change the tokens: that is refused. Requests are held while generation is
// paused, never refused.
//
// Beyond SGLang, /generate takes `incremental` (events of a stream have only the tokens since the one before), `logprob_mode`, group_id and group_size (responses of the group, over all requests that name it), and its
// meta_info has the seed. `sampling_seed` is the seed of the first of n responses; the next one has that plus 1.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "cli/serve/front.h"

namespace seer {

class SglangDialect {
 public:
  /// `scheme`: "http" or "https", of this server's own URL.
  explicit SglangDialect(Front& front, std::string scheme = "http") : front_(front), scheme_(std::move(scheme)) {}
  /// False: the path is not of this dialect.
  bool handle(HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
  using Reply = std::shared_ptr<HttpReply>;
  void generate(HttpRequest& request, const Reply& reply);
  void server_info(const Reply& reply);
  void model_info(const Reply& reply);
  void workers(const HttpRequest& request, const Reply& reply);
  void abort_request(const HttpRequest& request, const Reply& reply);
  void loads(const Reply& reply, bool in_list);
  void pause(const HttpRequest& request, const Reply& reply);
  void go_on(const Reply& reply);
  void flush(const Reply& reply);
  void update_from_disk(const HttpRequest& request, const Reply& reply);

  Front& front_;
  const std::string scheme_;
  std::map<std::string, std::string> workers_;  // URL by id, as clients registered them
  uint64_t last_worker_ = 0;
};

}  // namespace seer
