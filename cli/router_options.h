// RouterOptions: the command line's options for servers that others run, on which requests run instead of on this machine.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/option.h"
#include "protocols/result.h"
#include "served/http_server_link.h"

namespace seer {

struct RouterOptions {
  std::vector<std::string> engines;  // KIND=URL; empty: none, and the other options have no effect
  std::string token_file;            // its first line is the bearer token that they want; empty: none
  std::string ca;                    // PEM file of CAs that sign the certificates of https servers; empty: the system's
  bool insecure = false;             // the token may be sent to other hosts without TLS
  int64_t rows = 256;                // most requests at a time on a server that does not say how many it takes
  int64_t stream_tokens = 4096;      // a server is asked for this many at least, if a response may need them; 0: for a chunk only
  int64_t silence_s = 120;           // a request that a server is silent about for this long goes elsewhere
  bool shared_kv = false;            // the servers share a KV store
};

std::vector<OptionSpec> router_options(RouterOptions& options);
/// Whether the options go together. Reads no file.
Status check_router(const RouterOptions& options);
/// A server by its KIND=URL, if the options allow to use it. Errors: kInvalidArgument: one sentence.
Result<ServerLinkConfig> server_of(const std::string& engine, const RouterOptions& options);
/// Empty without --engine-token-file. Errors: one sentence.
Result<std::string> read_engine_token(const RouterOptions& options);

}  // namespace seer
