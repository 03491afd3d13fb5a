#include "cli/host_port.h"

#include <charconv>

#include "protocols/text.h"

namespace seer {

Result<HostPort> parse_host_port(const char* flag, const std::string& text, bool may_choose) {
  const auto wrong = [&](const auto&... expected) {
    return fail(Code::kInvalidArgument, flag, " ", text, ": expected ", expected...);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong("HOST:PORT, as 127.0.0.1:7000");
  HostPort found{.host = text.substr(0, colon)};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, found.port);
  if (error != std::errc() || rest != end || (found.port == 0 && !may_choose))
    return wrong("a port from ", may_choose ? 0 : 1, " to 65535 after the colon");
  if (found.host == "localhost") found.host = "127.0.0.1";
  if (found.host != "127.0.0.1")
    return wrong("127.0.0.1 as the host: machines of a cluster are processes of one machine as yet");
  return found;
}

}  // namespace seer
