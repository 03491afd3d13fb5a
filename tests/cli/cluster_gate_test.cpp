#include "cli/cluster_gate.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "cli/certificates.h"
#include "protocols/cluster.h"

using namespace seer;

namespace {

constexpr int kWaitMs = 60'000;

/// A socket of this host.
struct Socket {
  int fd = -1;
  Socket() : fd(::socket(AF_INET, SOCK_STREAM, 0)) {}
  explicit Socket(int fd_in) : fd(fd_in) {}
  explicit Socket(UniqueFd given) : fd(given.release()) { ::fcntl(fd, F_SETFL, 0); }  // blocks
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { ::close(fd); }
  static sockaddr_in address(uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }
  /// Takes a port, and refuses connections to it until it listens.
  uint16_t bind() const {
    sockaddr_in at = address(0);
    socklen_t size = sizeof at;
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    return ntohs(at.sin_port);
  }
  uint16_t listen() const {
    const uint16_t port = bind();
    REQUIRE(::listen(fd, 8) == 0);
    return port;
  }
  bool connect(uint16_t port) const {
    sockaddr_in at = address(port);
    return ::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
  }
  bool is_ready() const {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&ready, 1, kWaitMs) > 0;
  }
  /// Empty: the other side has ended.
  std::string read(size_t most = 1 << 16) const {
    REQUIRE(is_ready());
    std::string bytes(most, ' ');
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
    return bytes;
  }
  std::string read_all(size_t count) const {
    std::string all;
    while (all.size() < count) {
      const std::string more = read(count - all.size());
      if (more.empty()) break;
      all += more;
    }
    return all;
  }
  /// Whether the other side has ended by now, after what it may have sent.
  bool has_ended() const {
    char bytes[4096];
    ssize_t got = 1;
    while (got > 0) got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return got == 0;
  }
  void write(const std::string& bytes) const {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t put = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      REQUIRE(put > 0);
      at += static_cast<size_t>(put);
    }
  }
};

/// The peers that a gate gave, in the order in which they came.
struct Peers {
  std::mutex mutex;
  std::condition_variable came;
  std::deque<UniqueFd> sockets;
  std::function<void(UniqueFd)> taker() {
    return [this](UniqueFd socket) {
      const std::lock_guard lock(mutex);
      sockets.push_back(std::move(socket));
      came.notify_one();
    };
  }
  UniqueFd next() {
    std::unique_lock lock(mutex);
    REQUIRE(came.wait_for(lock, std::chrono::milliseconds(kWaitMs), [&] { return !sockets.empty(); }));
    UniqueFd socket = std::move(sockets.front());
    sockets.pop_front();
    return socket;
  }
};

/// What each side says first, with a challenge of 32 equal bytes.
std::string hello(char challenge) {
  std::string text = cat("seer/", kProtocolNumber);
  text.resize(16, '\0');
  return text + std::string(32, challenge);
}
constexpr size_t kHelloBytes = 48, kProofBytes = 32;
std::string challenge_of(const std::string& hello_bytes) { return hello_bytes.substr(16); }
std::string proof(char side, const std::string& secret, const std::string& dialler_hello, const std::string& listener_hello) {
  const std::string text = side + challenge_of(dialler_hello) + challenge_of(listener_hello);
  std::string bytes(kProofBytes, '\0');
  REQUIRE(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
               reinterpret_cast<unsigned char*>(bytes.data()), nullptr) != nullptr);
  return bytes;
}

std::unique_ptr<ClusterGate> gate_of(const GateConfig& config) {
  auto gate = ClusterGate::create(config);
  REQUIRE_MESSAGE(gate.ok(), gate.error().detail);
  return *std::move(gate);
}

}  // namespace

TEST_CASE("cluster gate: bytes go through in both directions, and the end of one side ends the other, with TLS and without") {
  const Certificates made;
  for (const TlsFiles& files : {TlsFiles{}, made.files("good", "good", "ca")}) {
    CAPTURE(files.empty());
    Peers peers;
    const auto here = gate_of({files}), there = gate_of({files});
    const auto port = there->listen("127.0.0.1", 0, peers.taker());
    REQUIRE_MESSAGE(port.ok(), port.error().detail);
    for (int connection = 0; connection < 3; ++connection) {
      auto connected = here->connect("127.0.0.1", *port);
      REQUIRE_MESSAGE(connected.ok(), connected.error().detail);
      const Socket client(*std::move(connected)), served(peers.next());
      std::string large(300'000, 'x');
      for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 % 251);
      std::thread writer([&] { client.write(large); });
      CHECK(served.read_all(large.size()) == large);
      writer.join();
      served.write("answer");
      CHECK(client.read_all(6) == "answer");
      ::shutdown(served.fd, SHUT_RDWR);
      CHECK(client.read() == "");
    }
  }
}

TEST_CASE("cluster gate: no byte of a peer that does not greet, or has no certificate of the CA, is passed on") {
  const Certificates made;
  for (const TlsFiles& files : {TlsFiles{}, made.files("good", "good", "ca")}) {
    CAPTURE(files.empty());
    Peers peers;
    const auto there = gate_of({files});
    const auto port = there->listen("127.0.0.1", 0, peers.taker());
    REQUIRE(port.ok());
    const auto stranger = gate_of({made.files("other", "other", "other-ca")});
    const auto refused = stranger->connect("127.0.0.1", *port);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == Code::kUnavailable);
    for (const std::string garbage : {"GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\xff\xff", "x", "seer/1\n\n\n\n\n\n\n\n\n\n"}) {
      const Socket plain;
      REQUIRE(plain.connect(*port));
      plain.write(garbage);
      ::shutdown(plain.fd, SHUT_WR);
      while (!plain.read().empty()) {  // a greeting or an alert, then the end
      }
    }
    CHECK(peers.sockets.empty());
    CHECK(gate_of({files})->connect("127.0.0.1", *port).ok());  // others still get in
    peers.next();
  }
}

TEST_CASE("cluster gate: a peer with another secret, or none, is refused at both ends; with the same it gets in") {
  const Certificates made;
  const std::string ours = "the secret of this cluster", others = "the secret of another one";
  for (const TlsFiles& files : {TlsFiles{}, made.files("good", "good", "ca")}) {
    CAPTURE(files.empty());
    Peers peers;
    std::promise<std::pair<std::string, uint64_t>> told;
    std::atomic<int> calls{0};
    const auto start = std::chrono::steady_clock::now();
    const auto there = gate_of({.tls = files, .secret = ours, .on_stranger = [&](const std::string& address, uint64_t count) {
                                  if (++calls == 1) told.set_value({address, count});
                                }});
    const auto port = there->listen("127.0.0.1", 0, peers.taker());
    REQUIRE(port.ok());
    const std::string process = cat("the process at 127.0.0.1:", *port);
    for (const auto& [secret, sentence] : {std::pair{others, " has another secret, or none: expected --secret-file with that of its cluster"},
                                           {ours + "!", " has another secret, or none: expected --secret-file with that of its cluster"},
                                           {std::string(), " has a secret: expected --secret-file with that of its cluster"}}) {
      CAPTURE(secret);
      const auto refused = gate_of({.tls = files, .secret = secret})->connect("127.0.0.1", *port);
      REQUIRE_FALSE(refused.ok());
      CHECK(refused.error().code == Code::kInvalidArgument);
      CHECK(refused.error().detail == process + sentence);
    }
    CHECK(peers.sockets.empty());
    auto heard = told.get_future();
    REQUIRE(heard.wait_for(std::chrono::milliseconds(kWaitMs)) == std::future_status::ready);
    const auto [address, count] = heard.get();
    CHECK(address.starts_with("127.0.0.1:"));
    CHECK(count == 1);
    const int called = calls;
    CHECK(called <= 1 + (std::chrono::steady_clock::now() - start) / std::chrono::seconds(1));
    CHECK(gate_of({.tls = files, .secret = ours})->connect("127.0.0.1", *port).ok());
    peers.next();
    const auto open_gate = gate_of({.tls = files});
    const auto open_port = open_gate->listen("127.0.0.1", 0, peers.taker());
    CHECK(gate_of({.tls = files, .secret = ours, .secret_flag = "--cluster-secret-file"})->connect("127.0.0.1", *open_port).error().detail ==
          cat("the process at 127.0.0.1:", *open_port, " has another secret, or none: expected --cluster-secret-file with that of its cluster"));
    CHECK(peers.sockets.empty());
  }
}

TEST_CASE("cluster gate: it listens at a host's name as at its address") {
  Peers peers;
  const auto there = gate_of({});
  const auto port = there->listen("localhost", 0, peers.taker());
  REQUIRE_MESSAGE(port.ok(), port.error().detail);
  CHECK(gate_of({})->connect("localhost", *port).ok());
  CHECK(peers.next().get() >= 0);
}

TEST_CASE("cluster gate: it does not listen at a name of the loopback, which the others cannot reach") {
  const std::string name = "2130706433";  // 127.0.0.1 to getaddrinfo(), as a host's own name is to many
  const auto refused = gate_of({})->listen(name, 0, {});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kInvalidArgument);
  CHECK(refused.error().detail ==
        "cannot listen on " + name + ":0: " + name + " is 127.0.0.1 here: expected the address at which the others reach it");
  for (const std::string meant : {"127.0.0.1", "127.0.1.1", "localhost"}) CHECK_MESSAGE(gate_of({})->listen(meant, 0, {}).ok(), meant);
}

TEST_CASE("cluster gate: the proof of a secret is worth nothing when it is sent back, or to another") {
  const std::string secret = "the secret of this cluster";
  Peers peers;
  const auto there = gate_of({.secret = secret});
  const auto port = there->listen("127.0.0.1", 0, peers.taker());
  REQUIRE(port.ok());
  // A listener without the secret, with the challenge of the one above, sends the dialler its own proof, or that of the one above.
  for (const bool is_passed_on : {false, true}) {
    CAPTURE(is_passed_on);
    const Socket service, onward;
    const uint16_t own_port = service.listen();
    REQUIRE(onward.connect(*port));
    const std::string listener_hello = onward.read_all(kHelloBytes);
    std::string dialler_hello, dialler_proof;
    std::thread false_listener([&] {
      const Socket served(::accept(service.fd, nullptr, nullptr));
      served.write(is_passed_on ? hello('x') : listener_hello);
      dialler_hello = served.read_all(kHelloBytes);
      dialler_proof = served.read_all(kProofBytes);
      onward.write(dialler_hello);
      onward.write(is_passed_on ? dialler_proof : std::string(kProofBytes, 'x'));
      const std::string answer = onward.read_all(kProofBytes);
      CHECK(answer == std::string(kProofBytes, '\0'));
      CHECK(onward.read().empty());
      served.write(is_passed_on ? answer : dialler_proof);
      while (!served.read().empty()) {
      }
    });
    const auto refused = gate_of({.secret = secret})->connect("127.0.0.1", own_port);
    false_listener.join();
    CHECK(dialler_proof == proof('d', secret, dialler_hello, is_passed_on ? hello('x') : listener_hello));
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == Code::kInvalidArgument);
  }
  CHECK(peers.sockets.empty());
}

TEST_CASE("cluster gate: silent connections keep no peer out, because the oldest of them makes room") {
  const Certificates made;
  for (const TlsFiles& files : {TlsFiles{}, made.files("good", "good", "ca")}) {
    CAPTURE(files.empty());
    bool is_in_time = false;  // else some may have ended because their own time was over: once more, after such a stall
    for (int tries = 0; tries < 5 && !is_in_time; ++tries) {
      const auto start = std::chrono::steady_clock::now();
      Peers peers;
      const auto there = gate_of({.tls = files, .newcomers_max = 8});
      const auto port = there->listen("127.0.0.1", 0, peers.taker());
      REQUIRE(port.ok());
      std::deque<Socket> silent(20);
      for (const Socket& stranger : silent) REQUIRE(stranger.connect(*port));
      CHECK(gate_of({files})->connect("127.0.0.1", *port).ok());
      peers.next();
      const size_t closed_count = silent.size() + 1 - 8;  // the peer was one of the newcomers
      std::vector<bool> have_ended;
      for (const Socket& stranger : silent) have_ended.push_back(stranger.has_ended());
      is_in_time = std::chrono::steady_clock::now() - start < ClusterGate::kHandshakeMax;
      for (size_t i = 0; is_in_time && i < silent.size(); ++i) {
        CAPTURE(i);
        CHECK(have_ended[i] == (i < closed_count));
      }
    }
    CHECK(is_in_time);
  }
}

TEST_CASE("cluster gate: after it has stopped listening, nobody gets in, not even a peer that was about to greet") {
  Peers peers;
  const auto there = gate_of({});
  const auto port = there->listen("127.0.0.1", 0, peers.taker());
  REQUIRE(port.ok());
  const Socket early;
  REQUIRE(early.connect(*port));
  const std::string theirs = early.read_all(kHelloBytes);
  there->stop_listening();
  early.write(hello('x') + proof('d', "", hello('x'), theirs));
  CHECK(early.read_all(kProofBytes + 1) == proof('l', "", hello('x'), theirs));  // then the end
  CHECK_FALSE(gate_of({})->connect("127.0.0.1", *port).ok());
  CHECK(peers.sockets.empty());
}

TEST_CASE("cluster gate: a listener with another protocol is named as such") {
  const Socket service;
  const uint16_t port = service.listen();
  std::thread other([&] {
    const Socket served(::accept(service.fd, nullptr, nullptr));
    served.write(std::string("HTTP/1.0 400 Bad Request\r\n"));
    while (!served.read().empty()) {
    }
  });
  const auto refused = gate_of({})->connect("127.0.0.1", port);
  other.join();
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == Code::kInvalidArgument);
  CHECK(refused.error().detail.find(cat("the process at 127.0.0.1:", port, " is not Seer, or has another protocol than ")) == 0);
}

TEST_CASE("cluster gate: an address where nobody listens, or that is not of this machine, is an error") {
  const auto gate = gate_of({});
  const Socket closed;
  const uint16_t closed_port = closed.bind();
  CHECK(gate->connect("127.0.0.1", closed_port).error().detail == cat("cannot dial 127.0.0.1:", closed_port, ": Connection refused"));
  CHECK(gate->listen("192.0.2.1", 0, {}).error().detail.find("cannot listen on 192.0.2.1:0: ") == 0);
  CHECK(gate->listen("no address", 0, {}).error().detail.find("cannot listen on no address:0: ") == 0);
}

TEST_CASE("cluster gate: files that are missing, of another kind, or do not belong together are named, and so is an expired certificate") {
  const Certificates made;
  std::ofstream(made.path("text.pem")) << "no certificate";
  CHECK(check_tls_files({}).ok());
  CHECK_MESSAGE(check_tls_files(made.files("good", "good", "ca")).ok(), "good");
  const auto refusal = [&](const std::string& certificate, const std::string& key, const std::string& ca) {
    const Status checked = check_tls_files(made.files(certificate, key, ca));
    REQUIRE_FALSE(checked.ok());
    CHECK(checked.error().code == Code::kInvalidArgument);
    return checked.error().detail;
  };
  CHECK(refusal("none", "good", "ca").find("--tls-cert " + made.path("none.pem") + ": cannot be read: No such file or directory") == 0);
  CHECK(refusal("text", "good", "ca").find("--tls-cert " + made.path("text.pem") + ": expected a certificate in PEM format (") == 0);
  CHECK(refusal("good", "none", "ca").find("--tls-key " + made.path("none.key") + ": cannot be read: No such file or directory") == 0);
  CHECK(refusal("good", "ca", "ca").find("--tls-key " + made.path("ca.key") + ": expected the private key of ") == 0);
  CHECK(refusal("good", "good", "none").find("--tls-ca " + made.path("none.pem") + ": cannot be read: No such file or directory") == 0);
  CHECK(refusal("good", "good", "text").find("--tls-ca " + made.path("text.pem") + ": expected the certificate of a CA in PEM format (") == 0);
  CHECK(refusal("good", "good", "other-ca").find("--tls-cert " + made.path("good.pem") + ": it cannot be verified with ") == 0);
  CHECK(refusal("expired", "expired", "ca").find("certificate has expired") != std::string::npos);
}
