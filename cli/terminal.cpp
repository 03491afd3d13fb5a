#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace seer {

Terminal terminal_of(int fd) {
  Terminal terminal;
  const char* kind = std::getenv("TERM");
  if (isatty(fd) == 0 || kind == nullptr || std::string_view(kind) == "dumb") return terminal;
  const char* no_color = std::getenv("NO_COLOR");
  terminal.is_live = true;
  terminal.is_coloured = no_color == nullptr || *no_color == '\0';  // as no-color.org says: off if set and not empty
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.columns = size.ws_col;
  return terminal;
}

std::string with_look(std::string_view text, Look look, bool is_coloured) {
  if (!is_coloured) return std::string(text);
  return (look == Look::kBold ? "\x1b[1m" : "\x1b[1;33m") + std::string(text) + "\x1b[0m";
}

}  // namespace seer
