#include "served/http_client.h"

#include <openssl/x509v3.h>

#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <filesystem>
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
/// The CAs that RHEL, Fedora and SUSE trust. The OpenSSL of a bundle looks where Debian has them.
constexpr const char* kOtherCas[] = {"/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"};

/// "a:30000", with an IPv6 address in brackets.
std::string host_port(const HttpAddress& to) {
  const bool is_v6 = to.host.find(':') != std::string::npos;
  return cat(is_v6 ? "[" : "", to.host, is_v6 ? "]" : "", ":", to.port);
}

}  // namespace

std::string url_of(const HttpAddress& address) { return cat(address.is_tls ? "https://" : "http://", host_port(address)); }

Result<HttpAddress> parse_http_address(const std::string& text) {
  std::string_view rest = text;
  HttpAddress address;
  address.is_tls = rest.starts_with("https://");
  if (rest.starts_with("http://") || address.is_tls) rest.remove_prefix(address.is_tls ? 8 : 7);
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t colon = rest.rfind(':');
  const std::string_view port = colon == std::string_view::npos ? "" : rest.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (colon == 0 || port.empty() || error != std::errc() || end != port.data() + port.size() || address.port == 0)
    return fail(Code::kInvalidArgument, text, ": expected http://HOST:PORT or https://HOST:PORT");
  address.host = rest.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']')) address.host = address.host.substr(1, address.host.size() - 2);
  return address;
}

/// All but start(), cancel() and post() runs on the thread.
struct HttpClient::Loop {
  /// A connection, with what one answer after the other is read into.
  struct Link {
    /// `tls` null: without.
    Link(asio::io_context& context, asio::ssl::context* tls) : stream(context) {
      if (tls != nullptr) secure.emplace(stream, *tls);
    }
    /// Calls use() with what is written to and read from.
    template <class Use>
    void with_stream(Use&& use) {
      if (secure) use(*secure);
      else use(stream);
    }
    beast::tcp_stream stream;
    std::optional<asio::ssl::stream<beast::tcp_stream&>> secure;  // over `stream`
    beast::flat_buffer buffer;
  };
  struct Call : std::enable_shared_from_this<Call> {
    Call(Loop& loop_in, CallId id_in, HttpAddress to_in, HttpAsk ask, HttpTimes times_in, HttpListener listener_in)
        : loop(loop_in), id(id_in), to(std::move(to_in)), times(times_in), listener(std::move(listener_in)), resolver(loop_in.context) {
      request.method_string(ask.method);
      request.target(ask.target);
      request.version(11);
      request.set(http::field::host, host_port(to));
      if (!to.token.empty()) request.set(http::field::authorization, "Bearer " + to.token);
      if (!ask.body.empty()) request.set(http::field::content_type, "application/json");
      request.body() = std::move(ask.body);
      if (request.method() != http::verb::get) request.prepare_payload();
    }

    void begin() {
      auto& idle = loop.idle[url_of(to)];
      if (is_fresh || idle.empty()) return resolve();
      link = std::move(idle.back());
      idle.pop_back();
      send();
    }

    void resolve() {
      is_fresh = true;
      link = std::make_unique<Link>(loop.context, to.is_tls ? &loop.trusting() : nullptr);
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
        if (error) {
          self->loop.idle.erase(url_of(self->to));
          return self->fail_with(cat("it cannot be reached: ", error.message()));
        }
        self->link->stream.socket().set_option(tcp::no_delay(true), error);
        self->link->secure ? self->shake_hands() : self->send();
      });
    }

    void shake_hands() {
      SSL* const tls = link->secure->native_handle();
      X509_VERIFY_PARAM* const expected = SSL_get0_param(tls);
      error_code no_number;
      asio::ip::make_address(to.host, no_number);
      if (no_number) SSL_set_tlsext_host_name(tls, to.host.c_str());
      const bool is_set = no_number ? X509_VERIFY_PARAM_set1_host(expected, to.host.c_str(), 0) == 1 : X509_VERIFY_PARAM_set1_ip_asc(expected, to.host.c_str()) == 1;
      if (!is_set) return fail_with("its host cannot be a certificate's");
      link->stream.expires_after(std::chrono::microseconds(times.connect_us));
      link->secure->async_handshake(asio::ssl::stream_base::client, [self = shared_from_this()](error_code error) {
        if (self->is_over) return;
        if (!error) return self->send();
        const long verified = SSL_get_verify_result(self->link->secure->native_handle());
        self->fail_with(verified != X509_V_OK ? cat("its certificate is not trusted: ", X509_verify_cert_error_string(verified)) : cat("it does not speak TLS: ", error.message()));
      });
    }

    void send() {
      parser.emplace();
      parser->body_limit(std::numeric_limits<uint64_t>::max());  // of Beast 1.74, boost::none refuses every body
      link->stream.expires_after(std::chrono::microseconds(times.silence_us));
      link->with_stream([&](auto& stream) {
        http::async_write(stream, request, [self = shared_from_this()](error_code error, size_t) {
          if (self->is_over) return;
          if (error) return self->broken(error);
          self->read_head();
        });
      });
    }

    void read_head() {
      link->with_stream([&](auto& stream) {
        http::async_read_header(stream, link->buffer, *parser, [self = shared_from_this()](error_code error, size_t) {
          if (self->is_over) return;
          if (error) return self->broken(error);
          const auto& head = self->parser->get();
          const auto type = head[http::field::content_type];
          self->listener.head(static_cast<int>(head.result_int()), std::string_view(type.data(), type.size()));
          if (!self->is_over) self->read_body();
        });
      });
    }

    void read_body() {
      if (parser->is_done()) return finish();
      parser->get().body().data = part.data();
      parser->get().body().size = part.size();
      link->stream.expires_after(std::chrono::microseconds(times.silence_us));
      link->with_stream([&](auto& stream) {
        http::async_read_some(stream, link->buffer, *parser, [self = shared_from_this()](error_code error, size_t) {
          if (self->is_over) return;
          if (error == http::error::need_buffer) error = {};
          if (error) return self->fail_with(error == beast::error::timeout ? cat("it was silent for ", self->times.silence_us / 1'000'000, " s") : cat("its answer broke off: ", error.message()));
          const size_t bytes = self->part.size() - self->parser->get().body().size;
          if (bytes > 0) self->listener.body({self->part.data(), bytes});
          if (!self->is_over) self->read_body();
        });
      });
    }

    /// Before any of the answer came.
    void broken(error_code error) {
      if (!is_fresh && error != beast::error::timeout) return is_fresh = true, begin();  // the server had closed it
      fail_with(error == beast::error::timeout ? cat("it was silent for ", times.silence_us / 1'000'000, " s") : cat("it closed the connection: ", error.message()));
    }

    void finish() {
      auto& idle = loop.idle[url_of(to)];
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

  /// With the system's CAs, unless others were named.
  asio::ssl::context& trusting() {
    if (!tls) {
      tls.emplace(asio::ssl::context::tls_client);
      tls->set_verify_mode(asio::ssl::verify_peer);
      error_code none;  // a system without CAs trusts nobody
      tls->set_default_verify_paths(none);
      if (!std::filesystem::exists(X509_get_default_cert_file()) && !std::filesystem::exists(X509_get_default_cert_dir()))
        for (const char* const file : kOtherCas) tls->load_verify_file(file, none);
    }
    return *tls;
  }

  std::optional<asio::ssl::context> tls;  // before the connections that use it
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

Status HttpClient::trust_only(const std::string& ca_file) {
  asio::ssl::context tls(asio::ssl::context::tls_client);
  tls.set_verify_mode(asio::ssl::verify_peer);
  error_code error;
  tls.load_verify_file(ca_file, error);
  if (error) return fail(Code::kInvalidArgument, ca_file, ": ", error.message(), ": expected PEM certificates of CAs");
  loop_->tls.emplace(std::move(tls));
  return {};
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

void HttpClient::forget(const HttpAddress& to) {
  post([this, url = url_of(to)] { loop_->idle.erase(url); });
}

void HttpClient::post(std::function<void()> f) { asio::post(loop_->context, std::move(f)); }

}  // namespace seer
