// cat(): joins values into one string, for error details and log lines.
#pragma once
#include <sstream>
#include <string>

namespace seer {

template <class... Ts>
std::string cat(const Ts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace seer
