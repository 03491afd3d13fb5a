// A peer that follows no protocol: it sends a transport whatever it is given. For tests of how the transport reacts.
#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "protocols/result.h"

namespace seer {

/// Sends active messages with this id, one by one, to the transport whose publish() returned `address`; returns when all arrived.
Status send_raw_ucx(const std::string& address, unsigned id, std::span<const std::string> headers, const std::string& data);

}  // namespace seer
