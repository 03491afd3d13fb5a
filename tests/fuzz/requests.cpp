// Requests as the dialects of `seer serve` get them: Seer's own, SGLang's and OpenAI's, with a real tokenizer and chat template.
// An input is one request or several, with a zero byte between; the first line of each is its method and target, the rest its body:
// "POST /v1/completions\n{...}". The front has no gateway: requests are read but not run. Then the first responses are given as a
// gateway would give them.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/chat_prompts.h"
#include "cli/serve/native_dialect.h"
#include "cli/serve/openai_dialect.h"
#include "cli/serve/served_rollouts.h"
#include "cli/serve/sglang_dialect.h"

namespace seer {
// The front's calls of the gateway are put behind its door, where nobody takes them: only their names are needed.
void GatewayActor::submit(GatewayRequest) { std::abort(); }
void GatewayActor::cancel(Ticket) { std::abort(); }
int64_t GatewayActor::abort(const std::string&) { std::abort(); }
int64_t GatewayActor::abort(const std::set<Ticket>&) { std::abort(); }
void GatewayActor::pause(InFlight, std::function<void()>) { std::abort(); }
void GatewayActor::go_on() { std::abort(); }
void GatewayActor::update_weights(WeightsOrder) { std::abort(); }
Status GatewayActor::flush() { std::abort(); }
GatewayLoads GatewayActor::loads() const { std::abort(); }
void GatewayActor::report(std::function<void(GatewayReport)>) const { std::abort(); }
}  // namespace seer

using namespace seer;
namespace fs = std::filesystem;

namespace {

class NoServer final : public HttpServer {
 public:
  uint16_t port() const override { return 0; }
  void start(HttpHandler) override {}
  void post(std::function<void()> work) override { work(); }
  void stop_listening() override {}
  size_t connections() const override { return 0; }
};

/// A client that goes away in the end.
class Client final : public HttpReply {
 public:
  void send(int, std::string body, std::string_view) override { write(body); }
  void begin(std::string_view) override {}
  void write(std::string_view part) override { bytes_ += part.size(); }
  void end() override { is_over_ = true; }
  void on_gone(std::function<void()> gone) override { gone_ = std::move(gone); }
  bool has_room() const override { return true; }
  void on_room(std::function<void()>) override {}
  void go() {
    if (gone_ && !is_over_) gone_();
    gone_ = {};
  }

 private:
  std::function<void()> gone_;
  size_t bytes_ = 0;
  bool is_over_ = false;
};

const fs::path kRoot = SEER_SOURCE_DIR;

ServedModel served_model() {
  ServedModel model;
  model.name = "tiny";
  model.config.vocab_size = 500;
  model.config.context_tokens_max = model.tokens_max = 4096;
  model.config.eos_ids = {1};
  model.tokenizer = load_tokenizer(kRoot / "tests/gpu/data/text/qwen_like").value();
  return model;
}

/// ChatPrompts reads a model's folder: one with a template of the tests, for as long as it takes.
std::shared_ptr<const ChatPrompts> load_chat(std::shared_ptr<const Tokenizer> tokenizer) {
  std::string folder = (fs::temp_directory_path() / "seer-fuzz-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) std::abort();
  fs::copy_file(kRoot / "tests/oracle/chat_templates/chatml_tools.jinja", fs::path(folder) / "chat_template.jinja");
  auto chat = ChatPrompts::load(folder, std::move(tokenizer)).value();
  fs::remove_all(folder);
  return chat;
}

/// As HttpServer gives it to a dialect.
HttpRequest request_of(std::string_view text) {
  const size_t line_end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, line_end);
  const size_t space = std::min(line.find(' '), line.size());
  const std::string_view target = line.substr(std::min(space + 1, line.size()));
  const size_t mark = target.find('?');
  HttpRequest request{.method = std::string(line.substr(0, space)), .path = std::string(target.substr(0, mark)), .query = {},
                      .body = std::string(text.substr(std::min(line_end + 1, text.size())))};
  if (mark == target.npos) return request;
  for (std::string_view rest = target.substr(mark + 1); !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    request.query[decode_percent(pair.substr(0, equals))] = equals == pair.npos ? "" : decode_percent(pair.substr(equals + 1));
  }
  return request;
}

Response response_of(int32_t first) {
  Response response;
  response.output.ids = {first, first + 1, 1};
  response.output.logprobs = {-0.5f, -1.0f, -0.25f};
  response.finish = FinishReason::kStop;
  response.version = WeightVersion{3};
  return response;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ServedModel model = served_model();
  static const std::shared_ptr<const ChatPrompts> chat = load_chat(model.tokenizer);
  NoServer server;
  const auto door = std::make_shared<GatewayDoor>();
  Front front(server, door, model, WeightVersion{3});
  ServedRollouts rollouts({.bytes_max = 4 << 20, .responses_max = 10'000});
  SglangDialect sglang(front);
  OpenaiDialect openai(front, chat);
  NativeDialect native(front, chat, rollouts);
  std::vector<std::shared_ptr<Client>> clients;
  for (std::string_view rest(reinterpret_cast<const char*>(data), size); !rest.empty() && clients.size() < 8;) {
    const std::string_view one = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    HttpRequest request = request_of(one);
    clients.push_back(std::make_shared<Client>());
    if (!sglang.handle(request, clients.back()) && !openai.handle(request, clients.back())) native.handle(request, clients.back());
  }
  const GatewayClient gateway = front.client();
  for (uint64_t ticket = 1; ticket <= 4; ++ticket) gateway.response(Ticket{ticket}, 0, response_of(static_cast<int32_t>(ticket) * 50));
  for (const auto& client : clients) client->go();
  (void)door->take();
  return 0;
}
