#include "cli/serve/http_session.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/beast/ssl.hpp>
#include <charconv>
#include <chrono>
#include <utility>

#include "cli/json_lines.h"

namespace seer {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kPartBytes = 256 << 10;  // of a body that is taken as it comes, at a time
constexpr uint64_t kSmallBodyBytes = 64 << 10;  // such a body is read at once, whatever others take: 1.2 GiB from all 20 000 connections
constexpr int64_t kLingerS = 5;           // for the client of a refused request to read why, and to stop sending
constexpr size_t kJoinedBytes = 64 << 10;  // parts of at most so much together are copied to be sent together
constexpr size_t kStreamBytes = 1 << 20;  // that a client has not read: with more, its stream has no room
constexpr int kVanishedS = 60;            // a client whose host says nothing for about twice as long is gone

/// Turns on TCP keep-alive, so that a client whose host vanished is noticed.
void notice_vanished(int socket) {
  const auto set = [socket](int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kVanishedS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kVanishedS / 4);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

class Reply final : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<HttpSession> session) : session_(std::move(session)) {}
  ~Reply() override {
    if (!is_over_ && has_begun_) session_->close();
    if (!is_over_ && !has_begun_) session_->send(500, http_error_body("the request was dropped", 500), "application/json");
  }
  void send(int status, std::string body, std::string_view type) override {
    if (std::exchange(is_over_, true)) return;
    session_->send(status, std::move(body), type);
  }
  void begin(std::string_view type) override {
    has_begun_ = true;
    session_->begin(type);
  }
  void write(std::string_view part) override {
    if (!is_over_) session_->write_chunk(part);
  }
  void end() override {
    if (std::exchange(is_over_, true)) return;
    session_->end_answer();
  }
  void on_gone(std::function<void()> gone) override { session_->set_gone(std::move(gone)); }
  bool has_room() const override { return session_->has_room(); }
  void on_room(std::function<void()> room) override { session_->set_room(std::move(room)); }

 private:
  const std::shared_ptr<HttpSession> session_;
  bool is_over_ = false, has_begun_ = false;
};

template <class Stream>
class SessionOn final : public HttpSession {
 public:
  template <class... Args>
  explicit SessionOn(HttpSessions& sessions, Args&&... args) : HttpSession(sessions), stream_(std::forward<Args>(args)...) {}
  void start() override {
    error_code ignored;
    beast::get_lowest_layer(stream_).set_option(tcp::no_delay(true), ignored);
    notice_vanished(beast::get_lowest_layer(stream_).native_handle());
    if constexpr (std::is_same_v<Stream, tcp::socket>) {
      read();
    } else {
      expect_request();  // from here: one who never ends the handshake must not keep the connection
      stream_.async_handshake(asio::ssl::stream_base::server, [self = shared_from_this(), this](error_code error) {
        if (error || is_closed()) return close();
        read();
      });
    }
  }

 protected:
  void async_read_head(beast::flat_buffer& buffer, Parser& parser, Done done) override {
    http::async_read_header(stream_, buffer, parser, [self = shared_from_this(), done = std::move(done)](error_code error, size_t) { done(error); });
  }
  void async_read_body(beast::flat_buffer& buffer, Parser& parser, Done done) override {
    http::async_read(stream_, buffer, parser, [self = shared_from_this(), done = std::move(done)](error_code error, size_t) { done(error); });
  }
  void async_read_any(asio::mutable_buffer to, std::function<void(error_code, size_t bytes)> done) override {
    stream_.async_read_some(to, [self = shared_from_this(), done = std::move(done)](error_code error, size_t bytes) { done(error, bytes); });
  }
  void async_write(std::string_view data, Done done) override {
    asio::async_write(stream_, asio::buffer(data), [self = shared_from_this(), done = std::move(done)](error_code error, size_t) { done(error); });
  }
  void cancel() override {
    error_code ignored;
    beast::get_lowest_layer(stream_).cancel(ignored);
  }
  void end_sending() override {
    error_code ignored;
    beast::get_lowest_layer(stream_).shutdown(tcp::socket::shutdown_send, ignored);
  }
  void close_socket() override {
    error_code ignored;
    beast::get_lowest_layer(stream_).shutdown(tcp::socket::shutdown_both, ignored);
    beast::get_lowest_layer(stream_).close(ignored);
  }

 private:
  Stream stream_;
};

}  // namespace

std::shared_ptr<HttpSession> make_session(HttpSessions& sessions, tcp::socket socket) {
  return std::make_shared<SessionOn<tcp::socket>>(sessions, std::move(socket));
}

std::shared_ptr<HttpSession> make_session(HttpSessions& sessions, tcp::socket socket, asio::ssl::context& tls) {
  return std::make_shared<SessionOn<beast::ssl_stream<tcp::socket>>>(sessions, std::move(socket), tls);
}

void HttpSessions::add(const std::shared_ptr<HttpSession>& session) {
  open.insert(session);
  count = open.size();
}

void HttpSessions::remove(const std::shared_ptr<HttpSession>& session) { count -= open.erase(session); }

HttpSession::HttpSession(HttpSessions& sessions) : sessions_(sessions), deadline_(sessions.context) {}

bool HttpSession::has_room() const { return unsent_.bytes() < kStreamBytes; }

void HttpSession::close() {
  if (std::exchange(closed_, true)) return;
  deadline_.cancel();
  close_socket();
  upload_.reset();
  room_ = {};
  sessions_.bodies.leave(body_number_);
  if (const auto gone = std::exchange(gone_, {}); gone && is_at_work_) gone();
  sessions_.remove(shared_from_this());
}

int64_t HttpSession::silence_s() const {
  const int64_t own_s = upload_ == nullptr ? 0 : upload_->silence_s();
  return own_s > 0 ? own_s : sessions_.config.request_s;
}

/// The request must have come within the time for it. Who sends an upload hears why it ends.
void HttpSession::expect_request() {
  deadline_.expires_after(std::chrono::seconds(silence_s()));
  deadline_.async_wait([self = shared_from_this(), this](error_code cancelled) {
    if (cancelled || is_at_work_) return;
    if (sessions_.bodies.waits(body_number_) && !unsent_.is_sending()) {
      sessions_.bodies.leave(body_number_);
      return refuse(503, cat("there is no room for the body: those of other requests take all ", sessions_.config.bodies_bytes_max, " bytes; send it again"));
    }
    if (upload_ == nullptr || unsent_.is_sending()) return close();
    is_silent_ = true;
    cancel();
  });
}

void HttpSession::read() {
  if (closed_) return;
  buffer_.max_size(sessions_.config.head_bytes_max + 2 * kPartBytes);  // also for the head of a chunk, and for a trailer
  parser_.emplace();
  parser_->header_limit(sessions_.config.head_bytes_max);
  parser_->body_limit(UINT64_MAX);  // it is checked when the path is known
  if (!is_at_work_) expect_request();
  async_read_head(buffer_, *parser_, [this](error_code error) { on_head(error); });
}

bool HttpSession::has_body() const { return parser_->chunked() || parser_->content_length().value_or(0) > 0; }

void HttpSession::on_head(error_code error) {
  if (closed_) return;
  if (error) return on_unread(error);
  const auto target = parser_->get().target();
  const bool needs_no_token = (target == "/health" || target == "/") && !has_body();  // the page has no figures: it asks for them, with a token
  if (!has_right_token(parser_->get(), sessions_.config.token) && !needs_no_token)
    return refuse(401, "the token is missing or wrong: expected \"Authorization: Bearer TOKEN\"", request_of(parser_->get()).path);
  if (sessions_.config.token.empty())
    if (const std::string page = foreign_page(parser_->get(), sessions_.config.host, sessions_.is_loopback); !page.empty())
      return refuse(403, cat("the ", page, ": expected an address of this host, or --token-file, since it may be a web page's from elsewhere"));
  // Where a body of another encoding ends is not known: its bytes would be taken for the next request.
  if (const auto encoding = parser_->get()[http::field::transfer_encoding]; !encoding.empty() && !parser_->chunked())
    return refuse(400, cat("Transfer-Encoding is ", json_string(shown({encoding.data(), encoding.size()})), ": expected chunked"));
  std::optional<uint64_t> body_bytes;
  if (const auto length = parser_->content_length()) body_bytes = *length;
  const HttpRequest head = request_of(parser_->get());
  if (auto upload = sessions_.open_upload(head, body_bytes)) return receive(head.path, std::move(upload));
  if (body_bytes.value_or(0) > sessions_.config.body_bytes_max) return refuse_body();
  parser_->body_limit(sessions_.config.body_bytes_max);
  // A chunked body does not say how long it is.
  const uint64_t bytes = parser_->chunked() ? sessions_.config.body_bytes_max : body_bytes.value_or(0);
  if (bytes <= kSmallBodyBytes) return read_body();
  body_number_ = sessions_.bodies.enter(bytes, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->read_body();
  });
}

void HttpSession::read_body() {
  ask_for_body();
  async_read_body(buffer_, *parser_, [this](error_code error) { on_body(error); });
}

/// The client may wait for this before it sends the body.
void HttpSession::ask_for_body() {
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue") && !is_at_work_) put("HTTP/1.1 100 Continue\r\n\r\n");
}

/// What came is no request, or nothing came and the client has gone.
void HttpSession::on_unread(error_code error) {
  if (error == http::error::body_limit) return refuse_body();
  if (error == http::error::header_limit)
    return refuse(431, "the header is larger than " + std::to_string(sessions_.config.head_bytes_max) + " bytes");
  if (error == http::error::buffer_overflow) return refuse(431, "the head of a chunk, or what follows the body, is too large");
  if (error.category() == http::make_error_code(http::error::bad_method).category() && error != http::error::end_of_stream &&
      error != http::error::partial_message)
    return refuse(400, "this is no HTTP/1.1 request: " + error.message());
  close();
}

void HttpSession::on_body(error_code error) {
  if (closed_) return;
  if (error) return on_unread(error);
  next_ = parser_->release();
  if (!is_at_work_) handle();
}

void HttpSession::receive(const std::string& path, std::shared_ptr<HttpUpload> upload) {
  if (is_at_work_) return close();  // the client did not wait for the answer before: nothing may wait with it
  path_ = path;
  upload_ = std::move(upload);
  if (const auto refusal = upload_->take({})) return refuse(refusal->status, refusal->message);
  ask_for_body();
  part_parser_.emplace(std::move(*parser_));
  part_.resize(kPartBytes);
  take_parts();
}

/// What has been read goes to the upload; then it reads on. Not with http::async_read_some(), which reads 64 KiB at a time at most.
void HttpSession::take_parts() {
  while (!part_parser_->is_done() && buffer_.size() > 0) {
    auto& body = part_parser_->get().body();
    body.data = part_.data();
    body.size = part_.size();
    error_code error;
    buffer_.consume(part_parser_->put(buffer_.data(), error));
    if (const size_t bytes = part_.size() - body.size; bytes > 0)
      if (const auto refusal = upload_->take({part_.data(), bytes})) return refuse(refusal->status, refusal->message);
    if (error == http::error::need_more) break;
    if (error && error != http::error::need_buffer) return on_unread(error);
  }
  if (part_parser_->is_done()) return finish_upload();
  if (buffer_.size() > sessions_.config.head_bytes_max) return on_unread(http::error::buffer_overflow);
  expect_request();  // from here, until more has come
  async_read_any(buffer_.prepare(kPartBytes), [this](error_code error, size_t bytes) {
    if (closed_) return;
    if (std::exchange(is_silent_, false))
      return refuse(408, "nothing came for " + std::to_string(silence_s()) + " s: ask for more time with ?silence_s=");
    if (error) return on_unread(error);
    buffer_.commit(bytes);
    take_parts();
  });
}

void HttpSession::finish_upload() {
  const std::shared_ptr<HttpUpload> upload = std::move(upload_);
  std::vector<char>().swap(part_);
  upload->finish(begin_work(part_parser_->get(), part_parser_->keep_alive()));
}

void HttpSession::refuse_body() {
  refuse(413, "the body is larger than " + std::to_string(sessions_.config.body_bytes_max) + " bytes");
}

/// The connection cannot go on: its reader does not know where the next request begins.
void HttpSession::refuse(int status, std::string_view message, std::string path) {
  if (is_at_work_) {
    refusal_ = {status, std::string(message)};
    return discard();  // which tells when the client goes
  }
  deadline_.cancel();
  is_head_ = upload_ == nullptr && parser_->is_header_done() && parser_->get().method() == http::verb::head;
  if (!std::exchange(upload_, nullptr)) path_ = std::move(path);
  keeps_alive_ = false;
  lingers_ = true;
  is_at_work_ = true;
  send(status, http_error_body(message, status), "application/json", status == 503 ? "\r\nRetry-After: 1" : "");  // there is no room now
}

void HttpSession::handle() {
  http::request<http::string_body> message = *std::exchange(next_, {});
  HttpRequest request = request_of(message);
  request.body = std::move(message.body());
  if (body_number_ != 0) {
    const auto leave = [&all = sessions_, number = std::exchange(body_number_, 0)](void*) {
      asio::post(all.context, [&all, number] { all.bodies.leave(number); });
    };
    request.room = {nullptr, leave};
  }
  path_ = request.path;
  auto reply = begin_work(message, message.keep_alive());
  sessions_.handler(std::move(request), std::move(reply));
}

/// Reads the next request meanwhile.
std::shared_ptr<HttpReply> HttpSession::begin_work(const HttpHead& head, bool keeps_alive) {
  deadline_.cancel();
  takes_chunks_ = head.version() >= 11;
  keeps_alive_ = keeps_alive && takes_chunks_;
  is_head_ = head.method() == http::verb::head;
  is_at_work_ = true;
  has_begun_ = false;
  auto reply = std::make_shared<Reply>(shared_from_this());
  read();
  return reply;
}

void HttpSession::send(int status, std::string body, std::string_view type, std::string_view fields) {
  if (closed_) return;
  sessions_.watcher(path_, status, body);
  std::string head = "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason_of(status)) + "\r\nServer: seer\r\nContent-Type: " +
                     std::string(type) + "\r\nContent-Length: " + std::to_string(body.size()) + std::string(fields) + end_of_head();
  const bool has_body = !body.empty() && !is_head_, is_small = body.size() <= kJoinedBytes;
  if (has_body && is_small) head += body;  // one packet
  put(std::move(head));
  if (has_body && !is_small) put(std::move(body));
  end_answer();
}

void HttpSession::begin(std::string_view type) {
  if (closed_) return;
  sessions_.watcher(path_, 200, {});
  has_begun_ = true;
  put("HTTP/1.1 200 OK\r\nServer: seer\r\nContent-Type: " + std::string(type) + "\r\nCache-Control: no-cache" +
      (takes_chunks_ ? "\r\nTransfer-Encoding: chunked" : "") + end_of_head());
}

void HttpSession::write_chunk(std::string_view part) {
  if (closed_ || part.empty() || is_head_) return;
  char size[20];
  const auto end = std::to_chars(size, size + sizeof(size), part.size(), 16).ptr;
  if (unsent_.bytes() > sessions_.config.unread_bytes_max) return close();  // however large this part is: one goes to any client
  put(takes_chunks_ ? std::string(size, end) + "\r\n" + std::string(part) + "\r\n" : std::string(part));
}

void HttpSession::end_answer() {
  if (closed_) return;
  if (std::exchange(has_begun_, false) && takes_chunks_ && !is_head_) put("0\r\n\r\n");
  is_at_work_ = false;
  gone_ = room_ = {};
  expect_request();  // also before it closes: the client must read the answer
  if (!keeps_alive_) {
    closes_after_write_ = true;
    return write_next();
  }
  if (refusal_) return refuse(refusal_->status, refusal_->message);
  if (next_)
    asio::post(deadline_.get_executor(), [self = shared_from_this(), this] {
      if (!closed_ && !is_at_work_ && next_) handle();
    });
}

/// A socket that is closed while its client sends resets the connection, and the client may never see the answer.
void HttpSession::linger() {
  end_sending();
  deadline_.expires_after(std::chrono::seconds(kLingerS));
  deadline_.async_wait([self = shared_from_this(), this](error_code cancelled) {
    if (!cancelled) close();
  });
  if (!refusal_) discard();  // else it does already
}

void HttpSession::discard() {
  async_read_any(asio::buffer(sessions_.discarded), [this](error_code error, size_t) {
    if (closed_) return;
    if (error) return close();
    discard();
  });
}

void HttpSession::put(std::string data) {
  unsent_.put(std::move(data));
  write_next();
}

void HttpSession::write_next() {
  if (closed_ || unsent_.is_sending()) return;
  if (unsent_.empty()) {
    if (closes_after_write_) return std::exchange(lingers_, false) ? linger() : close();
    return;
  }
  const std::string_view part = unsent_.send_next();
  async_write(part, [this, bytes = part.size()](error_code error) {
    const bool had_room = has_room();
    unsent_.sent(error ? 0 : bytes);
    if (closed_) return;
    if (error) return close();
    if (!is_at_work_) expect_request();  // a client that reads has time for the rest
    if (const auto room = room_; room && !had_room && has_room()) room();  // which may write, and end the answer
    write_next();
  });
}

// ---- what was not sent -------------------------------------------------------------------------------------------------

void HttpUnsent::put(std::string data) {
  bytes_ += data.size();
  const bool has_waiting = parts_.size() > (is_sending_ ? 1 : 0);
  if (has_waiting && parts_.back().size() + data.size() <= kJoinedBytes)
    parts_.back() += data;
  else
    parts_.push_back(std::move(data));
}

std::string_view HttpUnsent::send_next() {
  is_sending_ = true;
  return std::string_view(parts_.front()).substr(sent_bytes_, kStreamBytes);
}

void HttpUnsent::sent(size_t bytes) {
  is_sending_ = false;
  bytes_ -= bytes;
  sent_bytes_ += bytes;
  if (sent_bytes_ < parts_.front().size()) return;
  parts_.pop_front();
  sent_bytes_ = 0;
}

}  // namespace seer
