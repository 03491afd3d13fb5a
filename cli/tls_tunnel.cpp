#include "cli/tls_tunnel.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <chrono>
#include <future>
#include <thread>

namespace seer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error_ = boost::system::error_code;

constexpr std::chrono::seconds kHandshakeMax(10);
constexpr size_t kConnectionsMax = 4096;  // whose handshake is not over, or that go on; more are closed at once
constexpr size_t kBufferBytes = 64 << 10;

std::string reason_of_openssl() {
  const unsigned long last = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(last);
  return reason != nullptr ? reason : "unknown reason";
}

/// Whether the certificate of the context is signed by its CA and good today; if not, why.
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
    return wrong("--tls-cert", tls.certificate, "it does not hold against ", tls.ca, " (", why, ")");
  return {};
}

/// A connection: bytes that come on one side go out on the other, until one of them ends.
struct Pipe : std::enable_shared_from_this<Pipe> {
  Pipe(asio::io_context& io, asio::ssl::context& context, std::atomic<size_t>& count_in) : far(io, context), near(io), deadline(io), count(count_in) {
    ++count;
  }
  ~Pipe() { --count; }

  void close_at_deadline() {
    deadline.expires_after(kHandshakeMax);
    deadline.async_wait([me = shared_from_this()](Error_ cancelled) {
      if (!cancelled) me->close();
    });
  }
  void start() {
    deadline.cancel();
    for (tcp::socket* socket : {&far.next_layer(), &near}) {
      Error_ ignored;
      socket->set_option(tcp::no_delay(true), ignored);
    }
    pump(far, near, outward);
    pump(near, far, inward);
  }
  void close() {
    Error_ ignored;
    deadline.cancel();
    near.close(ignored);
    far.next_layer().close(ignored);
  }

  template <class From, class To>
  void pump(From& from, To& to, std::array<char, kBufferBytes>& buffer) {
    from.async_read_some(asio::buffer(buffer), [this, me = shared_from_this(), &from, &to, &buffer](Error_ ended, size_t bytes) {
      if (ended) return close();
      asio::async_write(to, asio::buffer(buffer, bytes), [this, me, &from, &to, &buffer](Error_ failed, size_t) {
        if (failed) return close();
        pump(from, to, buffer);
      });
    });
  }

  asio::ssl::stream<tcp::socket> far;  // encrypted
  tcp::socket near;                    // a port of this host
  asio::steady_timer deadline;
  std::atomic<size_t>& count;
  std::array<char, kBufferBytes> outward, inward;
};

tcp::endpoint loopback(uint16_t port) { return {asio::ip::address_v4::loopback(), port}; }

}  // namespace

Status check_tls_files(const TlsFiles& tls) {
  if (tls.empty()) return {};
  asio::ssl::context context(asio::ssl::context::tls);
  return load(context.native_handle(), tls);
}

class TlsTunnel::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl() {
    context.set_options(asio::ssl::context::no_sslv2 | asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
    context.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
    thread = std::thread([this] { io.run(); });
  }
  ~Impl() {
    io.stop();
    thread.join();
  }

  std::shared_ptr<Pipe> make_pipe() { return std::make_shared<Pipe>(io, context, connections); }

  void accept(const std::shared_ptr<tcp::acceptor>& acceptor, uint16_t to_port) {
    const auto pipe = make_pipe();
    acceptor->async_accept(pipe->far.next_layer(), [this, acceptor, pipe, to_port](Error_ failed) {
      if (!acceptor->is_open()) return;
      accept(acceptor, to_port);  // the next one
      if (failed || connections > kConnectionsMax) return pipe->close();
      pipe->close_at_deadline();
      pipe->far.async_handshake(asio::ssl::stream_base::server, [pipe, to_port](Error_ refused) {
        if (refused) return pipe->close();
        pipe->near.async_connect(loopback(to_port), [pipe](Error_ gone) { gone ? pipe->close() : pipe->start(); });
      });
    });
  }

  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  asio::ssl::context context{asio::ssl::context::tls};
  std::atomic<size_t> connections{0};
  std::thread thread;
};

TlsTunnel::TlsTunnel(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsTunnel::~TlsTunnel() = default;

Result<std::unique_ptr<TlsTunnel>> TlsTunnel::create(const TlsFiles& tls) {
  auto impl = std::make_shared<Impl>();
  SEER_RETURN_IF_ERROR(load(impl->context.native_handle(), tls));
  return std::unique_ptr<TlsTunnel>(new TlsTunnel(std::move(impl)));
}

Result<uint16_t> TlsTunnel::listen(const std::string& host, uint16_t port, uint16_t to_port) {
  Error_ failed;
  const auto address = asio::ip::make_address(host, failed);
  const auto acceptor = std::make_shared<tcp::acceptor>(impl_->io);
  const tcp::endpoint at(address, port);
  if (!failed) acceptor->open(at.protocol(), failed);
  if (!failed) acceptor->set_option(tcp::acceptor::reuse_address(true), failed);
  if (!failed) acceptor->bind(at, failed);
  if (!failed) acceptor->listen(tcp::acceptor::max_listen_connections, failed);
  if (failed) return fail(Code::kUnavailable, "cannot listen on ", host, ":", port, ": ", failed.message());
  asio::post(impl_->io, [impl = impl_.get(), acceptor, to_port] { impl->accept(acceptor, to_port); });
  return acceptor->local_endpoint().port();
}

Result<uint16_t> TlsTunnel::connect(const std::string& host, uint16_t port) {
  const auto unreachable = [&](const auto&... why) { return fail(Code::kUnavailable, "cannot dial ", host, ":", port, ": ", why...); };
  Error_ failed;
  tcp::resolver resolver(impl_->io);
  const auto addresses = resolver.resolve(host, std::to_string(port), failed);
  if (failed) return unreachable(failed.message());
  const auto pipe = impl_->make_pipe();
  const auto answer = std::make_shared<std::promise<Error_>>();
  auto answered = answer->get_future();
  asio::post(impl_->io, [pipe, addresses, answer] {
    pipe->close_at_deadline();
    asio::async_connect(pipe->far.next_layer(), addresses, [pipe, answer](Error_ gone, const tcp::endpoint&) {
      if (gone) return answer->set_value(gone);
      pipe->far.async_handshake(asio::ssl::stream_base::client, [answer](Error_ refused) { answer->set_value(refused); });
    });
  });
  if (failed = answered.get(); failed) return unreachable(failed.message());
  const auto acceptor = std::make_shared<tcp::acceptor>(impl_->io, loopback(0));
  const uint16_t near_port = acceptor->local_endpoint().port();
  asio::post(impl_->io, [pipe, acceptor] {
    acceptor->async_accept(pipe->near, [pipe, acceptor](Error_ gone) { gone ? pipe->close() : pipe->start(); });
    pipe->deadline.expires_after(kHandshakeMax);
    pipe->deadline.async_wait([pipe, acceptor](Error_ cancelled) {
      if (cancelled) return;
      Error_ ignored;
      acceptor->close(ignored);
      pipe->close();
    });
  });
  return near_port;
}

}  // namespace seer
