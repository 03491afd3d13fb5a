// Figures as text for people: digits in groups of three, bytes scaled, "-" for unknown.
// Used by the reports. Pure.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

namespace seer {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();  // null in JSON, "-" in tables

/// As printf writes it. REQUIRES: at most 63 bytes; what is longer is cut.
__attribute__((format(printf, 1, 2))) std::string formatted(const char* format, ...);

std::string count_text(int64_t count);               // 1234567 -> "1 234 567"
std::string bytes_text(int64_t bytes);               // 1572864 -> "1.5 MiB"
std::string decimal_text(double value, int digits);  // digits: after the point
std::string share_text(double share);                // 0.9 -> "90.0 %"

}  // namespace seer
