#include "cli/figure_text.h"

#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace seer {

std::string formatted(const char* format, ...) {
  std::array<char, 64> buffer;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer.data(), buffer.size(), format, arguments);
  va_end(arguments);
  return buffer.data();
}

std::string count_text(int64_t count) {
  std::string digits = std::to_string(count);
  for (std::ptrdiff_t i = std::ssize(digits) - 3; i > (count < 0 ? 1 : 0); i -= 3) digits.insert(i, 1, ' ');
  return digits;
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return formatted(unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
}

std::string decimal_text(double value, int digits) {
  return std::isfinite(value) ? formatted("%.*f", digits, value) : "-";
}

std::string share_text(double share) {
  const double percent = std::round(1000 * share) / 10 + 0.0;  // + 0 turns -0 into 0, so that it is not shown as "-0.0"
  return std::isfinite(share) ? formatted("%.1f %%", percent) : "-";
}

}  // namespace seer
