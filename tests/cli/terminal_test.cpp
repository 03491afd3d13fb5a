#include "cli/terminal.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <optional>
#include <string>

using namespace seer;

namespace {

/// An environment variable that is restored at the end.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = ::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_ ? before_->c_str() : nullptr); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const char* value) { value ? ::setenv(name_, value, 1) : ::unsetenv(name_); }

  const char* name_;
  std::optional<std::string> before_;
};

/// A terminal that nobody looks at.
class PseudoTerminal {
 public:
  PseudoTerminal() : fd_(::posix_openpt(O_RDWR | O_NOCTTY)) {
    REQUIRE(fd_ >= 0);
    REQUIRE(::isatty(fd_) == 1);
  }
  ~PseudoTerminal() { ::close(fd_); }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  int fd() const { return fd_; }
  void set_columns(unsigned short columns) {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(fd_, TIOCSWINSZ, &size) == 0);
  }

 private:
  int fd_;
};

}  // namespace

TEST_CASE("terminal: a terminal is live and coloured, and has its columns, or 80 if it does not know them") {
  const Variable term("TERM", "xterm"), no_color("NO_COLOR", nullptr);
  PseudoTerminal terminal;
  terminal.set_columns(123);
  const Terminal wide = terminal_of(terminal.fd());
  CHECK(wide.is_live);
  CHECK(wide.is_coloured);
  CHECK(wide.columns == 123);
  terminal.set_columns(0);
  CHECK(terminal_of(terminal.fd()).columns == 80);
}

TEST_CASE("terminal: a NO_COLOR that is not empty turns off colour, but not redrawing the line") {
  const Variable term("TERM", "xterm");
  const PseudoTerminal terminal;
  for (const char* value : {"1", ""}) {
    const Variable no_color("NO_COLOR", value);
    CHECK(terminal_of(terminal.fd()).is_live);
    CHECK(terminal_of(terminal.fd()).is_coloured == std::string(value).empty());
  }
}

TEST_CASE("terminal: a file, a dumb terminal and one of no known kind are neither live nor coloured") {
  const PseudoTerminal terminal;
  const int file = ::open("/dev/null", O_WRONLY);
  REQUIRE(file >= 0);
  const struct {
    const char* term;
    int fd;
  } table[] = {{"xterm", file}, {"dumb", terminal.fd()}, {nullptr, terminal.fd()}};
  for (const auto& row : table) {
    const Variable term("TERM", row.term);
    const Terminal found = terminal_of(row.fd);
    CHECK(!found.is_live);
    CHECK(!found.is_coloured);
    CHECK(found.columns == 80);
  }
  ::close(file);
}

TEST_CASE("terminal: a look ends with its text, and without colour the text is as it was") {
  CHECK(with_look("12 s", Look::kBold, true) == "\x1b[1m12 s\x1b[0m");
  CHECK(with_look("failed", Look::kAttention, true) == "\x1b[1;33mfailed\x1b[0m");
  CHECK(with_look("failed", Look::kAttention, false) == "failed");
}
