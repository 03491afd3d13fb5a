// ByteServer: a simulated server that answers in the bytes of one dialect, on the virtual clock, with faults drawn from a seed: it is
// silent, breaks off, aborts, has no room, sends what makes no sense, goes away and comes back, with other weights too. The tokens
// of a response depend on its seed and the position alone.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/sim/sim_world.h"
#include "protocols/hash.h"
#include "served/served_answer.h"

namespace seer {

/// What the responses must be.
struct ByteOracle {
  static constexpr int32_t kEos = 1;
  static int64_t length(uint64_t seed) { return 1 + static_cast<int64_t>(hash_pair(seed, 77) % 60); }
  static int32_t token(uint64_t seed, int64_t index) {
    return index + 1 == length(seed) ? kEos : static_cast<int32_t>(2 + hash_pair(seed, static_cast<uint64_t>(index)) % 1000);
  }
  static float logprob(uint64_t seed, int64_t index) { return -static_cast<float>(hash_pair(seed + 1, static_cast<uint64_t>(index)) % 4096) / 512; }
};

struct ByteServerConfig {
  ServerKind kind = ServerKind::kSglang;
  uint64_t seed = 1;
  int64_t token_us = 1000;
  double fault_share = 0.3;     // of the requests
  int64_t up_us = 100'000;      // about, from one outage to the next; 0: none
  int64_t rows_max = 6;         // more are answered with 503
  int64_t context_tokens = 4096;
  bool is_incremental = false;  // of SGLang's kind
  bool changes_weights = false; // comes back with other ones at times
};

class ByteServer final : public EngineServer {
 public:
  ByteServer(SimWorld& world, ByteServerConfig config) : world_(world), config_(config), rng_(config.seed), dialect_(make_dialect(config.kind)) { plan_outage(); }

  const std::string& name() const override { return name_; }

  void run(ServedAsk ask, std::function<void(ServedPart)> part) override {
    const std::string rid = ask.rid;
    REQUIRE(rids_.insert(rid).second);
    ++requests_;
    REQUIRE(nlohmann::json::parse(dialect_->generate(ask).body).is_object());
    auto call = std::make_shared<Call>(Call{ask, std::make_unique<ServedAnswer>(ask, *dialect_, std::move(part))});
    calls_[rid] = call;
    if (is_down_) return later(200, rid, [this, call] { finish(*call, fail(Code::kUnavailable, "it cannot be reached")); });
    if (std::ssize(calls_) > config_.rows_max) return later(300, rid, [this, call] { refuse(*call, 503); });
    answer(call);
  }

  void end(const std::string& rid) override { calls_.erase(rid); }

  void look(std::function<void(Result<ServerState>)> then) override {
    world_.after(500, [this, then = std::move(then)] {
      if (is_down_) return then(fail(Code::kUnavailable, "it cannot be reached"));
      then(ServerState{.engine = "bytes", .model = "m", .weights = weights_, .kv_tokens = 4096, .context_tokens = config_.context_tokens, .rows_max = 8});
    });
  }

  void update_weights(std::string folder, std::string label, std::function<void(Status)> then) override {
    CHECK(calls_.empty());
    world_.after(2'000, [this, folder = std::move(folder), label = std::move(label), then = std::move(then)] {
      if (is_down_ || folder.empty()) return then(fail(Code::kUnavailable, "it cannot be reached"));
      weights_ = label;
      if (!loses_answers) return then({});
      then(fail(Code::kUnavailable, "it answered 504"));
    });
  }

  void pass(std::vector<HttpAsk>, std::function<void(Status)> then) override { then({}); }

  /// Goes away now, for `us`.
  void go_down(int64_t us) {
    is_down_ = true;
    for (const auto& [rid, call] : std::exchange(calls_, {})) call->answer->end(fail(Code::kUnavailable, "its answer broke off"));
    world_.after(us, [this] { is_down_ = false; });
  }
  /// As /abort_request does it with abort_all. REQUIRES: none of its calls has given a token yet.
  void abort_all() {
    for (const auto& [rid, call] : std::exchange(calls_, {})) {
      call->answer->head(200, "text/event-stream");
      call->answer->body(event_of(call->ask, 0, 0, call->ask.max_new_tokens, Fault::kAborts));
      call->answer->end({});
    }
  }
  void stop_faults() { config_.fault_share = 0, config_.up_us = 0; }
  int64_t open() const { return std::ssize(calls_); }
  int64_t requests() const { return requests_; }
  const std::string& weights() const { return weights_; }
  bool loses_answers = false;  // to updates, which happen all the same
  void set_weights(std::string label) { weights_ = std::move(label); }

 private:
  struct Call {
    ServedAsk ask;
    std::unique_ptr<ServedAnswer> answer;
  };
  enum class Fault : uint8_t { kNone, kSilent, kBreaks, kAborts, kGarbage, kOtherPrompt, kOtherIds, kError, kNoReason, kServerError, kCount };

  uint64_t draw(uint64_t below) { return rng_() % below; }

  /// Runs f after a while if the call is open then.
  void later(int64_t us, const std::string& rid, std::function<void()> f) {
    world_.after(us, [this, rid, f = std::move(f)] {
      if (calls_.contains(rid)) f();
    });
  }
  void finish(Call& call, const Status& status) {
    const auto kept = calls_.extract(call.ask.rid);
    kept.mapped()->answer->end(status);
  }
  void refuse(Call& call, int status) {
    call.answer->head(status, "application/json");
    call.answer->body(R"({"error": {"message": "no room"}})");
    finish(call, {});
  }

  void answer(const std::shared_ptr<Call>& call) {
    const ServedAsk& ask = call->ask;
    const bool has_fault = static_cast<double>(draw(1000)) < 1000 * config_.fault_share;
    const Fault fault = has_fault ? static_cast<Fault>(1 + draw(static_cast<uint64_t>(Fault::kCount) - 1)) : Fault::kNone;
    const int64_t done = std::ssize(ask.tokens) - ask.prompt_tokens;
    const int64_t give = std::min(ask.max_new_tokens, ByteOracle::length(ask.seed) - done);
    REQUIRE(give > 0);
    if (fault == Fault::kServerError) return later(config_.token_us, ask.rid, [this, call] { refuse(*call, 500); });
    later(0, ask.rid, [call] { call->answer->head(200, "text/event-stream"); });
    const auto at_fault = static_cast<int64_t>(draw(static_cast<uint64_t>(give)));
    int64_t us = 0;
    for (int64_t told = 0; told < give;) {
      const int64_t now = std::min(give, told + 1 + static_cast<int64_t>(draw(4)));
      us += config_.token_us * (now - told);
      const bool is_wrong = fault != Fault::kNone && at_fault < now;
      std::string event = event_of(ask, told, now, give, is_wrong ? fault : Fault::kNone);
      if (is_wrong && fault == Fault::kBreaks) event.resize(draw(event.size()));
      send(call, us, std::move(event));
      if (is_wrong) return fail_at(call, us, fault);
      told = now;
    }
    send(call, us, "data: [DONE]\n\n");
    later(us, ask.rid, [this, call] { finish(*call, {}); });
  }

  /// In two pieces, cut anywhere.
  void send(const std::shared_ptr<Call>& call, int64_t us, std::string bytes) {
    const size_t cut = draw(bytes.size() + 1);
    later(us, call->ask.rid, [call, first = bytes.substr(0, cut)] { call->answer->body(first); });
    later(us, call->ask.rid, [call, rest = bytes.substr(cut)] { call->answer->body(rest); });
  }

  void fail_at(const std::shared_ptr<Call>& call, int64_t us, Fault fault) {
    switch (fault) {
      case Fault::kSilent:  // as an HttpClient ends it
        return later(us + 2'000'000, call->ask.rid, [this, call] { finish(*call, fail(Code::kUnavailable, "it was silent for 2 s")); });
      case Fault::kBreaks: return later(us, call->ask.rid, [this, call] { finish(*call, fail(Code::kUnavailable, "its answer broke off")); });
      case Fault::kGarbage:
      case Fault::kOtherPrompt:
      case Fault::kOtherIds: return;  // it knows of no fault, and goes on until it is told not to
      default:
        send(call, us, "data: [DONE]\n\n");
        return later(us, call->ask.rid, [this, call] { finish(*call, {}); });
    }
  }

  /// Of the tokens [told, now) of the answer, which has `give`.
  std::string event_of(const ServedAsk& ask, int64_t told, int64_t now, int64_t give, Fault fault) const {
    const int64_t done = std::ssize(ask.tokens) - ask.prompt_tokens;
    const bool is_last = now == give && fault != Fault::kNoReason;
    const bool at_end = done + give == ByteOracle::length(ask.seed);
    const bool is_sglang = config_.kind != ServerKind::kVllm;
    if (fault == Fault::kGarbage) return "data: {\"output_ids\": [1, 2\n\n";
    if (fault == Fault::kError) return "data: {\"error\": {\"message\": \"an error of its own\"}}\n\n";
    nlohmann::json ids = nlohmann::json::array(), logprobs = nlohmann::json::array();
    const int64_t first = is_sglang && !config_.is_incremental ? 0 : told;
    for (int64_t i = first; i < now; ++i) {
      // Other ids than those told before; a vLLM event cannot repeat any, so there it has one too many.
      const int32_t id = ByteOracle::token(ask.seed, done + i) + (fault == Fault::kOtherIds && i == first ? 1 : 0);
      const float logprob = ByteOracle::logprob(ask.seed, done + i);
      ids.push_back(id);
      if (is_sglang)
        logprobs.push_back({logprob, fault == Fault::kOtherIds && told == 0 ? id + 1 : id, nullptr});
      else
        logprobs.push_back({{"token", "token_id:" + std::to_string(id)}, {"logprob", logprob}});
    }
    nlohmann::json event;
    if (is_sglang) {
      nlohmann::json finish;
      if (is_last) finish = at_end ? nlohmann::json{{"type", "stop"}, {"matched", ByteOracle::kEos}} : nlohmann::json{{"type", "length"}, {"length", now}};
      if (fault == Fault::kAborts) finish = {{"type", "abort"}, {"message", "Aborted"}};
      const int64_t prompt = std::ssize(ask.tokens) + (fault == Fault::kOtherPrompt ? 1 : 0);
      const int64_t count = fault == Fault::kOtherIds && config_.is_incremental ? now + 7 : now;
      event = {{"output_ids", ids}, {"meta_info", {{"finish_reason", finish}, {"prompt_tokens", prompt}, {"completion_tokens", count}, {"weight_version", weights_}, {"cached_tokens", 1}, {"output_token_logprobs", logprobs}}}};
    } else {
      nlohmann::json reason;
      if (is_last) reason = at_end ? "stop" : "length";
      if (fault == Fault::kAborts) reason = "abort";
      if (fault == Fault::kOtherIds) ids.push_back(5);
      event = {{"request_id", ask.rid}, {"choices", {{{"index", 0}, {"token_ids", ids}, {"logprobs", {{"content", logprobs}}}, {"finish_reason", reason}}}}};
      if (fault == Fault::kOtherPrompt) event["choices"][0]["prompt_token_ids"] = {1, 2, 3};
    }
    return "data: " + event.dump() + "\n\n";
  }

  void plan_outage() {
    if (config_.up_us == 0) return;
    world_.after(static_cast<int64_t>(config_.up_us / 2 + static_cast<int64_t>(draw(static_cast<uint64_t>(config_.up_us)))), [this] {
      if (config_.up_us == 0) return;
      if (!is_down_) go_down(1000 + static_cast<int64_t>(draw(50'000)));
      if (config_.changes_weights && draw(2) == 0) {  // it was restarted by somebody, with whatever weights
        const std::string right = weights_;
        weights_ = "other";
        world_.after(60'000, [this, right] {
          if (weights_ == "other") weights_ = right;
        });
      }
      plan_outage();
    });
  }

  SimWorld& world_;
  ByteServerConfig config_;
  std::mt19937_64 rng_;
  const std::unique_ptr<ServerDialect> dialect_;
  const std::string name_ = "http://bytes:1";
  std::map<std::string, std::shared_ptr<Call>> calls_;  // by rid
  std::set<std::string> rids_;                         // of all requests so far
  std::string weights_ = "default";
  int64_t requests_ = 0;
  bool is_down_ = false;
};

}  // namespace seer
