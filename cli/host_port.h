// HOST:PORT of the command line. Pure.
#pragma once
#include <cstdint>
#include <string>

#include "protocols/result.h"

namespace seer {

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

/// Errors: kInvalidArgument, naming the flag. Hosts are of this machine as yet: what goes between machines is not encrypted.
/// `may_choose`: port 0 is right too, and the system chooses one.
Result<HostPort> parse_host_port(const char* flag, const std::string& text, bool may_choose);

}  // namespace seer
