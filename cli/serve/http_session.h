// HttpSession: a connection of HttpServer: reads its requests and writes their answers. On the server's thread.
#pragma once
#include <utility>  // before Asio, which uses it but does not include it (Boost 1.74)

#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/serve/body_room.h"
#include "cli/serve/http_head.h"
#include "cli/serve/http_server.h"

namespace seer {

class HttpSession;

/// The open connections of a server, and what it shares with them.
struct HttpSessions {
  explicit HttpSessions(HttpServerConfig config_in) : config(std::move(config_in)) {}
  void add(const std::shared_ptr<HttpSession>& session);
  void remove(const std::shared_ptr<HttpSession>& session);

  const HttpServerConfig config;
  BodyRoom bodies{config.bodies_bytes_max};
  boost::asio::io_context context{1};
  HttpHandler handler;
  HttpWatcher watcher;
  HttpUploadOpener open_upload;
  bool is_loopback = false;  // clients are of this machine
  std::vector<char> discarded = std::vector<char>(64 << 10);  // for bytes that nobody reads, of all connections
  std::set<std::shared_ptr<HttpSession>> open;
  std::atomic<size_t> count = 0;  // of `open`, for other threads
};

/// What was written for a client and has not been sent. One part at a time is being sent; small ones that wait go together.
class HttpUnsent {
 public:
  void put(std::string data);
  bool empty() const { return parts_.empty(); }
  size_t bytes() const { return bytes_; }
  bool is_sending() const { return is_sending_; }
  /// The part to send now. REQUIRES: there is one, and none is being sent.
  std::string_view send_next();
  /// This much of it was sent. 0: sending failed.
  void sent(size_t bytes);

 private:
  std::deque<std::string> parts_;
  size_t bytes_ = 0;       // of all, without those sent
  size_t sent_bytes_ = 0;  // of the first part
  bool is_sending_ = false;
};

/// A connection. At most one request of it is at work; the next one may be read meanwhile, which also tells when the client goes.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  explicit HttpSession(HttpSessions& sessions);
  virtual ~HttpSession() = default;

  virtual void start() = 0;
  void close();
  bool is_closed() const { return closed_; }

  // ---- of the reply at work ---------------------------------------------------------------------------------------------------
  void send(int status, std::string body, std::string_view type, std::string_view fields = {});
  void begin(std::string_view type);
  void write_chunk(std::string_view part);
  void end_answer();
  void set_gone(std::function<void()> gone) {
    if (closed_) return gone();
    gone_ = std::move(gone);
  }
  bool has_room() const;
  bool has_unsent() const { return !unsent_.empty(); }
  void set_room(std::function<void()> room) { room_ = std::move(room); }

 protected:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using PartParser = boost::beast::http::request_parser<boost::beast::http::buffer_body>;
  using Done = std::function<void(boost::system::error_code)>;
  virtual void async_read_head(boost::beast::flat_buffer& buffer, Parser& parser, Done done) = 0;
  virtual void async_read_body(boost::beast::flat_buffer& buffer, Parser& parser, Done done) = 0;
  virtual void async_read_any(boost::asio::mutable_buffer to, std::function<void(boost::system::error_code, size_t bytes)> done) = 0;
  virtual void async_write(std::string_view data, Done done) = 0;
  virtual void cancel() = 0;  // what is being read or written: its `done` gets an error
  virtual void end_sending() = 0;
  virtual void close_socket() = 0;

  void read();
  void expect_request();

 private:
  int64_t silence_s() const;  // of what is being read
  void on_head(boost::system::error_code error);
  void ask_for_body();
  void read_body();
  void on_body(boost::system::error_code error);
  void on_unread(boost::system::error_code error);
  void receive(const std::string& path, std::shared_ptr<HttpUpload> upload);
  void take_parts();
  void finish_upload();
  void refuse(int status, std::string_view message, std::string path = {});
  void refuse_body();
  void linger();
  void discard();
  void handle();
  std::shared_ptr<HttpReply> begin_work(const HttpHead& head, bool keeps_alive);
  void put(std::string data);
  void write_next();
  bool has_body() const;
  const char* end_of_head() const { return keeps_alive_ ? "\r\n\r\n" : "\r\nConnection: close\r\n\r\n"; }

  HttpSessions& sessions_;
  boost::asio::steady_timer deadline_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::shared_ptr<HttpUpload> upload_;        // takes the body that is being read, if it comes in parts
  std::optional<PartParser> part_parser_;
  std::vector<char> part_;
  std::optional<boost::beast::http::request<boost::beast::http::string_body>> next_;  // read while another one is at work
  uint64_t body_number_ = 0;            // in BodyRoom, of the body that waits or is read; 0: it needs no room
  std::optional<HttpRefusal> refusal_;  // of what came while another request was at work: it is sent after that one's answer
  HttpUnsent unsent_;
  std::function<void()> gone_, room_;
  std::string path_;            // of the request at work
  bool is_at_work_ = false;     // a request was handed over, and its answer is not over
  bool has_begun_ = false;      // its answer is a stream
  bool is_head_ = false;        // it wants no body
  bool takes_chunks_ = true;    // not in HTTP/1.0
  bool is_silent_ = false;      // its upload: what it reads is cancelled
  bool keeps_alive_ = true;
  bool closes_after_write_ = false;
  bool lingers_ = false;        // before it closes
  bool closed_ = false;
};

std::shared_ptr<HttpSession> make_session(HttpSessions& sessions, boost::asio::ip::tcp::socket socket);
std::shared_ptr<HttpSession> make_session(HttpSessions& sessions, boost::asio::ip::tcp::socket socket, boost::asio::ssl::context& tls);

}  // namespace seer
