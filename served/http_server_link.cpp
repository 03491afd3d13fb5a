#include "served/http_server_link.h"

#include <map>
#include <utility>
#include <vector>

#include "served/served_answer.h"
#include "served/server_dialect.h"

namespace seer {
namespace {

class HttpServerLink final : public EngineServer, public std::enable_shared_from_this<HttpServerLink> {
 public:
  HttpServerLink(ServerLinkConfig config, HttpClient& client)
      : config_(std::move(config)),
        client_(client),
        dialect_(make_dialect(config_.kind)),
        name_(url_of(config_.address)) {}

  const std::string& name() const override { return name_; }

  void run(ServedAsk asked, std::function<void(ServedPart)> part) override {
    // On the client's thread, since the dialect is used there only, and the JSON of many tokens takes a while.
    client_.post([self = shared_from_this(), asked = std::move(asked), part = std::move(part)]() mutable {
      const std::string rid = asked.rid;
      HttpAsk ask = self->dialect_->generate(asked);
      const auto answer = std::make_shared<ServedAnswer>(std::move(asked), *self->dialect_, std::move(part));
      self->calls_[rid] = self->client_.start(self->config_.address, std::move(ask), {.silence_us = self->config_.silence_us},
                                             {.head = [answer](int status, std::string_view type) { answer->head(status, type); },
                                              .body = [answer](std::string_view bytes) { answer->body(bytes); },
                                              .end =
                                                  [self, rid, answer](const Status& status) {
                                                    self->calls_.erase(rid);
                                                    answer->end(status);
                                                  }});
    });
  }

  void end(const std::string& rid) override {
    client_.post([self = shared_from_this(), rid] {
      const auto open = self->calls_.find(rid);
      if (open == self->calls_.end()) return;
      self->client_.cancel(open->second);
      if (auto abort = self->dialect_->abort(rid))
        self->client_.ask(self->config_.address, *std::move(abort), {.silence_us = self->config_.look_us_max}, [](const HttpAnswer&) {});
      self->calls_.erase(open);
    });
  }

  void look(std::function<void(Result<ServerState>)> then) override {
    client_.post([self = shared_from_this(), then = std::move(then)]() mutable {
      self->ask_all(self->dialect_->look(), self->config_.look_us_max, {}, [self, then = std::move(then)](const std::vector<HttpAnswer>& answers) {
        then(self->dialect_->state(answers));
      });
    });
  }

  void update_weights(std::string folder, std::string label, std::function<void(Status)> then) override {
    client_.post([self = shared_from_this(), folder = std::move(folder), label = std::move(label), then = std::move(then)]() mutable {
      UpdateAsks asks = self->dialect_->update_weights(folder, label);
      if (!asks.afterwards) return self->update_step(std::move(asks.steps), 0, std::move(then));
      self->update_step(std::move(asks.steps), 0, [self, last = *asks.afterwards, then = std::move(then)](const Status& changed) mutable {
        self->update_step({std::move(last)}, 0, [changed, then = std::move(then)](const Status& ended) { then(changed.ok() ? ended : changed); });
      });
    });
  }
  void pass(std::vector<HttpAsk> asks, std::function<void(Status)> then) override {
    client_.post([self = shared_from_this(), asks = std::move(asks), then = std::move(then)]() mutable { self->update_step(std::move(asks), 0, std::move(then)); });
  }

 private:
  /// Asks the rest of `asks`, from the one that has no answer yet.
  void ask_all(std::vector<HttpAsk> asks, int64_t us_max, std::vector<HttpAnswer> so_far, std::function<void(std::vector<HttpAnswer>)> then) {
    if (so_far.size() == asks.size()) return then(std::move(so_far));
    HttpAsk next = asks[so_far.size()];
    client_.ask(config_.address, std::move(next), {.connect_us = us_max, .silence_us = us_max},
                 [self = shared_from_this(), asks = std::move(asks), us_max, so_far = std::move(so_far), then = std::move(then)](HttpAnswer answer) mutable {
                   // A server that cannot be reached is not asked the rest: each question would take its whole time.
                   const bool is_gone = answer.status == 0;
                   so_far.push_back(std::move(answer));
                   if (is_gone) so_far.resize(asks.size());
                   self->ask_all(std::move(asks), us_max, std::move(so_far), std::move(then));
                 });
  }
  void update_step(std::vector<HttpAsk> asks, size_t next, std::function<void(Status)> then) {
    if (next == asks.size()) return then({});
    HttpAsk ask = asks[next];
    client_.ask(config_.address, ask, {.silence_us = config_.update_us_max},
                 [self = shared_from_this(), asks = std::move(asks), next, then = std::move(then)](const HttpAnswer& answer) mutable {
                   const bool has_failed = field_of(json_of(answer), "success") != nullptr && json_of(answer)["success"] == false;
                   if (answer.status == 200 && !has_failed) return self->update_step(std::move(asks), next + 1, std::move(then));
                   const std::string& target = asks[next].target;
                   then(fail(Code::kUnavailable, self->name_, target, ": ", answer.status == 0 ? answer.body : part_of_error(answer.status, answer.body).why));
                 });
  }

  const ServerLinkConfig config_;
  HttpClient& client_;
  // On the client's thread only:
  const std::unique_ptr<ServerDialect> dialect_;
  std::map<std::string, HttpClient::CallId> calls_;  // by rid
  const std::string name_;
};

}  // namespace

Result<ServerLinkConfig> parse_engine(const std::string& text) {
  ServerLinkConfig config;
  const size_t equals = text.find('=');
  const std::string kind = equals == std::string::npos ? to_string(config.kind) : text.substr(0, equals);
  bool is_known = false;
  for (const ServerKind named : {ServerKind::kSglang, ServerKind::kVllm, ServerKind::kSeer})
    if (kind == to_string(named)) config.kind = named, is_known = true;
  if (!is_known) return fail(Code::kInvalidArgument, text, ": expected sglang=URL, vllm=URL or seer=URL");
  SEER_ASSIGN_OR_RETURN(config.address, parse_http_address(equals == std::string::npos ? text : text.substr(equals + 1)));
  return config;
}

std::shared_ptr<EngineServer> connect_server(ServerLinkConfig config, HttpClient& client) {
  return std::make_shared<HttpServerLink>(std::move(config), client);
}

}  // namespace seer
