#include "cli/serve/http_server.h"

#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <cctype>
#include <charconv>
#include <chrono>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cli/json_lines.h"
#include "cli/secret_file.h"
#include "cli/serve/body_room.h"
#include "protocols/workers.h"

namespace seer {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::string_view reason_of(int status) {
  switch (status) {
    case 200: return "OK";
    case 202: return "Accepted";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 410: return "Gone";
    case 413: return "Payload Too Large";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return status < 400 ? "OK" : "Error";
  }
}

constexpr size_t kPartBytes = 256 << 10;  // of a body that is taken as it comes, at a time
constexpr uint64_t kSmallBodyBytes = 64 << 10;  // such a body is read at once, whatever others take: 1.2 GiB from all 20 000 connections
constexpr int64_t kLingerS = 5;           // for the client of a refused request to read why, and to stop sending
constexpr size_t kJoinedBytes = 64 << 10;  // parts of at most so much together are copied to be sent together
constexpr size_t kStreamBytes = 1 << 20;  // that a client has not read: with more, its stream has no room
constexpr int kVanishedS = 60;            // a client whose host says nothing for about twice as long is gone

constexpr std::array<std::string_view, 4> kLocalNames{".localhost", ".localdomain", ".local", ".internal"};  // no name of the internet ends so

/// "a%20b+c" -> "a b c"
std::string decode_query(std::string_view text) {
  std::string spaced(text);
  std::ranges::replace(spaced, '+', ' ');
  return decode_percent(spaced);
}

/// Without the body.
HttpRequest request_of(const http::request_header<>& head) {
  std::string_view target(head.target().data(), head.target().size());
  if (target.starts_with("http://") || target.starts_with("https://")) {  // as clients write it for a proxy
    target.remove_prefix(std::min(target.size(), target.find('/', target.find("://") + 3)));
    if (!target.starts_with('/')) target = "/";
  }
  const size_t mark = target.find('?');
  const bool is_head = head.method() == http::verb::head;
  HttpRequest request{.method = is_head ? "GET" : std::string(head.method_string()), .path = std::string(target.substr(0, mark)), .query = {}, .body = {}};
  const auto host = head[http::field::host];
  request.host.assign(host.data(), host.size());
  for (std::string_view rest = mark == std::string_view::npos ? "" : target.substr(mark + 1); !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    request.query[decode_query(pair.substr(0, equals))] = equals == std::string_view::npos ? "" : decode_query(pair.substr(equals + 1));
  }
  return request;
}

class Server;

/// A connection. At most one request of it is at work; the next one may be read meanwhile, which also tells when the client goes.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(Server& server, asio::io_context& context) : server_(server), deadline_(context) {}
  virtual ~Session() = default;

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
  bool has_room() const { return unsent_bytes_ < kStreamBytes; }
  bool has_unsent() const { return !unsent_.empty(); }
  void set_room(std::function<void()> room) { room_ = std::move(room); }

 protected:
  using Parser = http::request_parser<http::string_body>;
  using PartParser = http::request_parser<http::buffer_body>;
  using Done = std::function<void(error_code)>;
  virtual void async_read_head(beast::flat_buffer& buffer, Parser& parser, Done done) = 0;
  virtual void async_read_body(beast::flat_buffer& buffer, Parser& parser, Done done) = 0;
  virtual void async_read_any(asio::mutable_buffer to, std::function<void(error_code, size_t bytes)> done) = 0;
  virtual void async_write(std::string_view data, Done done) = 0;
  virtual void cancel() = 0;  // what is being read or written: its `done` gets an error
  virtual void end_sending() = 0;
  virtual void close_socket() = 0;

  void read();
  int64_t silence_s() const;  // of what is being read
  void expect_request();
  Server& server_;

 private:
  void on_head(error_code error);
  void ask_for_body();
  void read_body();
  void on_body(error_code error);
  void on_unread(error_code error);
  void receive(const std::string& path, std::shared_ptr<HttpUpload> upload);
  void take_parts();
  void finish_upload();
  void refuse(int status, std::string_view message, std::string path = {});
  void refuse_body();
  void linger();
  void discard();
  void handle();
  std::shared_ptr<HttpReply> begin_work(const http::request_header<>& head, bool keeps_alive);
  void put(std::string data);
  void write_next();
  bool has_right_token() const;
  bool has_body() const;
  std::string foreign_page() const;
  const char* end_of_head() const { return keeps_alive_ ? "\r\n\r\n" : "\r\nConnection: close\r\n\r\n"; }

  asio::steady_timer deadline_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::shared_ptr<HttpUpload> upload_;        // takes the body that is being read, if it comes in parts
  std::optional<PartParser> part_parser_;
  std::vector<char> part_;
  std::optional<http::request<http::string_body>> next_;  // read while another one is at work
  uint64_t body_number_ = 0;            // in BodyRoom, of the body that waits or is read; 0: it needs no room
  std::optional<HttpRefusal> refusal_;  // of what came while another request was at work: it is sent after that one's answer
  std::deque<std::string> unsent_;
  size_t unsent_bytes_ = 0, sent_bytes_ = 0;  // the second: of the first of `unsent_`
  std::function<void()> gone_, room_;
  std::string path_;            // of the request at work
  bool is_at_work_ = false;     // a request was handed over, and its answer is not over
  bool has_begun_ = false;      // its answer is a stream
  bool is_head_ = false;        // it wants no body
  bool takes_chunks_ = true;    // not in HTTP/1.0
  bool is_writing_ = false;
  bool is_silent_ = false;      // its upload: what it reads is cancelled
  bool keeps_alive_ = true;
  bool closes_after_write_ = false;
  bool lingers_ = false;        // before it closes
  bool closed_ = false;
};

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
  explicit Reply(std::shared_ptr<Session> session) : session_(std::move(session)) {}
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
  const std::shared_ptr<Session> session_;
  bool is_over_ = false, has_begun_ = false;
};

template <class Stream>
class SessionOn final : public Session {
 public:
  template <class... Args>
  SessionOn(Server& server, asio::io_context& context, Args&&... args)
      : Session(server, context), stream_(std::forward<Args>(args)...) {}
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

class Server final : public HttpServer {
 public:
  explicit Server(HttpServerConfig config) : config_(std::move(config)), acceptor_(context_), pause_(context_) {}
  ~Server() override {
    if (thread_.joinable()) {
      post([this] {
        error_code ignored;
        acceptor_.close(ignored);
        pause_.cancel();
        const auto open = sessions_;
        for (const auto& session : open) session->close();
        work_.reset();
      });
      thread_.join();
    }
  }

  Status open() {
    if (!config_.tls_cert.empty()) {
      SEER_RETURN_IF_ERROR(check_readable("--tls-cert", config_.tls_cert));
      SEER_RETURN_IF_ERROR(check_readable("--tls-key", config_.tls_key));
      tls_.emplace(asio::ssl::context::tls_server);
      error_code error;
      tls_->use_certificate_chain_file(config_.tls_cert, error);
      if (error) return fail(Code::kInvalidArgument, "--tls-cert ", config_.tls_cert, ": ", error.message(), ": expected a PEM certificate");
      tls_->use_private_key_file(config_.tls_key, asio::ssl::context::pem, error);
      if (error) return fail(Code::kInvalidArgument, "--tls-key ", config_.tls_key, ": ", error.message(), ": expected the PEM key of ", config_.tls_cert);
    }
    error_code error;
    tcp::resolver resolver(context_);
    const auto found = resolver.resolve(config_.host, std::to_string(config_.port), tcp::resolver::passive, error);
    if (error || found.empty()) return fail(Code::kInvalidArgument, "host \"", config_.host, "\": ", error.message());
    const tcp::endpoint at = *found.begin();
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return fail(Code::kUnavailable, "cannot listen at ", config_.host, ":", config_.port, ": ", error.message());
    port_ = acceptor_.local_endpoint(error).port();
    is_loopback_ = at.address().is_loopback();
    return {};
  }

  uint16_t port() const override { return port_; }
  void start(HttpHandler handler) override {
    handler_ = std::move(handler);
    accept();
    thread_ = std::thread([this] { context_.run(); });
    ::pthread_setname_np(thread_.native_handle(), "seer.http");  // for `top -H`
  }
  void post(std::function<void()> work) override { asio::post(context_, std::move(work)); }
  void put_aside(std::function<void()> work) override { aside_.put(std::move(work)); }
  void stop_listening() override {
    post([this] {
      error_code ignored;
      acceptor_.close(ignored);
    });
  }
  size_t connections() const override { return connections_; }
  size_t unsent() const override {
    return static_cast<size_t>(std::ranges::count_if(sessions_, [](const auto& session) { return session->has_unsent(); }));
  }

  const HttpServerConfig& config() const { return config_; }
  BodyRoom& bodies() { return bodies_; }
  const HttpHandler& handler() const { return handler_; }
  const HttpWatcher& watcher() const { return watcher_; }
  const HttpUploadOpener& upload_opener() const { return open_upload_; }
  /// For bytes that nobody reads, of all connections.
  std::vector<char>& discarded() { return discarded_; }
  bool is_loopback() const { return is_loopback_; }
  void remove(const std::shared_ptr<Session>& session) { connections_ -= sessions_.erase(session); }

 private:
  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {  // no descriptors are left, most likely: some will be
        pause_.expires_after(std::chrono::milliseconds(50));
        return pause_.async_wait([this](error_code cancelled) {
          if (!cancelled) accept();
        });
      }
      if (sessions_.size() < config_.connections_max) {
        std::shared_ptr<Session> session;
        if (tls_)
          session = std::make_shared<SessionOn<beast::ssl_stream<tcp::socket>>>(*this, context_, std::move(socket), *tls_);
        else
          session = std::make_shared<SessionOn<tcp::socket>>(*this, context_, std::move(socket));
        sessions_.insert(session);
        connections_ = sessions_.size();
        session->start();
      }
      accept();
    });
  }

  const HttpServerConfig config_;
  BodyRoom bodies_{config_.bodies_bytes_max};
  asio::io_context context_{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_{asio::make_work_guard(context_)};
  std::optional<asio::ssl::context> tls_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  HttpHandler handler_;
  std::vector<char> discarded_ = std::vector<char>(64 << 10);
  uint16_t port_ = 0;
  bool is_loopback_ = false;
  std::set<std::shared_ptr<Session>> sessions_;
  std::atomic<size_t> connections_ = 0;
  std::thread thread_;
  Workers<std::function<void()>> aside_{{}, [](std::function<void()>& work) { work(); }};  // last: it ends before what it posts to
};

void Session::close() {
  if (std::exchange(closed_, true)) return;
  deadline_.cancel();
  close_socket();
  upload_.reset();
  room_ = {};
  server_.bodies().leave(body_number_);
  if (const auto gone = std::exchange(gone_, {}); gone && is_at_work_) gone();
  server_.remove(shared_from_this());
}

int64_t Session::silence_s() const {
  const int64_t own_s = upload_ == nullptr ? 0 : upload_->silence_s();
  return own_s > 0 ? own_s : server_.config().request_s;
}

/// The request must have come within the time for it. Who sends an upload hears why it ends.
void Session::expect_request() {
  deadline_.expires_after(std::chrono::seconds(silence_s()));
  deadline_.async_wait([self = shared_from_this(), this](error_code cancelled) {
    if (cancelled || is_at_work_) return;
    if (server_.bodies().waits(body_number_) && !is_writing_) {
      server_.bodies().leave(body_number_);
      return refuse(503, cat("there is no room for the body: those of other requests take all ", server_.config().bodies_bytes_max, " bytes; send it again"));
    }
    if (upload_ == nullptr || is_writing_) return close();
    is_silent_ = true;
    cancel();
  });
}

void Session::read() {
  if (closed_) return;
  buffer_.max_size(server_.config().head_bytes_max + 2 * kPartBytes);  // also for the head of a chunk, and for a trailer
  parser_.emplace();
  parser_->header_limit(server_.config().head_bytes_max);
  parser_->body_limit(UINT64_MAX);  // it is checked when the path is known
  if (!is_at_work_) expect_request();
  async_read_head(buffer_, *parser_, [this](error_code error) { on_head(error); });
}

bool Session::has_right_token() const {
  const std::string& token = server_.config().token;
  if (token.empty()) return true;
  const auto given = parser_->get()[http::field::authorization];
  const beast::string_view scheme = "Bearer ";
  return given.size() == scheme.size() + token.size() && beast::iequals(given.substr(0, scheme.size()), scheme) &&
         CRYPTO_memcmp(given.data() + scheme.size(), token.data(), token.size()) == 0;
}

/// What shows that a browser asks for a page from elsewhere, which its user only looks at; empty: nothing does.
std::string Session::foreign_page() const {
  const auto host = parser_->get()[http::field::host], origin = parser_->get()[http::field::origin];
  const std::string_view authority(host.data(), host.size()), from(origin.data(), origin.size());
  if (!from.empty() && from.substr(std::min(from.size(), from.find("://") + 3)) != authority) return cat("Origin is ", json_string(shown(from)));
  if (!server_.is_loopback() || authority.starts_with('[')) return {};
  // A name of the internet may lead here, and the pages of its owner with it.
  std::string name(authority.substr(0, authority.find(':')));
  if (name.ends_with('.')) name.pop_back();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  error_code no_address;
  asio::ip::make_address(name, no_address);
  const bool is_local = beast::iequals(name, server_.config().host) || name.find('.') == std::string::npos ||
                        std::ranges::any_of(kLocalNames, [&](std::string_view end) { return name.ends_with(end); });
  return no_address && !is_local ? cat("Host is ", json_string(shown(name))) : "";
}

bool Session::has_body() const { return parser_->chunked() || parser_->content_length().value_or(0) > 0; }

void Session::on_head(error_code error) {
  if (closed_) return;
  if (error) return on_unread(error);
  const auto target = parser_->get().target();
  const bool needs_no_token = (target == "/health" || target == "/") && !has_body();  // the page has no figures: it asks for them, with a token
  if (!has_right_token() && !needs_no_token)
    return refuse(401, "the token is missing or wrong: expected \"Authorization: Bearer TOKEN\"", request_of(parser_->get()).path);
  if (server_.config().token.empty())
    if (const std::string page = foreign_page(); !page.empty())
      return refuse(403, cat("the ", page, ": expected an address of this host, or --token-file, since it may be a web page's from elsewhere"));
  // Where a body of another encoding ends is not known: its bytes would be taken for the next request.
  if (const auto encoding = parser_->get()[http::field::transfer_encoding]; !encoding.empty() && !parser_->chunked())
    return refuse(400, cat("Transfer-Encoding is ", json_string(shown({encoding.data(), encoding.size()})), ": expected chunked"));
  std::optional<uint64_t> body_bytes;
  if (const auto length = parser_->content_length()) body_bytes = *length;
  const HttpRequest head = request_of(parser_->get());
  if (auto upload = server_.upload_opener()(head, body_bytes)) return receive(head.path, std::move(upload));
  if (body_bytes.value_or(0) > server_.config().body_bytes_max) return refuse_body();
  parser_->body_limit(server_.config().body_bytes_max);
  // A chunked body does not say how long it is.
  const uint64_t bytes = parser_->chunked() ? server_.config().body_bytes_max : body_bytes.value_or(0);
  if (bytes <= kSmallBodyBytes) return read_body();
  body_number_ = server_.bodies().enter(bytes, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->read_body();
  });
}

void Session::read_body() {
  ask_for_body();
  async_read_body(buffer_, *parser_, [this](error_code error) { on_body(error); });
}

/// The client may wait for this before it sends the body.
void Session::ask_for_body() {
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue") && !is_at_work_) put("HTTP/1.1 100 Continue\r\n\r\n");
}

/// What came is no request, or nothing came and the client has gone.
void Session::on_unread(error_code error) {
  if (error == http::error::body_limit) return refuse_body();
  if (error == http::error::header_limit)
    return refuse(431, "the header is larger than " + std::to_string(server_.config().head_bytes_max) + " bytes");
  if (error == http::error::buffer_overflow) return refuse(431, "the head of a chunk, or what follows the body, is too large");
  if (error.category() == http::make_error_code(http::error::bad_method).category() && error != http::error::end_of_stream &&
      error != http::error::partial_message)
    return refuse(400, "this is no HTTP/1.1 request: " + error.message());
  close();
}

void Session::on_body(error_code error) {
  if (closed_) return;
  if (error) return on_unread(error);
  next_ = parser_->release();
  if (!is_at_work_) handle();
}

void Session::receive(const std::string& path, std::shared_ptr<HttpUpload> upload) {
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
void Session::take_parts() {
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
  if (buffer_.size() > server_.config().head_bytes_max) return on_unread(http::error::buffer_overflow);
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

void Session::finish_upload() {
  const std::shared_ptr<HttpUpload> upload = std::move(upload_);
  std::vector<char>().swap(part_);
  upload->finish(begin_work(part_parser_->get(), part_parser_->keep_alive()));
}

void Session::refuse_body() {
  refuse(413, "the body is larger than " + std::to_string(server_.config().body_bytes_max) + " bytes");
}

/// The connection cannot go on: its reader does not know where the next request begins.
void Session::refuse(int status, std::string_view message, std::string path) {
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

void Session::handle() {
  http::request<http::string_body> message = *std::exchange(next_, {});
  HttpRequest request = request_of(message);
  request.body = std::move(message.body());
  if (body_number_ != 0) {
    const auto leave = [&server = server_, number = std::exchange(body_number_, 0)](void*) {
      server.post([&server, number] { server.bodies().leave(number); });
    };
    request.room = {nullptr, leave};
  }
  path_ = request.path;
  auto reply = begin_work(message, message.keep_alive());
  server_.handler()(std::move(request), std::move(reply));
}

/// Reads the next request meanwhile.
std::shared_ptr<HttpReply> Session::begin_work(const http::request_header<>& head, bool keeps_alive) {
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

void Session::send(int status, std::string body, std::string_view type, std::string_view fields) {
  if (closed_) return;
  server_.watcher()(path_, status, body);
  std::string head = "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason_of(status)) + "\r\nServer: seer\r\nContent-Type: " +
                     std::string(type) + "\r\nContent-Length: " + std::to_string(body.size()) + std::string(fields) + end_of_head();
  const bool has_body = !body.empty() && !is_head_, is_small = body.size() <= kJoinedBytes;
  if (has_body && is_small) head += body;  // one packet
  put(std::move(head));
  if (has_body && !is_small) put(std::move(body));
  end_answer();
}

void Session::begin(std::string_view type) {
  if (closed_) return;
  server_.watcher()(path_, 200, {});
  has_begun_ = true;
  put("HTTP/1.1 200 OK\r\nServer: seer\r\nContent-Type: " + std::string(type) + "\r\nCache-Control: no-cache" +
      (takes_chunks_ ? "\r\nTransfer-Encoding: chunked" : "") + end_of_head());
}

void Session::write_chunk(std::string_view part) {
  if (closed_ || part.empty() || is_head_) return;
  char size[20];
  const auto end = std::to_chars(size, size + sizeof(size), part.size(), 16).ptr;
  if (unsent_bytes_ > server_.config().unread_bytes_max) return close();  // however large this part is: one goes to any client
  put(takes_chunks_ ? std::string(size, end) + "\r\n" + std::string(part) + "\r\n" : std::string(part));
}

void Session::end_answer() {
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
void Session::linger() {
  end_sending();
  deadline_.expires_after(std::chrono::seconds(kLingerS));
  deadline_.async_wait([self = shared_from_this(), this](error_code cancelled) {
    if (!cancelled) close();
  });
  if (!refusal_) discard();  // else it does already
}

void Session::discard() {
  async_read_any(asio::buffer(server_.discarded()), [this](error_code error, size_t) {
    if (closed_) return;
    if (error) return close();
    discard();
  });
}

/// Small parts that wait are sent together.
void Session::put(std::string data) {
  unsent_bytes_ += data.size();
  const bool has_waiting = unsent_.size() > (is_writing_ ? 1 : 0);
  if (has_waiting && unsent_.back().size() + data.size() <= kJoinedBytes)
    unsent_.back() += data;
  else
    unsent_.push_back(std::move(data));
  write_next();
}

void Session::write_next() {
  if (closed_ || is_writing_) return;
  if (unsent_.empty()) {
    if (closes_after_write_) return std::exchange(lingers_, false) ? linger() : close();
    return;
  }
  is_writing_ = true;
  const std::string_view part = std::string_view(unsent_.front()).substr(sent_bytes_, kStreamBytes);
  async_write(part, [this, bytes = part.size()](error_code error) {
    is_writing_ = false;
    if (closed_) return;
    if (error) return close();
    if (!is_at_work_ && !unsent_.empty()) expect_request();  // a client that reads has time for the rest
    const bool had_room = has_room();
    unsent_bytes_ -= bytes;
    sent_bytes_ += bytes;
    if (sent_bytes_ == unsent_.front().size()) {
      unsent_.pop_front();
      sent_bytes_ = 0;
    }
    if (const auto room = room_; room && !had_room && has_room()) room();  // which may write, and end the answer
    write_next();
  });
}

}  // namespace

std::string decode_percent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out.push_back(static_cast<char>(byte));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string http_error_body(std::string_view message, int status) {
  return cat("{\"error\":{\"message\":", json_string(message), ",\"type\":\"", status < 500 ? "invalid_request_error" : "server_error",
             "\",\"param\":null,\"code\":null}}");
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpServerConfig& config) {
  auto server = std::make_unique<Server>(config);
  SEER_RETURN_IF_ERROR(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace seer
