#include "cli/serve/front.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "cli/json_lines.h"
#include "gpu/sampler.h"

namespace seer {
namespace {

constexpr size_t kLabelsMax = 64;
constexpr size_t kLabelBytesMax = 256;                       // each response has one
constexpr uint64_t kVersionMax = uint64_t{INT64_MAX};  // there must be a next one

}  // namespace

Status fit_request(GatewayRequest& request, const ServedModel& model) {
  const auto wrong = [](const auto&... what) { return fail(Code::kInvalidArgument, what...); };
  const int64_t prompt_tokens = std::ssize(request.prompt_ids);
  if (prompt_tokens == 0) return wrong("the prompt is empty");
  for (size_t i = 0; i < request.prompt_ids.size(); ++i)
    if (const int32_t id = request.prompt_ids[i]; id < 0 || id >= model.config.vocab_size)
      return wrong("token id ", id, " at place ", i, " of the prompt: expected ids below ", model.config.vocab_size, ", the size of the vocabulary");
  const int64_t tokens_max = std::min(model.tokens_max, model.config.context_tokens_max);
  if (prompt_tokens >= tokens_max)
    return wrong("the prompt has ", prompt_tokens, " tokens: expected less than ", tokens_max, ", which prompt and output together may have");
  if (const Status valid = validate(request.sampling); !valid.ok()) return valid;
  if (request.sampling.logprob_mode == LogprobMode::kKept && !model.gives_kept_ids)
    return wrong("the ids that top_p kept cannot be given back here: the servers behind a router give none");
  if (!request.sampling.stop.empty() && model.tokenizer == nullptr)
    return wrong("stop needs a tokenizer, and ", model.name, " has none: use stop_token_ids");
  for (const int32_t id : request.sampling.stop_token_ids)
    if (id >= model.config.vocab_size)
      return wrong("stop_token_ids has ", id, ": expected ids below ", model.config.vocab_size, ", the size of the vocabulary");
  if (const Status fits = check_ending_ids(request.sampling, model.config.eos_ids); !fits.ok()) return fits;
  request.sampling.max_tokens = std::min(request.sampling.max_tokens, tokens_max - prompt_tokens);
  request.sampling.min_tokens = std::min(request.sampling.min_tokens, request.sampling.max_tokens);
  return {};
}

Result<WeightLabel> read_weight_name(const char* field, const std::string& text) {
  if (text.size() <= kLabelBytesMax) return WeightLabel{.number = {}, .name = text};
  return fail(Code::kInvalidArgument, field, " is ", shown(text), ": expected a name of at most ", kLabelBytesMax, " bytes");
}

Result<WeightLabel> read_weight_label(const char* field, const std::string& text) {
  const bool is_name = text.empty() || text.find_first_not_of("0123456789", text[0] == '-' ? 1 : 0) != std::string::npos || text == "-";
  if (is_name) return read_weight_name(field, text);
  uint64_t number = 0;
  if (const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      error == std::errc() && end == text.data() + text.size() && number <= kVersionMax)
    return WeightLabel{.number = WeightVersion{number}, .name = {}};
  return fail(Code::kInvalidArgument, field, " is ", shown(text), ": expected a number up to ", kVersionMax, ", or a name of at most ",
              kLabelBytesMax, " bytes");
}

Result<WeightLabel> read_trainer_label(const char* field, const std::string& text, WeightVersion last_used) {
  SEER_ASSIGN_OR_RETURN(WeightLabel label, read_weight_label(field, text));
  return label.number && *label.number <= last_used ? read_weight_name(field, text) : label;
}

Result<InFlight> read_in_flight(const std::string& mode, const std::vector<std::pair<std::string, InFlight>>& others) {
  if (mode.empty() || mode == "abort") return InFlight::kAbort;
  std::string names = "abort";
  for (const auto& [name, how] : others) {
    if (mode == name) return how;
    names += cat(name == others.back().first ? " or " : ", ", name);
  }
  return fail(Code::kInvalidArgument, "mode is \"", mode, "\": expected ", names);
}

Result<InFlight> read_update_mode(const std::string& mode) {
  return read_in_flight(mode, {{"retract", InFlight::kRedo}, {"drain", InFlight::kFinish}});
}

Front::Front(HttpServer& server, std::shared_ptr<GatewayDoor> door, ServedModel model, WeightVersion version)
    : server_(server), door_(std::move(door)), model_(std::move(model)), version_(version) {}

GatewayClient Front::client() {
  return {.response =
              [this](Ticket ticket, uint32_t sample, Response response) {
                server_.post([this, ticket, sample, response = std::move(response)]() mutable {
                  on_response(ticket, sample, std::move(response));
                });
              },
          .tokens =
              [this](Ticket ticket, uint32_t sample, CommittedTokens part, WeightVersion version) {
                if (mail_.put({ticket, sample, std::move(part), version})) server_.post([this] { on_tokens(); });
              },
          .runs =
              [this](WeightVersion version, const std::string& name) {
                mail_.close_bag();
                server_.post([this, version, name] { run_with(version, name); });
              }};
}

void Front::on_tokens() {
  for (const TokenMail::Letter& letter : mail_.take()) {
    const auto at = places_.find(letter.ticket);
    if (at == places_.end()) continue;
    const std::shared_ptr<OpenCall> open = at->second.call;  // writing may find out that the client has gone
    open->call.tokens(at->second.request, letter.sample, letter.part, letter.version);
  }
}

std::shared_ptr<Front::OpenCall> Front::start(Call call) {
  const auto open = std::make_shared<OpenCall>();
  open->call = std::move(call);
  std::vector<GatewayRequest> requests = std::move(open->call.requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    GatewayRequest& request = requests[i];
    request.ticket = Ticket{++last_ticket_};
    open->tickets.push_back(request.ticket);
    open->responses.emplace_back(request.seeds.size());
    open->left += request.seeds.size();
    places_.emplace(request.ticket, Place{open, i, request.seeds.size()});
  }
  if (!open->call.outlives_server) ++calls_;
  door_->put([requests = std::move(requests)](GatewayActor& gateway) mutable {
    for (GatewayRequest& request : requests) gateway.submit(std::move(request));
  });
  return open;
}

void Front::run(Call call, const std::shared_ptr<HttpReply>& reply) {
  const auto open = start(std::move(call));
  reply->on_gone([this, open] {
    if (open->left > 0) cancel(open->tickets);  // else it goes while it is answered
  });
}

std::vector<Ticket> Front::run(Call call) { return start(std::move(call))->tickets; }

void Front::cancel(const std::vector<Ticket>& tickets) {
  std::set<std::shared_ptr<OpenCall>> ended;
  for (const Ticket ticket : tickets)
    if (const auto at = places_.find(ticket); at != places_.end()) {
      ended.insert(at->second.call);
      places_.erase(at);
    }
  for (const auto& open : ended) calls_ -= open->call.outlives_server ? 0 : 1;
  door_->put([tickets](GatewayActor& gateway) {
    for (const Ticket ticket : tickets) gateway.cancel(ticket);
  });
}

void Front::abort(std::set<Ticket> tickets) {
  door_->put([tickets = std::move(tickets)](GatewayActor& gateway) { gateway.abort(tickets); });
}

void Front::on_response(Ticket ticket, uint32_t sample, Response response) {
  const auto at = places_.find(ticket);
  if (at == places_.end()) return;  // its client has gone
  const std::shared_ptr<OpenCall> open = at->second.call;
  const size_t request = at->second.request;
  if (--at->second.left == 0) places_.erase(at);
  const auto latency = std::chrono::steady_clock::now() - open->came;
  watcher_(response, std::chrono::duration_cast<std::chrono::microseconds>(latency).count());
  if (open->call.response) open->call.response(request, sample, response);
  if (open->call.done) open->responses[request][sample] = std::move(response);
  if (--open->left > 0) return;
  if (!open->call.outlives_server) --calls_;
  if (open->call.done) open->call.done(std::move(open->responses));
  open->call = {};  // with the reply, which may keep the call
}

void Front::pause(InFlight in_flight, std::function<void()> then) {
  door_->put([this, in_flight, then = std::move(then)](GatewayActor& gateway) {
    gateway.pause(in_flight, [this, then] { server_.post(then); });
  });
}

void Front::report(std::function<void(const GatewayReport&)> then) {
  door_->put([this, then = std::move(then)](GatewayActor& gateway) {
    gateway.report([this, then](GatewayReport report) { server_.post([then, report = std::move(report)] { then(report); }); });
  });
}

std::string Front::version_name(WeightVersion version) const {
  const auto label = labels_.find(version);
  return label == labels_.end() ? "" : label->second;
}

std::string Front::version_label(WeightVersion version) const {
  const std::string name = version_name(version);
  return name.empty() ? cat(version) : name;
}

void Front::update_weights(NewWeights weights, InFlight in_flight, const WeightLabel& label, std::function<void(const WeightsDone&)> then) {
  ++updates_;
  weights.version = label.number.value_or(next_version());
  last_asked_ = std::max(last_asked_, weights.version);
  auto done = [this, before = version_, asked = weights.version, then = std::move(then)](const Status& status) {
    --updates_;
    const bool runs = version_ == asked && asked != before;
    then({runs ? Status() : status, runs && !status.ok() ? status.error().detail : ""});
  };
  door_->put([this, weights = std::move(weights), name = label.name, in_flight, done = std::move(done)](GatewayActor& gateway) mutable {
    gateway.update_weights({.what = std::move(weights), .name = std::move(name), .in_flight = in_flight, .done = [this, done = std::move(done)](Status status) {
                              server_.post([done, status = std::move(status)] { done(status); });
                            }});
  });
}

void Front::run_with(WeightVersion version, const std::string& name) {
  version_ = version;
  if (!name.empty()) labels_[version] = name;
  if (labels_.size() > kLabelsMax) labels_.erase(labels_.begin());
}

}  // namespace seer
