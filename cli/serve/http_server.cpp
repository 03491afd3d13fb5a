#include "cli/serve/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <charconv>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "cli/json_lines.h"
#include "cli/secret_file.h"
#include "cli/serve/http_session.h"
#include "protocols/workers.h"

namespace seer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

class Server final : public HttpServer {
 public:
  explicit Server(HttpServerConfig config) : sessions_(std::move(config)), acceptor_(sessions_.context), pause_(sessions_.context) {}
  ~Server() override {
    if (thread_.joinable()) {
      post([this] {
        error_code ignored;
        acceptor_.close(ignored);
        pause_.cancel();
        const auto open = sessions_.open;
        for (const auto& session : open) session->close();
        work_.reset();
      });
      thread_.join();
    }
  }

  Status open() {
    const HttpServerConfig& config = sessions_.config;
    if (!config.tls_cert.empty()) {
      SEER_RETURN_IF_ERROR(check_readable("--tls-cert", config.tls_cert));
      SEER_RETURN_IF_ERROR(check_readable("--tls-key", config.tls_key));
      tls_.emplace(asio::ssl::context::tls_server);
      error_code error;
      tls_->use_certificate_chain_file(config.tls_cert, error);
      if (error) return fail(Code::kInvalidArgument, "--tls-cert ", config.tls_cert, ": ", error.message(), ": expected a PEM certificate");
      tls_->use_private_key_file(config.tls_key, asio::ssl::context::pem, error);
      if (error) return fail(Code::kInvalidArgument, "--tls-key ", config.tls_key, ": ", error.message(), ": expected the PEM key of ", config.tls_cert);
    }
    error_code error;
    tcp::resolver resolver(sessions_.context);
    const auto found = resolver.resolve(config.host, std::to_string(config.port), tcp::resolver::passive, error);
    if (error || found.empty()) return fail(Code::kInvalidArgument, "host \"", config.host, "\": ", error.message());
    const tcp::endpoint at = *found.begin();
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return fail(Code::kUnavailable, "cannot listen at ", config.host, ":", config.port, ": ", error.message());
    port_ = acceptor_.local_endpoint(error).port();
    sessions_.is_loopback = at.address().is_loopback();
    return {};
  }

  uint16_t port() const override { return port_; }
  void start(HttpHandler handler) override {
    sessions_.handler = std::move(handler);
    sessions_.watcher = std::move(watcher_);
    sessions_.open_upload = std::move(open_upload_);
    accept();
    thread_ = std::thread([this] { sessions_.context.run(); });
    ::pthread_setname_np(thread_.native_handle(), "seer.http");  // for `top -H`
  }
  void post(std::function<void()> work) override { asio::post(sessions_.context, std::move(work)); }
  void put_aside(std::function<void()> work) override { aside_.put(std::move(work)); }
  void stop_listening() override {
    post([this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
  }
  size_t connections() const override { return sessions_.count; }
  size_t unsent() const override {
    return static_cast<size_t>(std::ranges::count_if(sessions_.open, [](const auto& session) { return session->has_unsent(); }));
  }

 private:
  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {  // no descriptors are left, most likely: some will be
        pause_.expires_after(std::chrono::milliseconds(50));
        return pause_.async_wait([this](error_code cancelled) {
          if (!cancelled) accept();
        });
      }
      if (sessions_.open.size() < sessions_.config.connections_max) {
        const auto session = tls_ ? make_session(sessions_, std::move(socket), *tls_) : make_session(sessions_, std::move(socket));
        sessions_.add(session);
        session->start();
      }
      accept();
    });
  }

  HttpSessions sessions_;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_{asio::make_work_guard(sessions_.context)};
  std::optional<asio::ssl::context> tls_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  uint16_t port_ = 0;
  std::thread thread_;
  Workers<std::function<void()>> aside_{{}, [](std::function<void()>& work) { work(); }};  // last: it ends before what it posts to
};

}  // namespace

std::string decode_percent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string http_error_body(std::string_view message, int status) {
  return cat("{\"error\":{\"message\":", json_string(message), ",\"type\":\"", status < 500 ? "invalid_request_error" : "server_error",
             "\",\"param\":null,\"code\":null}}");
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpServerConfig& config) {
  auto server = std::make_unique<Server>(config);
  SEER_RETURN_IF_ERROR(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace seer
