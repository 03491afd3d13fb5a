#include "cli/cluster_gate.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <chrono>
#include <future>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "protocols/cluster.h"

namespace seer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using AsioError = boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause(100);  // after a connection that could not be accepted
constexpr size_t kConnectionsMax = 4096;  // newcomers, and peers with TLS; more are closed at once
constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kGreetingBytes = 16;

using Buffer = std::array<char, kBufferBytes>;
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

using TlsStream = asio::ssl::stream<tcp::socket>;
using LocalSocket = asio::local::stream_protocol::socket;

/// Within a quarter of this process's file descriptors: strangers must leave enough for its files and peers.
size_t newcomers_max_here(size_t wanted) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  return std::clamp<size_t>(files.rlim_cur / 4, 1, wanted);
}

/// A connection to another process, which is handed over once both sides have greeted. Far: TlsStream, or a plain socket.
template <class Far>
struct Peer : std::enable_shared_from_this<Peer<Far>> {
  Peer(asio::io_context& io, Far far_in, std::atomic<size_t>& count_in)
      : far(std::move(far_in)), near(io), deadline(io), count(count_in) {
    ++count;
  }
  ~Peer() { --count; }
  auto& far_socket() { return far.lowest_layer(); }

  void close_after(std::chrono::milliseconds time) {
    deadline.expires_after(time);
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
  /// What carries the plain bytes from now on: the connection itself, or one end of a socket pair whose other end is pumped into TLS.
  /// Call it once, after greet().
  UniqueFd hand_over(AsioError& failed) {
    deadline.cancel();
    if constexpr (std::is_same_v<Far, TlsStream>) {
      far_socket().set_option(tcp::no_delay(true), failed);
      LocalSocket end(near.get_executor());
      asio::local::connect_pair(near, end, failed);
      if (failed) return {};
      buffers = std::make_unique<std::array<Buffer, 2>>();
      pump(far, near, (*buffers)[0]);
      pump(near, far, (*buffers)[1]);
      return UniqueFd(end.release(failed));
    } else {
      return UniqueFd(far.release(failed));
    }
  }
  void close() {
    AsioError ignored;
    deadline.cancel();
    near.close(ignored);
    far_socket().close(ignored);
  }

  /// Passes bytes from one side to the other, until one of them ends.
  template <class From, class To>
  void pump(From& from, To& to, Buffer& buffer) {
    from.async_read_some(asio::buffer(buffer), [this, me = this->shared_from_this(), &from, &to, &buffer](AsioError ended, size_t bytes) {
      if (ended) return close();
      asio::async_write(to, asio::buffer(buffer, bytes), [this, me, &from, &to, &buffer](AsioError failed, size_t) {
        if (failed) return close();
        pump(from, to, buffer);
      });
    });
  }

  Far far;           // to the other process
  LocalSocket near;  // with TLS: our end of the socket pair
  asio::steady_timer deadline;
  std::atomic<size_t>& count;
  const Greeting ours = greeting();
  Greeting theirs{};
  std::unique_ptr<std::array<Buffer, 2>> buffers;  // while it is pumped
};

template <class Far>
class Gate final : public ClusterGate {
 public:
  explicit Gate(size_t newcomers_max) : newcomers_max_(newcomers_max_here(newcomers_max)) {
    context_.set_options(asio::ssl::context::no_sslv2 | asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
    context_.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Gate() override {
    io_.stop();
    thread_.join();
  }
  SSL_CTX* context() { return context_.native_handle(); }

  Result<uint16_t> listen(const std::string& host, uint16_t port, std::function<void(UniqueFd)> on_peer) override;
  void stop_listening() override;
  Result<UniqueFd> connect(const std::string& host, uint16_t port, std::chrono::milliseconds within) override;

 private:
  struct Listener {
    tcp::acceptor acceptor;
    std::function<void(UniqueFd)> on_peer;  // empty: it has stopped
  };
  std::shared_ptr<Peer<Far>> make_peer() {
    if constexpr (std::is_same_v<Far, TlsStream>)
      return std::make_shared<Peer<Far>>(io_, Far(io_, context_), connections_);
    else
      return std::make_shared<Peer<Far>>(io_, Far(io_), connections_);
  }
  /// Returns its number. Closes the oldest newcomer if there are too many.
  uint64_t add_newcomer(std::shared_ptr<Peer<Far>> peer) {
    newcomers_.emplace(++last_newcomer_, std::move(peer));
    if (newcomers_.size() > newcomers_max_) newcomers_.extract(newcomers_.begin()).mapped()->close();
    return last_newcomer_;
  }
  void accept(const std::shared_ptr<Listener>& listener);
  void accept_later(const std::shared_ptr<Listener>& listener);

  const size_t newcomers_max_;
  asio::ssl::context context_{asio::ssl::context::tls};
  std::atomic<size_t> connections_{0};
  asio::io_context io_;  // destroyed before the members above, with the connections that are still open
  std::vector<std::shared_ptr<Listener>> listeners_;  // of the thread, as are the next two
  std::map<uint64_t, std::shared_ptr<Peer<Far>>> newcomers_;  // connections that have not greeted, the oldest first
  uint64_t last_newcomer_ = 0;
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::thread thread_;
};

template <class Far>
Result<uint16_t> Gate<Far>::listen(const std::string& host, uint16_t port, std::function<void(UniqueFd)> on_peer) {
  AsioError failed;
  const auto address = asio::ip::make_address(host, failed);
  const auto listener = std::make_shared<Listener>(Listener{tcp::acceptor(io_), std::move(on_peer)});
  tcp::acceptor& acceptor = listener->acceptor;
  const tcp::endpoint at(address, port);
  if (!failed) acceptor.open(at.protocol(), failed);
  if (!failed) acceptor.set_option(tcp::acceptor::reuse_address(true), failed);
  if (!failed) acceptor.bind(at, failed);
  if (!failed) acceptor.listen(tcp::acceptor::max_listen_connections, failed);
  if (failed) return fail(Code::kUnavailable, "cannot listen on ", host, ":", port, ": ", failed.message());
  const uint16_t bound = acceptor.local_endpoint().port();
  asio::post(io_, [this, listener] {
    listeners_.push_back(listener);
    accept(listener);
  });
  return bound;
}

template <class Far>
void Gate<Far>::stop_listening() {
  std::promise<void> stopped;
  asio::post(io_, [this, &stopped] {
    for (const auto& listener : std::exchange(listeners_, {})) {
      AsioError ignored;
      listener->acceptor.close(ignored);
      listener->on_peer = nullptr;
    }
    stopped.set_value();
  });
  stopped.get_future().wait();
}

template <class Far>
void Gate<Far>::accept(const std::shared_ptr<Listener>& listener) {
  const auto peer = make_peer();
  listener->acceptor.async_accept(peer->far_socket(), [this, listener, peer](AsioError failed) {
    if (!listener->on_peer) return;
    if (failed) return accept_later(listener);  // for example, no file descriptor is left
    accept(listener);
    if (connections_ > kConnectionsMax) return peer->close();
    const uint64_t newcomer = add_newcomer(peer);
    peer->close_after(ClusterGate::kHandshakeMax);
    peer->greet(asio::ssl::stream_base::server, [this, listener, peer, newcomer](AsioError refused, bool is_alike) {
      newcomers_.erase(newcomer);
      if (refused || !is_alike || !listener->on_peer) return peer->close();
      UniqueFd socket = peer->hand_over(refused);
      refused ? peer->close() : listener->on_peer(std::move(socket));
    });
  });
}

template <class Far>
void Gate<Far>::accept_later(const std::shared_ptr<Listener>& listener) {
  const auto pause = std::make_shared<asio::steady_timer>(io_, kAcceptPause);
  pause->async_wait([this, listener, pause](AsioError) {
    if (listener->on_peer) accept(listener);
  });
}

template <class Far>
Result<UniqueFd> Gate<Far>::connect(const std::string& host, uint16_t port, std::chrono::milliseconds within) {
  const auto unreachable = [&](const auto&... why) { return fail(Code::kUnavailable, "cannot dial ", host, ":", port, ": ", why...); };
  AsioError failed;
  tcp::resolver resolver(io_);
  const auto addresses = resolver.resolve(host, std::to_string(port), failed);
  if (failed) return unreachable(failed.message());
  struct Answer {
    AsioError failed;
    bool is_alike = true;
    UniqueFd socket;
  };
  const auto peer = make_peer();
  const auto answer = std::make_shared<std::promise<Answer>>();
  auto answered = answer->get_future();
  asio::post(io_, [peer, addresses, answer, within] {
    peer->close_after(within);
    asio::async_connect(peer->far_socket(), addresses, [peer, answer](AsioError gone, const tcp::endpoint&) {
      if (gone) return answer->set_value({gone, true, {}});
      peer->greet(asio::ssl::stream_base::client, [peer, answer](AsioError refused, bool is_alike) {
        UniqueFd socket;
        if (!refused && is_alike) socket = peer->hand_over(refused);
        if (socket.get() < 0) peer->close();
        answer->set_value({refused, is_alike, std::move(socket)});
      });
    });
  });
  Answer got = answered.get();
  if (got.failed) return unreachable(got.failed.message());
  if (!got.is_alike)
    return fail(Code::kInvalidArgument, "the process at ", host, ":", port, " is not Seer, or has another protocol than ", kProtocolNumber);
  return std::move(got.socket);
}

}  // namespace

Status check_tls_files(const TlsFiles& tls) {
  if (tls.empty()) return {};
  asio::ssl::context context(asio::ssl::context::tls);
  return load(context.native_handle(), tls);
}

Result<std::unique_ptr<ClusterGate>> ClusterGate::create(const GateConfig& config) {
  if (config.tls.empty()) return std::unique_ptr<ClusterGate>(std::make_unique<Gate<tcp::socket>>(config.newcomers_max));
  auto gate = std::make_unique<Gate<TlsStream>>(config.newcomers_max);
  SEER_RETURN_IF_ERROR(load(gate->context(), config.tls));
  return std::unique_ptr<ClusterGate>(std::move(gate));
}

}  // namespace seer
