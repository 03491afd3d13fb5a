// HttpClient: HTTP/1.1 calls on one thread, any number at a time. Answers come as they arrive, so they may be streams. Connections
// are kept for the next calls to the same address. Thread-safe.
//
// To an https address nothing is sent, not even a token, before the server has shown a certificate for that host, signed by a CA that
// is trusted here.
//
// A call whose kept connection turns out closed before any of the answer came is sent once more on a new one: servers close idle
// connections. Nothing else is repeated.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "protocols/result.h"
#include "served/http_message.h"

namespace seer {

struct HttpAddress {
  std::string host;
  uint16_t port = 0;
  bool is_tls = false;
  std::string token = {};  // sent as "Authorization: Bearer ..."; empty: none
};
/// "http://a:30000", "https://a:30000" or "a:30000", which is http. Errors: one sentence.
Result<HttpAddress> parse_http_address(const std::string& text);
/// "https://a:30000"
std::string url_of(const HttpAddress& address);

struct HttpTimes {
  int64_t connect_us = 5'000'000;
  int64_t silence_us = 30'000'000;  // without a byte of the answer
};

/// What becomes of a call. Called on the client's thread; must not block.
struct HttpListener {
  std::function<void(int status, std::string_view type)> head;  // first
  std::function<void(std::string_view part)> body;
  std::function<void(Status)> end;                              // last, once. Errors: kUnavailable: the sentence has no address
};

class HttpClient {
 public:
  using CallId = uint64_t;
  HttpClient();
  ~HttpClient();  // open calls are dropped
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// From now on only servers with certificates of the CAs in this PEM file are trusted; otherwise those of the system's CAs are.
  /// Errors: kInvalidArgument: one sentence. REQUIRES: no call was started.
  Status trust_only(const std::string& ca_file);
  CallId start(const HttpAddress& to, HttpAsk ask, HttpTimes times, HttpListener listener);
  /// Closes the call's connection. No end() comes; another callback may be running on the client's thread.
  void cancel(CallId call);
  /// Collects the answer, at most kAskedBytesMax of its body. `then` gets status 0 where none came.
  void ask(const HttpAddress& to, HttpAsk ask, HttpTimes times, std::function<void(HttpAnswer)> then);
  /// Closes the connections to it that no call uses.
  void forget(const HttpAddress& to);
  /// Runs f on the client's thread.
  void post(std::function<void()> f);

  static constexpr size_t kAskedBytesMax = size_t{64} << 20;

 private:
  struct Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace seer
