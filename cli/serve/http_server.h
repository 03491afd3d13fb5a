// HttpServer: HTTP/1.1 for front ends, on Boost.Beast: keep-alive, pipelining, chunked streams, limits, TLS and a bearer token.
// It has one thread, on which it calls the handler; a handler must not block. A reply may be given at once or much later, from
// that thread: see post().
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "protocols/result.h"

namespace seer {

struct HttpServerConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 0;                   // 0: the system chooses
  std::string tls_cert, tls_key;       // PEM files; empty: no TLS
  std::string token;                   // that every request must bear ("Authorization: Bearer ..."). Empty: none; then requests of web
                                       // pages from elsewhere are refused, which a browser of this host may have open
  uint32_t head_bytes_max = 32 << 10;
  uint64_t body_bytes_max = 64 << 20;
  uint64_t bodies_bytes_max = 1 << 30;  // of all bodies that are being read; others wait. Without small ones, and those taken as they come
  int64_t request_s = 75;              // from the end of the answer before until a request has come whole
  size_t connections_max = 20'000;     // more are closed at once
  size_t unread_bytes_max = 16 << 20;  // of a stream whose client does not read; then its connection is closed
};

struct HttpRequest {
  std::string method;                        // "GET", also for HEAD, whose answer is sent without its body
  std::string path;                          // "/generate", without the query
  std::map<std::string, std::string> query;  // after the question mark, decoded
  std::string body;
  std::string host = {};                     // "a:30000", as the client addressed this server; empty: it did not say
  std::shared_ptr<void> room = {};           // that the server keeps for the body while somebody has this; let go on any thread
};

/// The answer to one request: send(), or begin(), write() and end(). On the server's thread only. One that is let go without an
/// answer is answered with 500.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(int status, std::string body, std::string_view type = "application/json") = 0;
  /// A stream of unknown length.
  virtual void begin(std::string_view type) = 0;
  virtual void write(std::string_view part) = 0;
  virtual void end() = 0;
  /// Called once, when the client goes away before the answer is over, or at once if it has gone. Not called after that.
  virtual void on_gone(std::function<void()> gone) = 0;
  /// Whether the client has read most of the stream so far.
  virtual bool has_room() const = 0;
  /// Called whenever there is room again, until the answer is over.
  virtual void on_room(std::function<void()> room) = 0;
};
/// Why a request is refused.
struct HttpRefusal {
  int status = 400;
  std::string message;
};
/// Takes the body of one request as it comes, however long it is. On the server's thread; must not block. It is let go without
/// finish() if the client breaks off, sends nothing for silence_s(), or take() refuses.
class HttpUpload {
 public:
  virtual ~HttpUpload() = default;
  /// The next part. The first call, with an empty one, comes before any of the body is read: a refusal is cheapest there.
  virtual std::optional<HttpRefusal> take(std::string_view part) = 0;
  /// 0: `request_s`.
  virtual int64_t silence_s() const { return 0; }
  /// The body has come whole.
  virtual void finish(std::shared_ptr<HttpReply> reply) = 0;
};
/// "a%20b" -> "a b"
std::string decode_percent(std::string_view text);
/// {"error": {"message": ..., "type": ...}}, as OpenAI's clients read it; to those of SGLang the message is enough.
std::string http_error_body(std::string_view message, int status = 400);
using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;
/// Gets a request without its body, and `body_bytes` where its head says how long that is. Null: the body is read whole, for the
/// handler.
using HttpUploadOpener = std::function<std::shared_ptr<HttpUpload>(const HttpRequest&, std::optional<uint64_t> body_bytes)>;
/// Hears of every answer as it begins, on the server's thread. No path: the request was refused before it was read whole. The body is
/// empty where the answer is a stream.
using HttpWatcher = std::function<void(const std::string& path, int status, std::string_view body)>;

class HttpServer {
 public:
  /// Listens; requests are read from start() on. kInvalidArgument: certificate, key or host; kUnavailable: the port is in use.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpServerConfig& config);
  virtual ~HttpServer() = default;  // closes all connections
  virtual uint16_t port() const = 0;
  /// REQUIRES: called before start().
  void watch(HttpWatcher watcher) { watcher_ = std::move(watcher); }
  /// Bodies that are taken as they come. REQUIRES: called before start().
  void take_uploads(HttpUploadOpener opener) { open_upload_ = std::move(opener); }
  /// Starts the thread. REQUIRES: called once.
  virtual void start(HttpHandler handler) = 0;
  /// Runs this on the thread, soon. Thread-safe.
  virtual void post(std::function<void()> work) = 0;
  /// Runs this on another thread, after what was put aside before; it may post(). What has not begun is dropped with the server.
  virtual void put_aside(std::function<void()> work) { work(); }
  /// New connections are refused from now on. Thread-safe.
  virtual void stop_listening() = 0;
  /// Connections that are open. Thread-safe.
  virtual size_t connections() const = 0;
  /// Counts connections whose client has not got all that was written for it. REQUIRES: called on the thread.
  virtual size_t unsent() const { return 0; }

 protected:
  HttpWatcher watcher_ = [](const std::string&, int, std::string_view) {};
  HttpUploadOpener open_upload_ = [](const HttpRequest&, std::optional<uint64_t>) { return nullptr; };
};

}  // namespace seer
