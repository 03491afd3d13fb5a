#include "cli/serve/serve_command.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "actors/fleet.h"
#include "actors/gateway_actor.h"
#include "cli/cluster_access.h"
#include "cli/cluster_net.h"
#include "cli/machine_memory.h"
#include "cli/machine_parts.h"
#include "cli/serve/front.h"
#include "cli/serve/http_server.h"
#include "cli/serve/native_dialect.h"
#include "cli/serve/openai_dialect.h"
#include "cli/serve/served_rollouts.h"
#include "cli/serve/sglang_dialect.h"

namespace seer {
namespace {

constexpr int64_t kLookUs = 50'000;         // between two looks at the stop flag
constexpr int64_t kTickUs = 200'000;        // between two looks at progress that streams of rollouts want
constexpr int64_t kSyncUs = 1'000'000;      // between two times that the journal is made safe from a crash of the machine
constexpr int64_t kDrainUs = 60'000'000;    // for requests that run when it is to end; a second signal ends it at once

Result<std::string> read_token(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::string token;
  if (!file) return fail(Code::kNotFound, "--token-file ", path, ": cannot be read");
  std::getline(file, token);
  while (!token.empty() && (token.back() == '\r' || token.back() == ' ')) token.pop_back();
  if (token.size() < 16) return fail(Code::kInvalidArgument, "--token-file ", path, ": expected a first line of at least 16 characters");
  return token;
}

/// Tokens of prompt and output together that the KV cache of one instance holds.
int64_t tokens_max(const ServeOptions& options, const ModelConfig& model) {
  const int64_t block_bytes = kv_block_bytes(model, engine_config(options, InstanceId{0}));
  return options.kv_bytes / block_bytes * options.block_tokens;
}

/// Null: the model has no chat template, or no tokenizer.
Result<std::shared_ptr<const ChatPrompts>> load_chat(const LoadedModel& loaded, const std::string& folder) {
  if (loaded.tokenizer == nullptr) return std::shared_ptr<const ChatPrompts>();
  auto chat = ChatPrompts::load(folder, loaded.tokenizer);
  if (!chat.ok() && chat.error().code == Code::kNotFound) return std::shared_ptr<const ChatPrompts>();
  return chat;
}

ServedModelMark mark_of(const ServeOptions& options, const Model& model, WeightVersion version) {
  return {.model = model_name(options.model),
          .weights = hash_pair(model.weights_hash, static_cast<uint64_t>(options.kv_dtype)),
          .version = version};
}

/// Null: none was asked for.
Result<std::unique_ptr<ServedJournal>> open_journal(const ServeOptions& options, [[maybe_unused]] const ServedModelMark& mark) {
  if (options.journal.empty()) return std::unique_ptr<ServedJournal>();
#ifdef SEER_HAVE_ROCKSDB
  return ServedJournal::open(options.journal, mark);
#else
  return fail(Code::kUnavailable, "--journal ", options.journal,
              " needs RocksDB, but this build was made without it: apt-get install librocksdb-dev, and build again");
#endif
}

/// Ends the gateway with its scope, and waits for that: until then it calls the front.
struct GatewayScope {
  rt::system& system;
  GatewayActor::handle gateway;
  ~GatewayScope() {
    rt::Inbox<> inbox(system);
    inbox.monitor(gateway);
    rt::stop(gateway);
    for (bool over = false; !over;) inbox.receive(kLookUs, [&](const rt::down&) { over = true; });
  }
};
using NewMarks = Outbox<ServedModelMark>;  // from the thread that loads weights
/// What rollouts need every now and then, from the main thread.
struct KeepRollouts {
  HttpServer& server;
  ServedRollouts& rollouts;
  NewMarks& marks;
  const EventLog& log;
  int64_t ticked_us = 0, synced_us = 0;
  std::shared_ptr<std::atomic<bool>> has_failed = std::make_shared<std::atomic<bool>>(false);
  void look(int64_t now_us) {
    if (now_us - ticked_us >= kTickUs) {
      ticked_us = now_us;
      for (const ServedModelMark& mark : marks.take()) server.post([&to = rollouts, mark] { to.set_mark(mark); });
      server.post([&to = rollouts, &events = log, failed = has_failed, now_us] {
        to.tick(now_us);
        tell(to.journal_failed(), *failed, events, now_us);
      });
    }
    if (now_us - synced_us < kSyncUs) return;
    synced_us = now_us;
    tell(rollouts.sync(), *has_failed, log, now_us);
  }
  /// Once.
  static void tell(const Status& status, std::atomic<bool>& has_failed, const EventLog& log, int64_t now_us) {
    if (!status.ok() && !has_failed.exchange(true)) log.warn(now_us, "journal_failed", {{"error", status.error().detail}});
  }
};
/// Ends the server's thread with its scope: until then it calls the front.
struct ServerScope {
  std::unique_ptr<HttpServer>& server;
  ~ServerScope() { server.reset(); }
};

}  // namespace

Status serve_command(const ServeOptions& options, const std::atomic<bool>& stop) {
  SEER_ASSIGN_OR_RETURN(const EventLog log, EventLog::open(options.log));
  SEER_ASSIGN_OR_RETURN(const HostPort listen, parse_host_port("--listen", options.listen, true));
  SEER_ASSIGN_OR_RETURN(std::string token, read_token(options.token_file));
  // A port in use is found out before a model is loaded.
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server,
                        HttpServer::listen({.host = listen.host,
                                            .port = listen.port,
                                            .tls_cert = options.tls_cert,
                                            .tls_key = options.tls_key,
                                            .token = std::move(token),
                                            .body_bytes_max = static_cast<uint64_t>(options.body_bytes),
                                            .connections_max = static_cast<size_t>(options.connections)}));
  SEER_RETURN_IF_ERROR(check_memory({demand_of_weights(options.model, options.weights == WeightType::kInt8)}, find_memory()));
  SEER_ASSIGN_OR_RETURN(const LoadedModel loaded, load_model_of(options));
  SEER_RETURN_IF_ERROR(check_sizes(options, loaded.model->config));

  SEER_ASSIGN_OR_RETURN(std::shared_ptr<const ChatPrompts> chat, load_chat(loaded, options.model));
  const WeightVersion version{static_cast<uint64_t>(options.weight_version)};
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ServedJournal> journal, open_journal(options, mark_of(options, *loaded.model, version)));
  ServedRollouts rollouts({.bytes_max = static_cast<size_t>(options.kept_bytes)}, std::move(journal));
  SEER_ASSIGN_OR_RETURN(std::vector<ServedWork> left, rollouts.restore());

  SlowWork aside({}, [](std::function<void()>& f) { f(); });
  SeerConfig actors(kActorThreads);
  rt::system system(actors);
  Fleet fleet(system, FleetLinks{}, log);
  SEER_ASSIGN_OR_RETURN(NodeMakers makers, make_local_makers(options, options.nodes, loaded, aside));
  const auto loader = std::make_shared<ModelLoader>();  // of all engines, which so read new weights once
  makers.make_engine = [&options, &loaded, loader](InstanceId id) -> Result<std::shared_ptr<Engine>> {
    CpuEngineConfig engine = engine_config(options, id);
    engine.loader = loader;
    SEER_ASSIGN_OR_RETURN(std::shared_ptr<Engine> made, make_cpu_engine(loaded.model, engine));
    return made;
  };
  SEER_RETURN_IF_ERROR(fleet.start_nodes(fleet_config(options, options.nodes, options.max_batch),
                                         std::make_shared<const NodeMakers>(std::move(makers))));

  const auto folder = std::filesystem::weakly_canonical(options.model);
  const auto door = std::make_shared<GatewayDoor>();
  Front front(*server, door,
              {.name = options.served_name.empty() ? folder.filename().string() : options.served_name,
               .folder = folder.string(),
               .config = loaded.model->config,
               .tokenizer = loaded.tokenizer,
               .tokens_max = tokens_max(options, loaded.model->config),
               .seed = options.seed,
               .instances = options.instances},
              version);
  GatewayConfig config{.rollout = {.scheduler = options.scheduler, .instances_expected = static_cast<size_t>(options.instances)},
                       .version = version};
  const GatewayFleet machines{
      .start_rollout = [&fleet](const RolloutConfig& c, const RolloutEvents& events) { return fleet.start_rollout(c, {}, events); },
      .end_rollout = [&fleet](RolloutId id) { fleet.end_rollout(id); },
      .update_weights =
          [&fleet, nodes = static_cast<size_t>(options.nodes)](const NewWeights& weights, const WeightsSink& reply_to) {
            fleet.update_weights(weights, reply_to);
            return nodes;
          }};
  SglangDialect sglang(front);
  OpenaiDialect openai(front, chat);
  NativeDialect native(front, std::move(chat), rollouts);
  if (!left.empty()) {
    int64_t tokens = 0;
    for (const ServedWork& group : left)
      for (const CommittedTokens& part : group.begun) tokens += std::ssize(part.tokens);
    log.info(rt::now_us(&system), "rollouts_resumed", {{"groups", left.size()}, {"tokens", tokens}});
  }
  native.resume(std::move(left), version);
  const auto marks = std::make_shared<NewMarks>();
  front.on_updated([&options, &loaded, loader, marks](const NewWeights& weights) {
    // The engines hold the model, so nothing is read for its checksum.
    loader->load(weights.folder, weights.version, loaded.model, [&options, marks, version = weights.version](const auto& model) {
      if (model.ok()) marks->put(mark_of(options, **model, version));
    });
  });
  const ServerScope server_scope{server};
  const GatewayScope gateway{system, rt::spawn<GatewayActor>(system, std::move(config), machines, front.client(), door, log)};
  server->start([&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/health" || request.path == "/health_generate" || request.path == "/") return reply->send(200, "{}");
    if (sglang.handle(request, reply) || openai.handle(request, reply) || native.handle(request, reply)) return;
    reply->send(404, http_error_body(cat("no ", request.method, " ", request.path, " here")));
  });
  std::cout << "seer serves " << front.model().name << " at http" << (options.tls_cert.empty() ? "" : "s") << "://" << listen.host << ":"
            << server->port() << std::endl;

  rt::Inbox<> inbox(system);
  KeepRollouts keep{*server, rollouts, *marks, log};
  while (!stop.load()) {
    inbox.receive(kLookUs, [](const rt::down&) {});
    keep.look(rt::now_us(&system));
  }
  server->stop_listening();
  log.info(rt::now_us(&system), "draining", {{"connections", server->connections()}});
  const auto open = std::make_shared<std::atomic<size_t>>(1);
  for (const int64_t until = rt::now_us(&system) + kDrainUs; *open > 0 && rt::now_us(&system) < until;) {
    server->post([open, &front] { *open = front.open_calls(); });
    inbox.receive(kLookUs, [](const rt::down&) {});
  }
  return {};
}

}  // namespace seer
