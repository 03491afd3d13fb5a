#include "cli/watched_server.h"

#include <utility>

namespace seer {
namespace {

class WatchedServer final : public EngineServer {
 public:
  WatchedServer(std::shared_ptr<EngineServer> server, std::shared_ptr<StepLog> log) : server_(std::move(server)), log_(std::move(log)) {}
  const std::string& name() const override { return server_->name(); }
  void run(ServedAsk ask, std::function<void(ServedPart)> part) override {
    log_->change([&](LearnedSteps& steps, int64_t now_us) { steps.asked(ask.rid, std::ssize(ask.tokens), now_us); });
    auto watched = [log = log_, rid = ask.rid, part = std::move(part)](ServedPart came) {
      log->change([&](LearnedSteps& steps, int64_t now_us) {
        steps.came(rid, std::ssize(came.output.ids), came.cached_tokens, now_us);
        if (came.end != ServedEnd::kNone) steps.ended(rid, now_us);
      });
      part(std::move(came));
    };
    server_->run(std::move(ask), std::move(watched));
  }
  void end(const std::string& rid) override {
    log_->change([&](LearnedSteps& steps, int64_t now_us) { steps.ended(rid, now_us); });
    server_->end(rid);
  }
  void look(std::function<void(Result<ServerState>)> then) override { server_->look(std::move(then)); }
  void update_weights(std::string folder, std::string label, std::function<void(Status)> then) override {
    server_->update_weights(std::move(folder), std::move(label), std::move(then));
  }
  void pass(std::vector<HttpAsk> asks, std::function<void(Status)> then) override { server_->pass(std::move(asks), std::move(then)); }

 private:
  const std::shared_ptr<EngineServer> server_;
  const std::shared_ptr<StepLog> log_;
};

}  // namespace

std::shared_ptr<EngineServer> watch_server(std::shared_ptr<EngineServer> server, std::shared_ptr<StepLog> log) {
  return std::make_shared<WatchedServer>(std::move(server), std::move(log));
}

}  // namespace seer
