// Front: between the HTTP server and the gateway. It gives requests their tickets, sends what the gateway says of them to the call
// that they belong to, and cancels those whose client has gone. All of it runs on the server's thread.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/gateway_actor.h"
#include "cli/serve/http_server.h"
#include "cli/serve/token_mail.h"
#include "gpu/model/model_config.h"
#include "gpu/text/tokenizer.h"
#include "protocols/hash.h"

namespace seer {

/// The model that is served, as far as requests depend on it. Immutable.
struct ServedModel {
  std::string name, folder;
  ModelConfig config;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: the folder has none
  std::string dtype = "bfloat16";              // of the weights, as stored
  int64_t tokens_max = 0;                      // of prompt and output together that an instance can hold
  int64_t rows_max = 0;                        // requests that an instance runs at a time; 0: unknown
  uint64_t seed = 0;                           // of requests that bring none
  std::function<int64_t()> instances_up = [] { return 0; }, instances_expected = [] { return 0; };  // now; thread-safe
  std::function<std::vector<std::string>()> server_ids = [] { return std::vector<std::string>(); };  // as a router reads them; thread-safe
  std::function<int64_t()> ranks = [] { return 1; };  // in a group that a trainer sends weights over (served/weights_group.h); thread-safe
  bool gives_kept_ids = true;                  // LogprobMode::kKept is possible
};

/// Whether the model can run the request. Its max_tokens is cut to what fits. Errors: kInvalidArgument: one sentence.
Status fit_request(GatewayRequest& request, const ServedModel& model);

/// What a client asked for in one HTTP request.
struct Call {
  std::vector<GatewayRequest> requests;  // their tickets are filled in
  /// Tokens of a request that streams, as they come.
  std::function<void(size_t request, uint32_t sample, const CommittedTokens&, WeightVersion)> tokens = {};
  /// Each response, as it comes; all tokens came before.
  std::function<void(size_t request, uint32_t sample, const Response&)> response = {};
  /// All responses, by request and sample. The last. Without it none is kept.
  std::function<void(std::vector<std::vector<Response>>)> done = {};
  bool outlives_server = false;  // another process goes on with it: the end of the server does not wait for it
};

/// What a client calls new weights.
struct WeightLabel {
  std::optional<WeightVersion> number;  // none: the next one
  std::string name;                     // empty: none but the number
  bool operator==(const WeightLabel&) const = default;
};
/// What became of new weights.
struct WeightsDone {
  Status status;         // ok: they run
  std::string out = {};  // why a machine is out until it has them, though they run; empty: none is
  std::string who_is_out() const { return out.empty() ? "" : cat("; out: ", out); }
};
/// "12" is a number, "step-12" a name, "" neither. Errors: an integer that is no version, a name that is too long. `field`: its name.
Result<WeightLabel> read_weight_label(const char* field, const std::string& text);
/// A name, even if it is a number.
Result<WeightLabel> read_weight_name(const char* field, const std::string& text);
/// Text that a trainer gives as SGLang takes it: any label. One may count from a number that is over here, as slime does from 1: then the
/// number is a name. `last_used`: that of Front.
Result<WeightLabel> read_trainer_label(const char* field, const std::string& text, WeightVersion last_used);
/// What `mode` says of requests that are not over: one of these names, or "abort", the default.
Result<InFlight> read_in_flight(const std::string& mode, const std::vector<std::pair<std::string, InFlight>>& others);
inline constexpr const char* kUpdateIsUnderWay = "another update of the weights is under way";  // 409

/// What becomes of running requests when weights change.
Result<InFlight> read_update_mode(const std::string& mode);

class Front {
 public:
  /// `version`: of the weights that run at the start.
  Front(HttpServer& server, std::shared_ptr<GatewayDoor> door, ServedModel model, WeightVersion version);
  /// For the gateway. REQUIRES: the front outlives it.
  GatewayClient client();
  const ServedModel& model() const { return model_; }
  /// Has `read` make something of the body of a request, on another thread if it is long: reading it may take seconds. `then` gets
  /// that on the server's thread. REQUIRES: read() uses nothing that changes.
  template <class Read, class Then>
  void read_body(HttpRequest& request, Read read, Then then) {
    std::string body = std::move(request.body);
    if (body.size() <= kShortBodyBytes) return then(read(body));
    ++calls_;
    server_.put_aside([this, body = std::move(body), room = std::move(request.room), read = std::move(read), then = std::move(then)]() mutable {
      const auto made = std::make_shared<decltype(read(body))>(read(body));
      body = {};
      room.reset();
      server_.post([this, then = std::move(then), made] {
        --calls_;
        then(std::move(*made));
      });
    });
  }
  /// For responses that a client gave no seeds for: each call gives another one. Thread-safe.
  uint64_t fresh_seed() { return hash_pair(model_.seed, ++last_seed_); }

  void run(Call call, const std::shared_ptr<HttpReply>& reply);
  /// Likewise, for no connection: it goes on whoever comes and goes. Returns the tickets of its requests.
  std::vector<Ticket> run(Call call);
  /// Nobody wants the responses of these requests any more. REQUIRES: all requests of each call are among them.
  void cancel(const std::vector<Ticket>& tickets);
  /// These requests are answered with the tokens that they have.
  void abort(std::set<Ticket> tickets);
  /// Asks the gateway, and gives `then` the answer on the server's thread.
  template <class Ask, class Then>
  void ask(Ask ask, Then then) {
    door_->put([this, ask = std::move(ask), then = std::move(then)](GatewayActor& gateway) mutable {
      auto answer = ask(gateway);
      server_.post([then = std::move(then), answer = std::move(answer)]() mutable { then(std::move(answer)); });
    });
  }
  /// Makes new requests wait. `then` is called, on the server's thread, once nothing runs any more.
  void pause(InFlight in_flight, std::function<void()> then);
  /// The gateway's report; `then` gets it on the server's thread. Thread-safe.
  void report(std::function<void(const GatewayReport&)> then);
  /// The version that runs, as the gateway said last.
  WeightVersion version() const { return version_; }
  /// The version that weights without a number get. A machine may have the weights of an update that failed: the next ones do not get their number.
  WeightVersion next_version() const { return WeightVersion{std::max(version_, last_asked_).value + 1}; }
  /// The last version whose number new weights cannot have.
  WeightVersion last_used() const { return asks_once_ ? std::max(version_, last_asked_) : version_; }
  /// From now on a number is used once an update asked for it: servers of others know weights by it, and one may have taken those of an
  /// update that failed.
  void ask_once() { asks_once_ = true; }
  /// The name that a client gave a version; empty: none.
  std::string version_name(WeightVersion version) const;
  /// What clients call a version: that name, else its number.
  std::string version_label(WeightVersion version) const;
  /// Changes to these weights, whose version is that of the label; `then` gets what became of it, on the server's thread.
  void update_weights(NewWeights weights, InFlight in_flight, const WeightLabel& label, std::function<void(const WeightsDone&)> then);
  /// An update is under way.
  bool is_updating() const { return updates_ > 0; }
  /// Makes others wait for an update that will be asked for; end_reservation() comes right before that, or instead of it.
  void reserve_update() { ++updates_; }
  void end_reservation() { --updates_; }
  /// `watcher` hears of each response as it is given, with the time since its call came. REQUIRES: called before the first call.
  void watch(std::function<void(const Response&, int64_t latency_us)> watcher) { watcher_ = std::move(watcher); }
  /// A name for a request that has none; no other name begins with it.
  std::string fresh_rid() {
    std::string digits = std::to_string(++last_rid_);
    return cat("seer-", std::string(20 - digits.size(), '0'), digits);
  }
  /// Calls that are not answered yet.
  size_t open_calls() const { return calls_; }

 private:
  static constexpr size_t kShortBodyBytes = 128 << 10;  // read in a few milliseconds
  struct OpenCall {
    Call call;
    std::vector<std::vector<Response>> responses;
    std::vector<Ticket> tickets;
    size_t left = 0;
    std::chrono::steady_clock::time_point came = std::chrono::steady_clock::now();
  };
  struct Place {
    std::shared_ptr<OpenCall> call;
    size_t request = 0;
    size_t left = 0;
  };
  std::shared_ptr<OpenCall> start(Call call);
  void on_tokens();
  void on_response(Ticket ticket, uint32_t sample, Response response);
  void run_with(WeightVersion version, const std::string& name);

  HttpServer& server_;
  const std::shared_ptr<GatewayDoor> door_;
  const ServedModel model_;
  std::function<void(const Response&, int64_t latency_us)> watcher_ = [](const Response&, int64_t) {};
  TokenMail mail_;
  std::unordered_map<Ticket, Place> places_;
  WeightVersion version_;
  WeightVersion last_asked_;
  bool asks_once_ = false;
  std::map<WeightVersion, std::string> labels_;  // of the last versions that clients gave names to
  uint64_t last_ticket_ = 0;
  std::atomic<uint64_t> last_seed_ = 0, last_rid_ = 0;
  size_t calls_ = 0, updates_ = 0;
};

}  // namespace seer
