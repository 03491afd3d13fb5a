// What a client writes on a connection to a real HttpServer on loopback. The first byte says how it is written: in how many parts,
// and whether the client reads the answers or resets the connection. The rest is what it writes. Afterwards the server must have
// closed the connection: one that stays is found here, as is one whose end takes long.
//
// Paths: /upload takes the body in parts, /stream answers with a stream, /later answers from another turn of the loop, /drop never;
// all others with what came.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "cli/serve/http_server.h"

using namespace seer;

namespace {

[[noreturn]] void found(const char* what) {
  std::fprintf(stderr, "FINDING: %s\n", what);
  std::abort();
}

class Upload final : public HttpUpload {
 public:
  std::optional<HttpRefusal> take(std::string_view part) override {
    bytes_ += part.size();
    if (bytes_ > 4096) return HttpRefusal{413, "too much"};
    return {};
  }
  void finish(std::shared_ptr<HttpReply> reply) override { reply->send(200, std::to_string(bytes_)); }

 private:
  size_t bytes_ = 0;
};

struct Serving {
  Serving() : server(HttpServer::listen({.head_bytes_max = 4096, .body_bytes_max = 8192}).value()) {
    server->take_uploads([](const HttpRequest& head, std::optional<uint64_t> bytes) -> std::shared_ptr<HttpUpload> {
      if (head.path != "/upload" || bytes.value_or(0) > 1 << 20) return nullptr;
      return std::make_shared<Upload>();
    });
    server->start([this](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) { answer(request, reply); });
  }
  void answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
    if (request.body.size() > 8192) found("a body larger than allowed came through");
    if (request.path == "/drop") return;
    if (request.path == "/later") return server->post([reply] { reply->send(200, "later"); });
    if (request.path == "/stream") {
      reply->on_gone([] {});
      reply->begin("text/plain");
      for (const auto& [name, value] : request.query) reply->write(name + "=" + value);
      return reply->end();
    }
    reply->send(200, request.method + " " + request.path + " " + request.body);
  }
  std::unique_ptr<HttpServer> server;
};

/// From another address of the loopback network each time: one alone has too few ports for thousands of connections a second.
/// -1: libFuzzer's timer came between.
int connect_to(uint16_t port) {
  static uint32_t connections = 0;
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  if (socket < 0) found("no socket is left");
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + ++connections % 60'000);
  if (::bind(socket, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) found("no address on loopback is free");
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) {
    const int error = errno;
    ::close(socket);
    if (error == EINTR) return -1;
    std::fprintf(stderr, "connect: %s\n", std::strerror(error));
    found("the server takes no connection");
  }
  const timeval limit{.tv_sec = 10, .tv_usec = 0};  // far below the server's own for a request that does not come
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return socket;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Serving serving;
  if (size == 0) return 0;
  const uint8_t how = data[0];
  std::string_view left(reinterpret_cast<const char*>(data + 1), size - 1);
  int socket = -1;
  while (socket < 0) socket = connect_to(serving.server->port());
  const size_t parts = 1 + how % 4, part = left.size() / parts + 1;
  while (!left.empty()) {
    const ssize_t sent = ::send(socket, left.data(), std::min(part, left.size()), MSG_NOSIGNAL);
    if (sent <= 0) break;  // refused: the server has closed it
    left.remove_prefix(static_cast<size_t>(sent));
  }
  if (how >= 0xe0) {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  } else {
    ::shutdown(socket, SHUT_WR);
    char answer[4096];
    ssize_t bytes = 1;
    while (bytes > 0) bytes = ::recv(socket, answer, sizeof answer, 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) found("the client has ended, and the connection stays open");
  }
  ::close(socket);
  const auto since = std::chrono::steady_clock::now();
  while (serving.server->connections() > 0) {
    if (std::chrono::steady_clock::now() - since > std::chrono::seconds(10)) found("the server keeps a connection whose client has gone");
    std::this_thread::yield();
  }
  return 0;
}
