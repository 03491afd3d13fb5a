// The heads of HTTP requests and answers: what HttpServer reads from the one and writes into the other. Pure.
#pragma once
#include <boost/beast/http.hpp>
#include <string>
#include <string_view>

#include "cli/serve/http_server.h"

namespace seer {

using HttpHead = boost::beast::http::request_header<>;

/// Without the body.
HttpRequest request_of(const HttpHead& head);
/// `token`: as in HttpServerConfig.
bool has_right_token(const HttpHead& head, const std::string& token);
/// What shows that a browser asks for a page from elsewhere, which its user only looks at; empty: nothing does. `host`: of
/// HttpServerConfig; `is_loopback`: it leads to this machine alone.
std::string foreign_page(const HttpHead& head, const std::string& host, bool is_loopback);
/// "Not Found"
std::string_view reason_of(int status);

}  // namespace seer
