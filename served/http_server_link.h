// The EngineServer that speaks HTTP: an HttpClient and a dialect.
#pragma once
#include <memory>
#include <string>

#include "served/engine_server.h"
#include "served/http_client.h"

namespace seer {

struct ServerLinkConfig {
  ServerKind kind = ServerKind::kSglang;
  HttpAddress address;
  int64_t silence_us = 120'000'000;         // an answer without a byte for this long has failed
  int64_t look_us_max = 5'000'000;          // for each answer of look()
  int64_t update_us_max = 600'000'000;      // for each step of a weight update
};

/// "KIND=URL"; a URL alone is SGLang's. Errors: one sentence.
Result<ServerLinkConfig> parse_engine(const std::string& text);

/// REQUIRES: the client outlives all use of the server.
std::shared_ptr<EngineServer> connect_server(ServerLinkConfig config, HttpClient& client);

}  // namespace seer
