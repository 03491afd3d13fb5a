#include "cli/serve/serve_command.h"

#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "actors/gateway_actor.h"
#include "cli/cluster_access.h"
#include "cli/cluster_machines.h"
#include "cli/engine_source.h"
#include "cli/file_limit.h"
#include "cli/json_lines.h"
#include "cli/machine_parts.h"
#include "cli/secret_file.h"
#include "cli/serve/front.h"
#include "cli/serve/http_server.h"
#include "cli/serve/native_dialect.h"
#include "cli/serve/openai_dialect.h"
#include "cli/serve/request_fields.h"
#include "cli/serve/routed_servers.h"
#include "cli/serve/router_dialect.h"
#include "cli/serve/served_machines.h"
#include "cli/serve/served_rollouts.h"
#include "cli/serve/sglang_dialect.h"
#include "cli/serve/status_page.h"
#include "cli/serve/weight_uploads.h"
#include "cli/serve/weights_receiver.h"
#include "gpu/model/model_config.h"
#include "gpu/model/model_folder.h"

namespace seer {
namespace {

constexpr int64_t kLookUs = 50'000;       // between two checks of the stop flag
constexpr int64_t kSampleUs = 1'000'000;  // between two samples of the history on the status page
constexpr int64_t kTickUs = 200'000;      // between two checks whether streams of rollouts want progress
constexpr int64_t kSyncUs = 1'000'000;    // between two syncs of the journal to disk

/// As transformers and SGLang call it.
constexpr const char* dtype_name(TensorType type) { return type == TensorType::kF32 ? "float32" : type == TensorType::kF16 ? "float16" : "bfloat16"; }

/// Not in a cluster or on servers of others.
bool runs_here(const ServeOptions& options) { return options.cluster.empty() && options.router.engines.empty(); }

/// Tokens of prompt and output together that the KV cache of one instance holds.
int64_t tokens_max(const ServeOptions& options, const ModelConfig& model) {
  const int64_t block_bytes = kv_block_bytes_of(options, model);
  return options.kv_bytes / block_bytes * options.block_tokens;
}

/// Loads no weights if the requests run elsewhere.
Result<LoadedModel> load_served(const ServeOptions& options) {
  if (runs_here(options)) {
    SEER_RETURN_IF_ERROR(check_memory_to_stay(options, options.nodes, find_memory()));
    return load_model_of(options);
  }
  SEER_RETURN_IF_ERROR(check_model_folder(options.model, ModelFiles::kWithoutWeights));
  LoadedModel loaded;
  SEER_ASSIGN_OR_RETURN(loaded.tokenizer, load_tokenizer_of(options));
  return loaded;
}

/// What config.json calls the type of the weights, where it is one that Seer computes with; else "bfloat16".
std::string configured_dtype(const std::filesystem::path& folder) {
  const Result<std::string> text = read_text_file(folder / "config.json", kConfigBytesMax);
  const Json config = text.ok() ? Json::parse(*text, nullptr, false) : Json();
  for (const char* const field : {"dtype", "torch_dtype"}) {  // the second: before transformers 4.56
    const Json* const value = config.is_object() ? given_field(config, field) : nullptr;
    for (const TensorType type : {TensorType::kBf16, TensorType::kF16, TensorType::kF32})
      if (value != nullptr && *value == dtype_name(type)) return dtype_name(type);
  }
  return dtype_name(TensorType::kBf16);
}

/// Of the weights as stored. New ones must have the same. Where they run elsewhere, nobody here has read them.
std::string stored_dtype(const LoadedModel& loaded, const std::string& folder) {
  const std::shared_ptr<const Model> model = loaded.model();
  return model == nullptr ? configured_dtype(folder) : dtype_name(model->matrix_type);
}

/// Null: the model has no chat template, or no tokenizer.
Result<std::shared_ptr<const ChatPrompts>> load_chat(const LoadedModel& loaded, const std::string& folder) {
  if (loaded.tokenizer == nullptr) return std::shared_ptr<const ChatPrompts>();
  auto chat = ChatPrompts::load(folder, loaded.tokenizer);
  if (!chat.ok() && chat.error().code == Code::kNotFound) return std::shared_ptr<const ChatPrompts>();
  return chat;
}

/// Null without --journal.
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
/// Periodic work for what outlives single requests, on the main thread.
struct KeepStreams {
  HttpServer& server;
  ServedRollouts& rollouts;
  NativeDialect& native;
  WeightsReceiver& receiver;
  const EventLog& log;
  int64_t ticked_us = 0, synced_us = 0;
  bool sync_fails = false;
  std::shared_ptr<bool> journal_fails = std::make_shared<bool>(false);  // of the server's thread
  void look(int64_t now_us) {
    if (now_us - ticked_us >= kTickUs) {
      ticked_us = now_us;
      server.post([&to = rollouts, &runs = native, &weights = receiver, &events = log, fails = journal_fails, now_us] {
        runs.tick(now_us);
        weights.tick(now_us);
        to.tick(now_us);
        tell(to.journal_failed(), *fails, events, now_us);
      });
    }
    if (now_us - synced_us < kSyncUs) return;
    synced_us = now_us;
    tell(rollouts.sync(), sync_fails, log, now_us);
  }
  /// Logs when something begins to fail, and when it works again.
  static void tell(const Status& status, bool& fails, const EventLog& log, int64_t now_us) {
    if (fails == !status.ok()) return;
    fails = !status.ok();
    if (fails)
      log.warn(now_us, "journal_failed", {{"error", status.error().detail}});
    else
      log.info(now_us, "journal_works");
  }
};
/// Ends the server's thread with its scope: until then it calls the front.
struct ServerScope {
  std::unique_ptr<HttpServer>& server;
  ~ServerScope() { server.reset(); }
};

}  // namespace

Status serve_command(const ServeOptions& given, const std::atomic<bool>& stop) {
  ServeOptions options = given;
  raise_file_limit();
  SEER_ASSIGN_OR_RETURN(const EventLog log, EventLog::open(options.log));
  const size_t connections_max = connections_that_fit(static_cast<size_t>(options.connections));
  SEER_ASSIGN_OR_RETURN(const HostPort listen, parse_host_port("--listen", options.listen, true));
  SEER_ASSIGN_OR_RETURN(std::string token, read_secret_file("--token-file", options.token_file));
  // A port in use is found out before a model is loaded.
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server,
                        HttpServer::listen({.host = listen.host,
                                            .port = listen.port,
                                            .tls_cert = options.tls_cert,
                                            .tls_key = options.tls_key,
                                            .token = std::move(token),
                                            .body_bytes_max = static_cast<uint64_t>(options.body_bytes),
                                            .connections_max = connections_max}));
  if (runs_here(options)) SEER_RETURN_IF_ERROR(choose_instances(options, options.nodes));
  SEER_ASSIGN_OR_RETURN(const LoadedModel loaded, load_served(options));
  if (runs_here(options)) SEER_RETURN_IF_ERROR(choose_kv_bytes(options, *loaded.model(), true));
  SEER_ASSIGN_OR_RETURN(const ModelConfig model, read_model_config(options.model));
  SEER_ASSIGN_OR_RETURN(std::shared_ptr<const ChatPrompts> chat, load_chat(loaded, options.model));

  const auto door = std::make_shared<GatewayDoor>();
  SEER_ASSIGN_OR_RETURN(const std::unique_ptr<ServedMachines> machines, ServedMachines::open(options, loaded, door, log, stop));
  rt::system& system = machines->system();
  if (connections_max < static_cast<size_t>(options.connections))  // see `ulimit -n`
    log.info(rt::now_us(&system), "fewer_connections", {{"asked", options.connections}, {"most", connections_max}});
  const auto folder = std::filesystem::weakly_canonical(options.model);
  const std::string name = options.served_name.empty() ? folder.filename().string() : options.served_name;
  const auto mark = [name, is = model_identity(options.model, model, loaded.tokenizer.get())](WeightVersion version, uint64_t weights) {
    return ServedModelMark{.model = name, .weights = weights, .version = version, .endings = is.endings, .tokenizer = is.tokenizer};
  };
  GatewayConfig config = machines->gateway_config();
  SEER_ASSIGN_OR_RETURN(std::unique_ptr<ServedJournal> journal, open_journal(options, mark(config.version, machines->weights())));
  ServedRollouts rollouts({.bytes_max = static_cast<size_t>(options.kept_bytes)}, std::move(journal));
  SEER_ASSIGN_OR_RETURN(std::vector<ServedWork> left, rollouts.restore());
  Front front(*server, door,
              {.name = name,
               .folder = folder.string(),
               .config = model,
               .tokenizer = loaded.tokenizer,
               .dtype = stored_dtype(loaded, options.model),
               .tokens_max = runs_here(options) ? tokens_max(options, model) : model.context_tokens_max,
               .rows_max = runs_here(options) ? options.max_batch : 0,
               .seed = options.seed,
               .instances_up = [&to = *machines] { return to.instances_up(); },
               .instances_expected = [&to = *machines] { return to.instances_expected(); },
               .server_ids = [&to = *machines] { return to.server_ids(); },
               .ranks = [to = machines->servers()] { return to == nullptr ? 1 : ranks_in_group(*to); },
               .gives_kept_ids = runs_here(options) || options.router.engines.empty()},
              config.version);
  if (machines->servers() != nullptr) front.ask_once();
  StatusPage status_page(*server, front, rollouts, log);
  SglangDialect sglang(front, options.tls_cert.empty() ? "http" : "https");
  std::optional<RouterDialect> router;
  if (machines->servers() != nullptr) router.emplace(*server, front, *machines->servers());
  OpenaiDialect openai(front, chat);
  NativeDialect native(front, std::move(chat), rollouts, log);
  WeightUploads uploads(*server, front, *machines, weight_bytes_max(loaded.model().get(), model));
  WeightsReceiver receiver(front, uploads);
  server->take_uploads([&uploads](const HttpRequest& head, std::optional<uint64_t> body_bytes) { return uploads.open(head, body_bytes); });
  if (!left.empty()) {
    int64_t tokens = 0;
    for (const ServedWork& group : left)
      for (const CommittedTokens& part : group.begun) tokens += std::ssize(part.output.ids);
    log.info(rt::now_us(&system), "rollouts_resumed", {{"groups", left.size()}, {"tokens", tokens}});
  }
  native.resume(std::move(left), config.version);
  GatewayFleet fleet = machines->gateway_fleet();
  fleet.weights_are = [inform = fleet.weights_are, mark, &rollouts, &to = *server](const ClusterWeights& weights) {
    if (inform) inform(weights);
    to.post([&rollouts, now = mark(weights.what.version, weights.what.weights)] { rollouts.set_mark(now); });
  };
  const ServerScope server_scope{server};
  const GatewayScope gateway{system, rt::spawn<GatewayActor>(system, std::move(config), std::move(fleet), front.client(), door, log)};
  server->start([&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/health_generate" && machines->instances_up() == 0) return reply->send(503, http_error_body("no instance is up", 503));
    if (request.path == "/health" || request.path == "/health_generate") return reply->send(200, "{}");
    if (status_page.handle(request, reply)) return;
    if (router && router->handle(request, reply)) return;
    if (!router && receiver.handle(request, reply)) return;
    if (sglang.handle(request, reply) || openai.handle(request, reply) || native.handle(request, reply)) return;
    reply->send(404, http_error_body(cat("no ", shown(request.method), " ", shown(request.path), " here")));
  });
  std::cout << "seer serves " << front.model().name << " at http" << (options.tls_cert.empty() ? "" : "s") << "://"
            << address_text(listen.host, server->port()) << std::endl;

  rt::Inbox<> inbox(system);
  KeepStreams keep{*server, rollouts, native, receiver, log};
  Status ended;
  int64_t sampled_us = 0;
  const auto look = [&] {
    inbox.receive(kLookUs, [](const rt::down&) {});
    if (ended.ok()) ended = machines->follow();
    const int64_t now = rt::now_us(&system);
    keep.look(now);
    if (now - sampled_us < kSampleUs) return;
    sampled_us = now;
    status_page.sample();
  };
  while (!stop.load() && ended.ok()) look();
  server->stop_listening();
  log.info(rt::now_us(&system), "draining", {{"connections", server->connections()}});
  const auto open = std::make_shared<std::atomic<size_t>>(1);
  for (const int64_t until = rt::now_us(&system) + kDrainUs; *open > 0 && rt::now_us(&system) < until;) {
    door->put([](GatewayActor& to) { to.drain(); });  // also requests that come on open connections
    server->post([open, &front, &server = *server] { *open = front.open_calls() + server.unsent(); });
    look();
  }
  return ended;
}

}  // namespace seer
