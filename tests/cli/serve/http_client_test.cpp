// HttpClient over TLS against HttpServer: what it trusts, and that nothing is sent to others.
#include "served/http_client.h"

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "cli/certificates.h"
#include "cli/serve/http_server.h"

using namespace seer;

namespace {

/// Answers each request with its own body, in small pieces.
struct Echo {
  explicit Echo(const Certificates& certificates, const std::string& certificate = "good") {
    HttpServerConfig config;
    if (!certificate.empty()) config.tls_cert = certificates.path(certificate + ".pem"), config.tls_key = certificates.path(certificate + ".key");
    auto made = HttpServer::listen(config);
    REQUIRE_MESSAGE(made.ok(), made.error().detail);
    server = *std::move(made);
    server->start([this](HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
      ++requests;
      reply->begin("text/plain");
      for (size_t at = 0; at < request.body.size(); at += 1000) reply->write(std::string_view(request.body).substr(at, 1000));
      reply->end();
    });
  }
  std::string url(const std::string& host = "127.0.0.1", const std::string& scheme = "https") const { return cat(scheme, "://", host, ":", server->port()); }
  std::atomic<int> requests = 0;
  std::unique_ptr<HttpServer> server;
};

HttpAnswer ask(HttpClient& client, const std::string& url, std::string body = "hello") {
  auto address = parse_http_address(url);
  REQUIRE_MESSAGE(address.ok(), address.error().detail);
  address->token = "secret";
  std::promise<HttpAnswer> answer;
  client.ask(*address, {"POST", "/", std::move(body)}, {.connect_us = 60'000'000, .silence_us = 60'000'000}, [&](HttpAnswer a) { answer.set_value(std::move(a)); });
  return answer.get_future().get();
}

}  // namespace

TEST_CASE("http client: over TLS a server with a certificate of the trusted CA is answered as without, on connections that are kept") {
  const Certificates certificates;
  Echo echo(certificates);
  HttpClient client;
  REQUIRE(client.trust_only(certificates.path("ca.pem")).ok());
  std::string body;
  while (body.size() < 3'000'000) body += cat(body.size(), " ");
  for (const char* const host : {"127.0.0.1", "localhost"})
    for (int i = 0; i < 3; ++i) {
      const HttpAnswer answer = ask(client, echo.url(host), body);
      CHECK(answer.status == 200);
      CHECK(answer.body == body);
    }
  CHECK(echo.server->connections() == 2);  // one for each name
}

TEST_CASE("http client: a server without the right certificate gets no request, and the sentence says what is wrong with it") {
  const Certificates certificates;
  HttpClient trusting, of_system;
  REQUIRE(trusting.trust_only(certificates.path("ca.pem")).ok());
  const struct {
    const char* certificate;
    HttpClient& client;
    const char* why;
  } table[] = {{"other", trusting, "its certificate is not trusted: unable to get local issuer certificate"},
               {"expired", trusting, "its certificate is not trusted: certificate has expired"},
               {"of-another-host", trusting, "its certificate is not trusted: IP address mismatch"},
               {"good", of_system, "its certificate is not trusted: unable to get local issuer certificate"}};
  for (const auto& row : table) {
    CAPTURE(row.certificate);
    Echo echo(certificates, row.certificate);
    const HttpAnswer answer = ask(row.client, echo.url());
    CHECK(answer.status == 0);
    CHECK(answer.body == row.why);
    CHECK(echo.requests == 0);
  }
  Echo echo(certificates, "of-another-host");
  CHECK(ask(trusting, echo.url("localhost")).body == "its certificate is not trusted: hostname mismatch");
  Echo plain(certificates, "");
  CHECK(ask(trusting, plain.url()).body.starts_with("it does not speak TLS: "));
  CHECK(plain.requests == 0);
}

TEST_CASE("http client: a CA file that holds no certificate is refused with a sentence that names it") {
  const Certificates certificates;
  HttpClient client;
  for (const std::string& path : {std::string("/nowhere/ca.pem"), certificates.path("ca.key")}) {
    const Status trusted = client.trust_only(path);
    REQUIRE_FALSE(trusted.ok());
    CHECK(trusted.error().detail.starts_with(path + ": "));
    CHECK(trusted.error().detail.ends_with(": expected PEM certificates of CAs"));
  }
}

TEST_CASE("http client: an address is a host and a port, with or without TLS") {
  CHECK(url_of(*parse_http_address("https://a.example:30000/")) == "https://a.example:30000");
  CHECK(url_of(*parse_http_address("a:1")) == "http://a:1");
  CHECK(url_of(*parse_http_address("https://[::1]:443")) == "https://[::1]:443");
  CHECK(parse_http_address("https://[::1]:443")->host == "::1");
  for (const char* const wrong : {"https://a", "https://:1", "https://a:0", "ftp://a:1x", "https://a:70000", ""}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_http_address(wrong).ok());
  }
}
