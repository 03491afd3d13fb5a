#include "cli/cluster_gate.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "protocols/cluster.h"

namespace seer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using AsioError = boost::system::error_code;

constexpr std::chrono::seconds kHandshakeMax(10);
constexpr std::chrono::milliseconds kAcceptPause(100);  // after a connection that could not be accepted
constexpr size_t kConnectionsMax = 4096;  // open or in their handshake; more are closed at once
constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kGreetingBytes = 16;

using Greeting = std::array<char, kGreetingBytes>;
/// "seer/2", then zeros.
Greeting greeting() {
  Greeting bytes{};
  const std::string text = cat("seer/", kProtocolNumber);
  std::copy(text.begin(), text.end(), bytes.begin());
  return bytes;
}

std::string reason_of_openssl() {
  const unsigned long last = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(last);
  return reason != nullptr ? reason : "unknown reason";
}

/// Why the certificate of the context is not trusted; empty: it is signed by its CA and valid today.
std::string why_not_trusted(SSL_CTX* context) {
  const auto free_check = [](X509_STORE_CTX* check) { X509_STORE_CTX_free(check); };
  const std::unique_ptr<X509_STORE_CTX, decltype(free_check)> check(X509_STORE_CTX_new(), free_check);
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context), SSL_CTX_get0_certificate(context), chain);
  if (X509_verify_cert(check.get()) == 1) return {};
  return X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get()));
}

Status load(SSL_CTX* context, const TlsFiles& tls) {
  const auto wrong = [](const char* flag, const std::string& file, const auto&... what) {
    return fail(Code::kInvalidArgument, flag, " ", file, ": ", what...);
  };
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, tls.certificate.c_str()) != 1)
    return wrong("--tls-cert", tls.certificate, "expected a certificate in PEM format (", reason_of_openssl(), ")");
  if (SSL_CTX_use_PrivateKey_file(context, tls.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return wrong("--tls-key", tls.key, "expected the private key of ", tls.certificate, " in PEM format (", reason_of_openssl(), ")");
  if (SSL_CTX_load_verify_locations(context, tls.ca.c_str(), nullptr) != 1)
    return wrong("--tls-ca", tls.ca, "expected the certificate of a CA in PEM format (", reason_of_openssl(), ")");
  if (const std::string why = why_not_trusted(context); !why.empty())
    return wrong("--tls-cert", tls.certificate, "it cannot be verified with ", tls.ca, " (", why, ")");
  return {};
}

tcp::endpoint loopback(uint16_t port) { return {asio::ip::address_v4::loopback(), port}; }

using TlsStream = asio::ssl::stream<tcp::socket>;

/// A connection that passes bytes between its two sides until one of them ends. Far: TlsStream, or a plain socket.
template <class Far>
struct Pipe : std::enable_shared_from_this<Pipe<Far>> {
  Pipe(asio::io_context& io, Far far_in, std::atomic<size_t>& count_in)
      : far(std::move(far_in)), near(io), deadline(io), count(count_in) {
    ++count;
  }
  ~Pipe() { --count; }
  auto& far_socket() { return far.lowest_layer(); }

  void close_at_deadline() {
    deadline.expires_after(kHandshakeMax);
    deadline.async_wait([me = this->shared_from_this()](AsioError cancelled) {
      if (!cancelled) me->close();
    });
  }
  /// Calls then(error, whether the other side has the same protocol) once both have greeted.
  template <class Then>
  void greet(asio::ssl::stream_base::handshake_type side, Then then) {
    const auto greeted = [this, me = this->shared_from_this(), then](AsioError failed, size_t) { then(failed, theirs == ours); };
    const auto hear = [this, greeted](AsioError failed, size_t) {
      if (failed) return greeted(failed, 0);
      asio::async_read(far, asio::buffer(theirs), greeted);
    };
    const auto say = [this, hear](AsioError failed) {
      if (failed) return hear(failed, 0);
      asio::async_write(far, asio::buffer(ours), hear);
    };
    if constexpr (std::is_same_v<Far, TlsStream>)
      far.async_handshake(side, say);
    else
      say({});
  }
  void start() {
    deadline.cancel();
    AsioError ignored;
    far_socket().set_option(tcp::no_delay(true), ignored);
    near.set_option(tcp::no_delay(true), ignored);
    pump(far, near, inward);
    pump(near, far, outward);
  }
  void close() {
    AsioError ignored;
    deadline.cancel();
    near.close(ignored);
    far_socket().close(ignored);
  }

  template <class From, class To>
  void pump(From& from, To& to, std::array<char, kBufferBytes>& buffer) {
    from.async_read_some(asio::buffer(buffer), [this, me = this->shared_from_this(), &from, &to, &buffer](AsioError ended, size_t bytes) {
      if (ended) return close();
      asio::async_write(to, asio::buffer(buffer, bytes), [this, me, &from, &to, &buffer](AsioError failed, size_t) {
        if (failed) return close();
        pump(from, to, buffer);
      });
    });
  }

  Far far;           // to the other process
  tcp::socket near;  // to a port of this host
  asio::steady_timer deadline;
  std::atomic<size_t>& count;
  const Greeting ours = greeting();
  Greeting theirs{};
  std::array<char, kBufferBytes> outward, inward;
};

template <class Far>
class Gate final : public ClusterGate {
 public:
  Gate() {
    context_.set_options(asio::ssl::context::no_sslv2 | asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
    context_.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Gate() override {
    io_.stop();
    thread_.join();
  }
  SSL_CTX* context() { return context_.native_handle(); }

  Result<uint16_t> listen(const std::string& host, uint16_t port, uint16_t to_port) override;
  Result<uint16_t> connect(const std::string& host, uint16_t port) override;

 private:
  using Acceptor = std::shared_ptr<tcp::acceptor>;
  std::shared_ptr<Pipe<Far>> make_pipe() {
    if constexpr (std::is_same_v<Far, TlsStream>)
      return std::make_shared<Pipe<Far>>(io_, Far(io_, context_), connections_);
    else
      return std::make_shared<Pipe<Far>>(io_, Far(io_), connections_);
  }
  void accept(const Acceptor& acceptor, uint16_t to_port);
  void accept_later(const Acceptor& acceptor, uint16_t to_port);

  asio::ssl::context context_{asio::ssl::context::tls};
  std::atomic<size_t> connections_{0};
  asio::io_context io_;  // destroyed before the members above, with the connections that are still open
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::thread thread_;
};

template <class Far>
Result<uint16_t> Gate<Far>::listen(const std::string& host, uint16_t port, uint16_t to_port) {
  AsioError failed;
  const auto address = asio::ip::make_address(host, failed);
  const auto acceptor = std::make_shared<tcp::acceptor>(io_);
  const tcp::endpoint at(address, port);
  if (!failed) acceptor->open(at.protocol(), failed);
  if (!failed) acceptor->set_option(tcp::acceptor::reuse_address(true), failed);
  if (!failed) acceptor->bind(at, failed);
  if (!failed) acceptor->listen(tcp::acceptor::max_listen_connections, failed);
  if (failed) return fail(Code::kUnavailable, "cannot listen on ", host, ":", port, ": ", failed.message());
  const uint16_t bound = acceptor->local_endpoint().port();
  asio::post(io_, [this, acceptor, to_port] { accept(acceptor, to_port); });
  return bound;
}

template <class Far>
void Gate<Far>::accept(const Acceptor& acceptor, uint16_t to_port) {
  const auto pipe = make_pipe();
  acceptor->async_accept(pipe->far_socket(), [this, acceptor, to_port, pipe](AsioError failed) {
    if (failed) return accept_later(acceptor, to_port);  // for example, no file descriptor is left
    accept(acceptor, to_port);
    if (connections_ > kConnectionsMax) return pipe->close();
    pipe->close_at_deadline();
    pipe->greet(asio::ssl::stream_base::server, [pipe, to_port](AsioError refused, bool is_alike) {
      if (refused || !is_alike) return pipe->close();
      pipe->near.async_connect(loopback(to_port), [pipe](AsioError gone) { gone ? pipe->close() : pipe->start(); });
    });
  });
}

template <class Far>
void Gate<Far>::accept_later(const Acceptor& acceptor, uint16_t to_port) {
  const auto pause = std::make_shared<asio::steady_timer>(io_, kAcceptPause);
  pause->async_wait([this, acceptor, to_port, pause](AsioError) { accept(acceptor, to_port); });
}

template <class Far>
Result<uint16_t> Gate<Far>::connect(const std::string& host, uint16_t port) {
  const auto unreachable = [&](const auto&... why) { return fail(Code::kUnavailable, "cannot dial ", host, ":", port, ": ", why...); };
  AsioError failed;
  tcp::resolver resolver(io_);
  const auto addresses = resolver.resolve(host, std::to_string(port), failed);
  if (failed) return unreachable(failed.message());
  const auto pipe = make_pipe();
  const auto answer = std::make_shared<std::promise<std::pair<AsioError, bool>>>();
  auto answered = answer->get_future();
  asio::post(io_, [pipe, addresses, answer] {
    pipe->close_at_deadline();
    asio::async_connect(pipe->far_socket(), addresses, [pipe, answer](AsioError gone, const tcp::endpoint&) {
      if (gone) return answer->set_value({gone, true});
      pipe->greet(asio::ssl::stream_base::client, [answer](AsioError refused, bool is_alike) { answer->set_value({refused, is_alike}); });
    });
  });
  const auto [refused, is_alike] = answered.get();
  if (refused) return unreachable(refused.message());
  if (!is_alike) return fail(Code::kInvalidArgument, "the process at ", host, ":", port, " is not Seer, or has another protocol than ", kProtocolNumber);
  const auto acceptor = std::make_shared<tcp::acceptor>(io_, loopback(0));
  const uint16_t near_port = acceptor->local_endpoint().port();
  asio::post(io_, [pipe, acceptor] {
    acceptor->async_accept(pipe->near, [pipe, acceptor](AsioError gone) { gone ? pipe->close() : pipe->start(); });
    pipe->deadline.expires_after(kHandshakeMax);
    pipe->deadline.async_wait([pipe, acceptor](AsioError cancelled) {
      if (cancelled) return;
      AsioError ignored;
      acceptor->close(ignored);
      pipe->close();
    });
  });
  return near_port;
}

}  // namespace

Status check_tls_files(const TlsFiles& tls) {
  if (tls.empty()) return {};
  asio::ssl::context context(asio::ssl::context::tls);
  return load(context.native_handle(), tls);
}

Result<std::unique_ptr<ClusterGate>> ClusterGate::create(const TlsFiles& tls) {
  if (tls.empty()) return std::unique_ptr<ClusterGate>(std::make_unique<Gate<tcp::socket>>());
  auto gate = std::make_unique<Gate<TlsStream>>();
  SEER_RETURN_IF_ERROR(load(gate->context(), tls));
  return std::unique_ptr<ClusterGate>(std::move(gate));
}

}  // namespace seer
