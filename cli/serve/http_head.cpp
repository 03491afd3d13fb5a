#include "cli/serve/http_head.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <array>
#include <boost/asio/ip/address.hpp>
#include <cctype>

#include "cli/json_lines.h"

namespace seer {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;

constexpr std::array<std::string_view, 4> kLocalNames{".localhost", ".localdomain", ".local", ".internal"};  // no name of the internet ends so

/// "a%20b+c" -> "a b c"
std::string decode_query(std::string_view text) {
  std::string spaced(text);
  std::ranges::replace(spaced, '+', ' ');
  return decode_percent(spaced);
}

}  // namespace

HttpRequest request_of(const HttpHead& head) {
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

bool has_right_token(const HttpHead& head, const std::string& token) {
  if (token.empty()) return true;
  const auto given = head[http::field::authorization];
  const beast::string_view scheme = "Bearer ";
  return given.size() == scheme.size() + token.size() && beast::iequals(given.substr(0, scheme.size()), scheme) &&
         CRYPTO_memcmp(given.data() + scheme.size(), token.data(), token.size()) == 0;
}

std::string foreign_page(const HttpHead& head, const std::string& host, bool is_loopback) {
  const auto asked = head[http::field::host], origin = head[http::field::origin];
  const std::string_view authority(asked.data(), asked.size()), from(origin.data(), origin.size());
  if (!from.empty() && from.substr(std::min(from.size(), from.find("://") + 3)) != authority) return cat("Origin is ", json_string(shown(from)));
  if (!is_loopback || authority.starts_with('[')) return {};
  // A name of the internet may lead here, and the pages of its owner with it.
  std::string name(authority.substr(0, authority.find(':')));
  if (name.ends_with('.')) name.pop_back();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  boost::system::error_code no_address;
  boost::asio::ip::make_address(name, no_address);
  const bool is_local = beast::iequals(name, host) || name.find('.') == std::string::npos ||
                        std::ranges::any_of(kLocalNames, [&](std::string_view end) { return name.ends_with(end); });
  return no_address && !is_local ? cat("Host is ", json_string(shown(name))) : "";
}

std::string_view reason_of(int status) {
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

}  // namespace seer
