// cat(): joins values into one string, for error details and log lines.
#pragma once
#include <charconv>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace seer {

/// Not inlined: GCC 12 then warns of overlaps that cannot be.
template <class Integer>
[[gnu::noinline]] void append_integer(std::string& text, Integer number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  text.append(digits, static_cast<size_t>(end - digits));
}

/// Appends what `std::ostream << part` would write. Texts and integers, which are most of it, without a stream: that takes a fourth of
/// the time.
template <class T>
void append_part(std::string& text, const T& part) {
  constexpr bool is_character = sizeof(T) == 1 && !std::is_same_v<T, bool>;
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<T, char>) {
    text += part;
  } else if constexpr (std::is_integral_v<T> && !is_character && !std::is_same_v<T, bool>) {
    using Widest = std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
    append_integer<Widest>(text, part);
  } else {
    std::ostringstream out;
    out << part;
    text += out.view();
  }
}

template <class... Ts>
std::string cat(const Ts&... parts) {
  std::string text;
  (append_part(text, parts), ...);
  return text;
}

}  // namespace seer
