#include "cli/router_options.h"

#include "cli/cluster_access.h"
#include "cli/secret_file.h"

namespace seer {
namespace {

/// Whether nobody else can read what is sent to the server.
bool is_private(const HttpAddress& to) { return to.is_tls || is_of_this_host(to.host) || to.host == "localhost"; }

}  // namespace

std::vector<OptionSpec> router_options(RouterOptions& o) {
  return {{"engines", "KIND=URL,...", CommaListField{&o.engines}, "servers that run the requests instead of this machine; KIND is sglang, vllm or seer; a URL alone is sglang's"},
          {"engine-token-file", "FILE", &o.token_file, "file whose first line is the bearer token that these servers want"},
          {"engine-ca", "FILE", &o.ca, "PEM certificates of the CAs that sign those of https servers; without it the system's CAs"},
          {"engine-insecure", "", &o.insecure, "send the token to servers of other hosts without TLS too"},
          {"engine-rows", "N", &o.rows, "most requests at a time on a server that does not say how many it takes", between(1, 1e6)},
          {"engine-stream-tokens", "N", &o.stream_tokens, "tokens that a server is asked for at least, so that chunks that follow each other need no new request; 0: a chunk's", between(0, 1e9)},
          {"engine-silence", "S", &o.silence_s, "seconds without a byte after which a request leaves its server", between(1, 86'400)},
          {"shared-kv", "", &o.shared_kv, "the servers share a KV store, so that moving requests costs nothing"}};
}

Result<ServerLinkConfig> server_of(const std::string& engine, const RouterOptions& options) {
  SEER_ASSIGN_OR_RETURN(ServerLinkConfig link, parse_engine(engine));
  if (!options.token_file.empty() && !options.insecure && !is_private(link.address))
    return fail(Code::kInvalidArgument, engine, ": the token would go to another host without TLS: expected https://, or --engine-insecure");
  link.silence_us = options.silence_s * 1'000'000;
  return link;
}

Status check_router(const RouterOptions& options) {
  for (const std::string& engine : options.engines)
    if (const auto parsed = server_of(engine, options); !parsed.ok()) return fail(Code::kInvalidArgument, "--engines ", parsed.error().detail);
  return {};
}

Result<std::string> read_engine_token(const RouterOptions& options) {
  return read_secret_file("--engine-token-file", options.token_file, 1);  // the servers decide how long it is
}

}  // namespace seer
