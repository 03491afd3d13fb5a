#include "cli/serve/http_server.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

namespace seer {
namespace {

/// What became of an upload.
struct Fate {
  std::string body;
  bool is_whole = false;
};

class Recorded final : public HttpUpload {
 public:
  Recorded(std::promise<Fate>& fate, size_t bytes_max, int64_t silence_s) : fate_(fate), bytes_max_(bytes_max), silence_s_(silence_s) {}
  ~Recorded() override { fate_.set_value(std::move(so_far_)); }
  std::optional<HttpRefusal> take(std::string_view part) override {
    if (so_far_.body.size() + part.size() > bytes_max_) return HttpRefusal{413, "too much"};
    so_far_.body += part;
    return {};
  }
  int64_t silence_s() const override { return silence_s_; }
  void finish(std::shared_ptr<HttpReply> reply) override {
    so_far_.is_whole = true;
    reply->send(200, "taken");
  }

 private:
  std::promise<Fate>& fate_;
  const size_t bytes_max_;
  const int64_t silence_s_;
  Fate so_far_;
};

/// A server that takes uploads at /upload, and answers other requests with the size of their body.
struct Uploads {
  explicit Uploads(size_t bytes_max = 1 << 30, int64_t request_s = 60)
      : server(*HttpServer::listen({.body_bytes_max = 100, .request_s = request_s})) {
    server->take_uploads([this, bytes_max](const HttpRequest& head, std::optional<uint64_t>) {
      return head.path == "/upload" ? std::make_shared<Recorded>(fate, bytes_max, head.query.contains("silence_s") ? 60 : 0) : nullptr;
    });
    server->start([](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) { reply->send(200, std::to_string(request.body.size())); });
  }
  std::promise<Fate> fate;
  std::unique_ptr<HttpServer> server;
};

struct Connection {
  explicit Connection(const Uploads& uploads) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(uploads.server->port());
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
  }
  ~Connection() { ::close(socket); }
  /// Returns how many bytes the server took.
  size_t send(std::string_view text) const {
    size_t sent = 0;
    for (ssize_t n = 1; n > 0 && sent < text.size(); sent += n > 0 ? static_cast<size_t>(n) : 0)
      n = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    return sent;
  }
  /// All that comes until the server closes, or until it has come so often.
  std::string receive(std::string_view until = "\r\n\r\n\r\n", int count = 1) const {
    std::string text;
    char part[4096];
    for (ssize_t n = 1; n > 0 && count > 0;) {
      n = ::recv(socket, part, sizeof part, 0);
      if (n > 0) text.append(part, static_cast<size_t>(n));
      if (text.ends_with(until)) --count;
    }
    return text;
  }
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
};

/// For requests that have a second. After a stall of one they are closed without an answer: then the next try has a server of its own.
template <class Ask>
void try_until_answered(Ask ask) {
  std::string answer;
  for (int tries = 0; tries < 60 && answer.empty(); ++tries) {
    Uploads uploads(1 << 30, 1);
    answer = ask(uploads, Connection(uploads));
  }
  CHECK_FALSE(answer.empty());
}

std::string post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace

TEST_CASE("http uploads: a body larger than any limit comes whole, and the connection goes on") {
  Uploads uploads;
  const Connection connection(uploads);
  std::string body(3'000'000, 'x');
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>('a' + i % 23);
  connection.send(post("/upload", body));
  CHECK(connection.receive("taken").starts_with("HTTP/1.1 200"));
  const Fate fate = uploads.fate.get_future().get();
  CHECK(fate.is_whole);
  CHECK(fate.body == body);
  connection.send(post("/other", "12345"));
  CHECK(connection.receive("5").starts_with("HTTP/1.1 200"));
}

TEST_CASE("http uploads: in chunks, the body is whole with the last one only") {
  Uploads uploads;
  {
    const Connection connection(uploads);
    connection.send("POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    CHECK(connection.receive("taken").starts_with("HTTP/1.1 200"));
  }
  const Fate whole = uploads.fate.get_future().get();
  CHECK((whole.is_whole && whole.body == "abcde"));
  uploads.fate = {};
  {
    const Connection connection(uploads);
    connection.send("POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n");
  }
  const Fate broken = uploads.fate.get_future().get();
  CHECK((!broken.is_whole && broken.body.size() <= 5));
}

TEST_CASE("http uploads: one whose client sends no more is let go in time, and told so") {
  try_until_answered([](Uploads& uploads, const Connection& connection) {
    connection.send("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    const std::string answer = connection.receive();
    if (answer.empty()) return answer;
    CHECK(answer.starts_with("HTTP/1.1 408"));
    CHECK(answer.find("nothing came for 1 s: ask for more time with ?silence_s=") != std::string::npos);
    CHECK_FALSE(uploads.fate.get_future().get().is_whole);
    return answer;
  });
}

TEST_CASE("http uploads: one may say how long its client can be silent") {
  try_until_answered([](Uploads& uploads, const Connection& connection) {
    connection.send("POST /upload?silence_s=60 HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc");
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    connection.send("def");
    const std::string answer = connection.receive("taken");
    if (answer.empty()) return answer;
    CHECK(answer.starts_with("HTTP/1.1 200"));
    CHECK(uploads.fate.get_future().get().body == "abcdef");
    return answer;
  });
}

TEST_CASE("http uploads: a refusal reaches a client that goes on sending") {
  Uploads uploads(1000);
  const Connection connection(uploads);
  connection.send("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n");
  CHECK(connection.send(std::string(8'000'000, 'x')) == 8'000'000);
  const std::string answer = connection.receive();
  CHECK(answer.starts_with("HTTP/1.1 413"));
  CHECK(answer.find("too much") != std::string::npos);
  CHECK_FALSE(uploads.fate.get_future().get().is_whole);
}

TEST_CASE("http server: bodies of other paths keep their limit, with a length and in chunks") {
  const Uploads uploads;
  const Connection fits(uploads), long_one(uploads), chunked(uploads);
  fits.send(post("/other", std::string(100, 'x')));
  CHECK(fits.receive("100").starts_with("HTTP/1.1 200"));
  long_one.send(post("/other", std::string(101, 'x')));
  CHECK(long_one.receive().starts_with("HTTP/1.1 413"));
  chunked.send("POST /other HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n" + std::string(64, 'x') + "\r\n40\r\n" +
               std::string(64, 'x') + "\r\n0\r\n\r\n");
  CHECK(chunked.receive().starts_with("HTTP/1.1 413"));
}

}  // namespace seer
