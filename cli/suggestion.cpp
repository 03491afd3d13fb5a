#include "cli/suggestion.h"

#include <algorithm>
#include <cctype>

#include "protocols/text.h"

namespace seer {
namespace {

constexpr size_t kTypedMax = 64;    // longer texts are not mistyped names
constexpr size_t kPrefixMin = 3;    // shorter beginnings say too little
constexpr size_t kShownMax = 60;

/// Insertions, deletions, replacements and swaps of neighbours that turn one into the other; upper case is lower case.
size_t edit_distance(std::string_view a, std::string_view b) {
  const auto same = [&](size_t i, size_t j) {
    return std::tolower(static_cast<unsigned char>(a[i])) == std::tolower(static_cast<unsigned char>(b[j]));
  };
  // d[i][j]: of the first i characters of a and the first j of b.
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same(i - 1, j - 1) ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1);
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

size_t distance_max(size_t characters) { return characters <= 4 ? 1 : characters <= 8 ? 2 : 3; }

}  // namespace

std::string nearest_name(std::string_view typed, const std::vector<std::string>& known) {
  if (typed.empty() || typed.size() > kTypedMax) return "";
  std::string nearest;
  size_t least = distance_max(typed.size()) + 1;
  for (const std::string& name : known)
    if (const size_t distance = edit_distance(typed, name); distance < least && distance < name.size()) {
      nearest = name;
      least = distance;
    }
  if (!nearest.empty() || typed.size() < kPrefixMin) return nearest;
  const auto begins = [&](const std::string& name) { return name.starts_with(typed); };
  return std::ranges::count_if(known, begins) == 1 ? *std::ranges::find_if(known, begins) : "";
}

std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known, std::string_view prefix) {
  const std::string name = nearest_name(typed, known);
  return name.empty() ? "" : cat("; did you mean ", prefix, name, "?");
}

std::string shown_value(std::string_view value) {
  std::string shown{value.substr(0, kShownMax)};
  // Do not cut inside a character of several bytes: all bytes but its first are 10xxxxxx.
  if (value.size() > kShownMax) {
    size_t end = kShownMax;
    while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xc0) == 0x80) --end;
    shown.resize(end);
    shown += "...";
  }
  std::ranges::replace_if(shown, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return shown;
}

}  // namespace seer
