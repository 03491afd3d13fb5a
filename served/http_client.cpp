#include "served/http_client.h"

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace seer {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kPartBytes = 64 << 10;
constexpr size_t kIdleMax = 64;  // kept connections of an address

std::string key_of(const HttpAddress& to) { return cat(to.host, ":", to.port); }

}  // namespace

Result<HttpAddress> parse_http_address(const std::string& text) {
  std::string_view rest = text;
  if (rest.starts_with("https://")) return fail(Code::kInvalidArgument, text, ": https is not supported, expected http://HOST:PORT");
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t colon = rest.rfind(':');
  HttpAddress address;
  const std::string_view port = colon == std::string_view::npos ? "" : rest.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (colon == 0 || port.empty() || error != std::errc() || end != port.data() + port.size() || address.port == 0)
    return fail(Code::kInvalidArgument, text, ": expected http://HOST:PORT");
  address.host = rest.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']')) address.host = address.host.substr(1, address.host.size() - 2);
  return address;
}

/// All but start(), cancel() and post() runs on the thread.
struct HttpClient::Loop {
  /// A connection, with what one answer after the other is read into.
  struct Link {
    explicit Link(asio::io_context& context) : stream(context) {}
    beast::tcp_stream stream;
    beast::flat_buffer buffer;
  };
  struct Call : std::enable_shared_from_this<Call> {
    Call(Loop& loop_in, CallId id_in, HttpAddress to_in, HttpAsk ask, HttpTimes times_in, HttpListener listener_in)
        : loop(loop_in), id(id_in), to(std::move(to_in)), times(times_in), listener(std::move(listener_in)), resolver(loop_in.context) {
      request.method_string(ask.method);
      request.target(ask.target);
      request.version(11);
      request.set(http::field::host, key_of(to));
      if (!to.token.empty()) request.set(http::field::authorization, "Bearer " + to.token);
      if (!ask.body.empty()) request.set(http::field::content_type, "application/json");
      request.body() = std::move(ask.body);
      if (request.method() != http::verb::get) request.prepare_payload();
    }

    void begin() {
      auto& idle = loop.idle[key_of(to)];
      if (is_fresh || idle.empty()) return resolve();
      link = std::move(idle.back());
      idle.pop_back();
      send();
    }

    void resolve() {
      is_fresh = true;
      link = std::make_unique<Link>(loop.context);
      error_code no_number;
      const auto literal = asio::ip::make_address(to.host, no_number);
      if (!no_number) return connect(std::vector<tcp::endpoint>{{literal, to.port}});
      resolver.async_resolve(to.host, std::to_string(to.port), [self = shared_from_this()](error_code error, const tcp::resolver::results_type& found) {
        if (self->is_over) return;
        if (error) return self->fail_with(cat("its host cannot be resolved: ", error.message()));
        std::vector<tcp::endpoint> points;
        for (const auto& entry : found) points.push_back(entry.endpoint());
        self->connect(std::move(points));
      });
    }

    void connect(std::vector<tcp::endpoint> to_ends) {
      ends = std::move(to_ends);
      link->stream.expires_after(std::chrono::microseconds(times.connect_us));
      link->stream.async_connect(ends, [self = shared_from_this()](error_code error, const tcp::endpoint&) {
        if (self->is_over) return;
        if (error) return self->fail_with(cat("it cannot be reached: ", error.message()));
        self->link->stream.socket().set_option(tcp::no_delay(true), error);
        self->send();
      });
    }

    void send() {
      parser.emplace();
      parser->body_limit(std::numeric_limits<uint64_t>::max());  // of Beast 1.74, boost::none refuses every body
      link->stream.expires_after(std::chrono::microseconds(times.silence_us));
      http::async_write(link->stream, request, [self = shared_from_this()](error_code error, size_t) {
        if (self->is_over) return;
        if (error) return self->broken(error);
        self->read_head();
      });
    }

    void read_head() {
      http::async_read_header(link->stream, link->buffer, *parser, [self = shared_from_this()](error_code error, size_t) {
        if (self->is_over) return;
        if (error) return self->broken(error);
        const auto& head = self->parser->get();
        const auto type = head[http::field::content_type];
        self->listener.head(static_cast<int>(head.result_int()), std::string_view(type.data(), type.size()));
        if (!self->is_over) self->read_body();
      });
    }

    void read_body() {
      if (parser->is_done()) return finish();
      parser->get().body().data = part.data();
      parser->get().body().size = part.size();
      link->stream.expires_after(std::chrono::microseconds(times.silence_us));
      http::async_read_some(link->stream, link->buffer, *parser, [self = shared_from_this()](error_code error, size_t) {
        if (self->is_over) return;
        if (error == http::error::need_buffer) error = {};
        if (error) return self->fail_with(error == beast::error::timeout ? cat("it was silent for ", self->times.silence_us / 1'000'000, " s") : cat("its answer broke off: ", error.message()));
        const size_t bytes = self->part.size() - self->parser->get().body().size;
        if (bytes > 0) self->listener.body({self->part.data(), bytes});
        if (!self->is_over) self->read_body();
      });
    }

    /// Before any of the answer came.
    void broken(error_code error) {
      if (!is_fresh) return is_fresh = true, begin();
      fail_with(error == beast::error::timeout ? cat("it was silent for ", times.silence_us / 1'000'000, " s") : cat("it closed the connection: ", error.message()));
    }

    void finish() {
      auto& idle = loop.idle[key_of(to)];
      if (parser->get().keep_alive() && link->buffer.size() == 0 && idle.size() < kIdleMax) {
        link->stream.expires_never();
        idle.push_back(std::move(link));
      }
      over({});
    }
    void fail_with(std::string why) { over(fail(Code::kUnavailable, why)); }
    void over(Status status) {
      const auto self = shared_from_this();
      drop();
      listener.end(std::move(status));
    }
    /// Ends it without a word.
    void drop() {
      is_over = true;
      if (link) link->stream.close();
      loop.calls.erase(id);
    }

    Loop& loop;
    const CallId id;
    const HttpAddress to;
    const HttpTimes times;
    HttpListener listener;
    tcp::resolver resolver;
    std::vector<tcp::endpoint> ends;
    std::unique_ptr<Link> link;
    http::request<http::string_body> request;
    std::optional<http::response_parser<http::buffer_body>> parser;
    std::vector<char> part = std::vector<char>(kPartBytes);
    bool is_fresh = false;  // its connection is a new one
    bool is_over = false;
  };

  asio::io_context context;
  asio::executor_work_guard<asio::io_context::executor_type> keep{context.get_executor()};
  std::atomic<CallId> last_call{0};
  std::unordered_map<CallId, std::shared_ptr<Call>> calls;
  std::map<std::string, std::vector<std::unique_ptr<Link>>> idle;
  std::thread thread{[this] { context.run(); }};
};

HttpClient::HttpClient() : loop_(std::make_unique<Loop>()) {}

HttpClient::~HttpClient() {
  loop_->context.stop();
  loop_->thread.join();
}

HttpClient::CallId HttpClient::start(const HttpAddress& to, HttpAsk ask, HttpTimes times, HttpListener listener) {
  const CallId id = ++loop_->last_call;
  auto call = std::make_shared<Loop::Call>(*loop_, id, to, std::move(ask), times, std::move(listener));
  asio::post(loop_->context, [call = std::move(call)] {
    call->loop.calls.emplace(call->id, call);
    call->begin();
  });
  return id;
}

void HttpClient::cancel(CallId id) {
  asio::post(loop_->context, [this, id] {
    const auto call = loop_->calls.find(id);
    if (call == loop_->calls.end()) return;
    const auto kept = call->second;
    kept->drop();
  });
}

void HttpClient::ask(const HttpAddress& to, HttpAsk what, HttpTimes times, std::function<void(HttpAnswer)> then) {
  const auto answer = std::make_shared<HttpAnswer>();
  start(to, std::move(what), times,
        {.head = [answer](int status, std::string_view) { answer->status = status; },
         .body = [answer](std::string_view part) {
           if (answer->body.size() + part.size() <= kAskedBytesMax) answer->body += part;
         },
         .end = [answer, then = std::move(then)](const Status& status) {
           if (!status.ok()) *answer = {0, status.error().detail};
           then(std::move(*answer));
         }});
}

void HttpClient::post(std::function<void()> f) { asio::post(loop_->context, std::move(f)); }

}  // namespace seer
