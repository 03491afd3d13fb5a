// Terminal: what the reader of a stream can show: a line drawn over itself, colour, how many columns.
// Used by the commands, once at their start. NO_COLOR and TERM=dumb are respected.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace seer {

struct Terminal {
  bool is_live = false;    // a line can be drawn over itself
  bool is_coloured = false;
  int64_t columns = 80;
};

/// `fd`: an open file descriptor. A stream that is no terminal is neither live nor coloured.
Terminal terminal_of(int fd);

enum class Look : uint8_t { kBold, kAttention };

/// `text` in a look; as it is without colour.
std::string with_look(std::string_view text, Look look, bool is_coloured);

}  // namespace seer
