// A peer that keeps to no protocol: it sends a transport whatever it is given. For the tests of what the transport does then.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "protocols/result.h"

namespace seer {

/// Sends active messages of this id, one by one, to the owner of an address of publish(); returns when all have arrived.
Status send_raw_ucx(const std::string& address, unsigned id, std::span<const std::string> headers, const std::string& data);

}  // namespace seer
