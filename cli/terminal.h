// Terminal: what the terminal of a stream can show: a line redrawn in place, colours, and how many columns.
// Used by the commands, once at their start. Respects NO_COLOR and TERM=dumb.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace seer {

struct Terminal {
  bool is_live = false;    // a line can be redrawn in place
  bool is_coloured = false;
  int64_t columns = 80;
};

/// `fd`: an open file descriptor. If it is not a terminal, it is neither live nor coloured.
Terminal terminal_of(int fd);

enum class Look : uint8_t { kBold, kAttention };

/// `text` in this look; unchanged without colour.
std::string with_look(std::string_view text, Look look, bool is_coloured);

}  // namespace seer
