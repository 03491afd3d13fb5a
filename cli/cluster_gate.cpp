// A greeting, within TLS if there is TLS:
//
//   both sides at once   16 bytes: "seer/", the protocol number, zeros; 32 random bytes, the challenge
//   then the dialler     32 bytes: its proof
//   then the listener    32 bytes: its proof; zeros if the dialler's was wrong
//
// A side that sees another protocol or a wrong proof ends the connection. A proof is the HMAC-SHA256, with the cluster's secret as
// its key, of the side ('d' or 'l'), the dialler's challenge and the listener's. It is worth nothing to the other side, nor in another
// connection. Without a secret the key is empty. The dialler proves first, so that nobody can collect proofs from a port.
#include "cli/cluster_gate.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
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

#include "cli/cluster_access.h"
#include "cli/secret_file.h"
#include "protocols/cluster.h"

namespace seer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using AsioError = boost::system::error_code;

constexpr std::chrono::milliseconds kAcceptPause(100);  // after a connection that could not be accepted
constexpr size_t kConnectionsMax = 4096;  // newcomers, and peers with TLS; more are closed at once
constexpr size_t kBufferBytes = 64 << 10;
constexpr std::chrono::seconds kStrangersPause(1);  // between two calls of on_stranger

using Buffer = std::array<char, kBufferBytes>;
using Protocol = std::array<char, 16>;
using Challenge = std::array<unsigned char, 32>;
using Proof = std::array<unsigned char, 32>;

struct Hello {
  Protocol protocol{};
  Challenge challenge{};
};
Hello new_hello() {
  Hello hello;
  const std::string text = cat("seer/", kProtocolNumber);
  std::copy(text.begin(), text.end(), hello.protocol.begin());
  SEER_CHECK(RAND_bytes(hello.challenge.data(), static_cast<int>(hello.challenge.size())) == 1);
  return hello;
}

using Side = asio::ssl::stream_base::handshake_type;
Proof proof_of(Side side, const std::string& secret, const Challenge& dialler, const Challenge& listener) {
  std::string text(1, side == Side::client ? 'd' : 'l');
  text.append(dialler.begin(), dialler.end()).append(listener.begin(), listener.end());
  Proof proof{};
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  SEER_CHECK(HMAC(EVP_sha256(), secret.c_str(), static_cast<int>(secret.size()), bytes, text.size(), proof.data(), nullptr) != nullptr);
  return proof;
}

/// How a greeting that did not break off ended.
enum class Greeted : uint8_t { kAlike, kOtherProtocol, kOtherSecret };

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
  for (const auto& [flag, file] : {std::pair{"--tls-cert", &tls.certificate}, {"--tls-key", &tls.key}, {"--tls-ca", &tls.ca}})
    SEER_RETURN_IF_ERROR(check_readable(flag, *file));
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
  /// Calls then(error, Greeted) once both have greeted. REQUIRES: the secret outlives it.
  template <class Then>
  void greet(Side side, const std::string& secret, Then then) {
    AsioError ignored;
    far_socket().set_option(tcp::no_delay(true), ignored);  // a proof does not wait for the acknowledgement of the hello
    const auto prove = [this, side, &secret, then] { side == Side::client ? prove_first(secret, then) : prove_second(secret, then); };
    const auto exchange = [this, prove, then] {
      send(std::array<asio::const_buffer, 2>{asio::buffer(ours.protocol), asio::buffer(ours.challenge)}, then, [this, prove, then] {
        receive(theirs.protocol, then, [this, prove, then] {
          if (theirs.protocol != ours.protocol) return then({}, Greeted::kOtherProtocol);
          receive(theirs.challenge, then, prove);
        });
      });
    };
    if constexpr (std::is_same_v<Far, TlsStream>)
      far.async_handshake(side, [me = this->shared_from_this(), exchange, then](AsioError failed) { failed ? then(failed, Greeted::kAlike) : exchange(); });
    else
      exchange();
  }
  template <class Then>
  void prove_first(const std::string& secret, Then then) {
    proof = proof_of(Side::client, secret, ours.challenge, theirs.challenge);
    send(asio::buffer(proof), then, [this, &secret, then] {
      receive(proof, then, [this, &secret, then] {
        then({}, is_proven(proof_of(Side::server, secret, ours.challenge, theirs.challenge)) ? Greeted::kAlike : Greeted::kOtherSecret);
      });
    });
  }
  template <class Then>
  void prove_second(const std::string& secret, Then then) {
    receive(proof, then, [this, &secret, then] {
      const bool is_alike = is_proven(proof_of(Side::client, secret, theirs.challenge, ours.challenge));
      proof = is_alike ? proof_of(Side::server, secret, theirs.challenge, ours.challenge) : Proof{};
      send(asio::buffer(proof), then, [then, is_alike] { then({}, is_alike ? Greeted::kAlike : Greeted::kOtherSecret); });
    });
  }
  /// Takes the same time whatever was received.
  bool is_proven(const Proof& expected) const { return CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0; }
  /// Calls next(), or then(error, ...) if it fails.
  template <class Buffers, class Then, class Next>
  void send(const Buffers& bytes, Then then, Next next) {
    asio::async_write(far, bytes, [me = this->shared_from_this(), then, next](AsioError failed, size_t) { failed ? then(failed, Greeted::kAlike) : next(); });
  }
  template <class Bytes, class Then, class Next>
  void receive(Bytes& bytes, Then then, Next next) {
    asio::async_read(far, asio::buffer(bytes),
                     [me = this->shared_from_this(), then, next](AsioError failed, size_t) { failed ? then(failed, Greeted::kAlike) : next(); });
  }
  /// What carries the plain bytes from now on: the connection itself, or one end of a socket pair whose other end is pumped into TLS.
  /// Call it once, after greet().
  UniqueFd hand_over(AsioError& failed) {
    deadline.cancel();
    if constexpr (std::is_same_v<Far, TlsStream>) {
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
  const Hello ours = new_hello();
  Hello theirs;
  Proof proof{};  // the one that is on its way, ours or theirs
  std::unique_ptr<std::array<Buffer, 2>> buffers;  // while it is pumped
};

template <class Far>
class Gate final : public ClusterGate {
 public:
  explicit Gate(GateConfig config) : config_(std::move(config)), newcomers_max_(newcomers_max_here(config_.newcomers_max)) {
    context_.set_options(asio::ssl::context::no_sslv2 | asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
    context_.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
    thread_ = std::thread([this] { io_.run(); });
    ::pthread_setname_np(thread_.native_handle(), "seer.gate");
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
  void refuse_stranger(Peer<Far>& peer);
  void accept(const std::shared_ptr<Listener>& listener);
  void accept_later(const std::shared_ptr<Listener>& listener);

  const GateConfig config_;
  const size_t newcomers_max_;
  asio::ssl::context context_{asio::ssl::context::tls};
  std::atomic<size_t> connections_{0};
  asio::io_context io_;  // destroyed before the members above, with the connections that are still open
  std::vector<std::shared_ptr<Listener>> listeners_;  // of the thread, as are the next four
  std::map<uint64_t, std::shared_ptr<Peer<Far>>> newcomers_;  // connections that have not greeted, the oldest first
  uint64_t last_newcomer_ = 0;
  uint64_t strangers_ = 0;  // peers with another secret
  std::chrono::steady_clock::time_point stranger_told_{};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::thread thread_;
};

template <class Far>
Result<uint16_t> Gate<Far>::listen(const std::string& host, uint16_t port, std::function<void(UniqueFd)> on_peer) {
  AsioError failed;
  const auto found = tcp::resolver(io_).resolve(host, std::to_string(port), tcp::resolver::passive, failed);
  const auto listener = std::make_shared<Listener>(Listener{tcp::acceptor(io_), std::move(on_peer)});
  tcp::acceptor& acceptor = listener->acceptor;
  const tcp::endpoint at = failed ? tcp::endpoint() : found.begin()->endpoint();
  const bool is_meant = is_of_this_host(host) || host == "localhost";
  if (at.address().is_loopback() && !is_meant)  // Debian's /etc/hosts gives the host's own name 127.0.1.1
    return fail(Code::kInvalidArgument, "cannot listen on ", host, ":", port, ": ", host, " is ", at.address().to_string(),
                " here: expected the address at which the others reach it");
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
    peer->greet(Side::server, config_.secret, [this, listener, peer, newcomer](AsioError refused, Greeted how) {
      newcomers_.erase(newcomer);
      if (!listener->on_peer) return peer->close();
      if (!refused && how == Greeted::kOtherSecret) return refuse_stranger(*peer);
      if (refused || how != Greeted::kAlike) return peer->close();
      UniqueFd socket = peer->hand_over(refused);
      refused ? peer->close() : listener->on_peer(std::move(socket));
    });
  });
}

template <class Far>
void Gate<Far>::refuse_stranger(Peer<Far>& peer) {
  ++strangers_;
  AsioError gone;
  const tcp::endpoint from = peer.far_socket().remote_endpoint(gone);
  peer.close();
  const auto now = std::chrono::steady_clock::now();
  if (!config_.on_stranger || now - stranger_told_ < kStrangersPause) return;
  stranger_told_ = now;
  config_.on_stranger(gone ? "unknown" : cat(from.address().to_string(), ":", from.port()), strangers_);
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
    Greeted how = Greeted::kAlike;
    UniqueFd socket;
  };
  const auto peer = make_peer();
  const auto answer = std::make_shared<std::promise<Answer>>();
  auto answered = answer->get_future();
  asio::post(io_, [this, peer, addresses, answer, within] {
    peer->close_after(within);
    asio::async_connect(peer->far_socket(), addresses, [this, peer, answer](AsioError gone, const tcp::endpoint&) {
      if (gone) return answer->set_value({gone, Greeted::kAlike, {}});
      peer->greet(Side::client, config_.secret, [peer, answer](AsioError refused, Greeted how) {
        UniqueFd socket;
        if (!refused && how == Greeted::kAlike) socket = peer->hand_over(refused);
        if (socket.get() < 0) peer->close();
        answer->set_value({refused, how, std::move(socket)});
      });
    });
  });
  Answer got = answered.get();
  if (got.failed) return unreachable(got.failed.message());
  const std::string process = cat("the process at ", host, ":", port);
  if (got.how == Greeted::kOtherProtocol)
    return fail(Code::kInvalidArgument, process, " is not Seer, or has another protocol than ", kProtocolNumber);
  if (got.how == Greeted::kOtherSecret && config_.secret.empty())
    return fail(Code::kInvalidArgument, process, " has a secret: expected ", config_.secret_flag, " with that of its cluster");
  if (got.how == Greeted::kOtherSecret)
    return fail(Code::kInvalidArgument, process, " has another secret, or none: expected ", config_.secret_flag, " with that of its cluster");
  return std::move(got.socket);
}

}  // namespace

Status check_tls_files(const TlsFiles& tls) {
  if (tls.empty()) return {};
  asio::ssl::context context(asio::ssl::context::tls);
  return load(context.native_handle(), tls);
}

Result<std::unique_ptr<ClusterGate>> ClusterGate::create(const GateConfig& config) {
  if (config.tls.empty()) return std::unique_ptr<ClusterGate>(std::make_unique<Gate<tcp::socket>>(config));
  auto gate = std::make_unique<Gate<TlsStream>>(config);
  SEER_RETURN_IF_ERROR(load(gate->context(), config.tls));
  return std::unique_ptr<ClusterGate>(std::move(gate));
}

}  // namespace seer
