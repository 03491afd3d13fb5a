#include "protocols/check.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

using namespace seer;

namespace {

/// What a process of its own writes to stderr while it runs `work`, and the signal that ended it; 0: none did.
template <class Work>
std::pair<std::string, int> outcome(Work work) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    work();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char part[256];
  for (ssize_t n; (n = ::read(ends[0], part, sizeof(part))) > 0;) text.append(part, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return {text, WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

}  // namespace

TEST_CASE("check: a condition that does not hold ends the process, and says which and with what values") {
  const auto [text, signal] = outcome([] {
    std::signal(SIGABRT, SIG_DFL);  // not the test runner's
    const int used = 3;
    SEER_CHECK(used < 2, used, "of two");
  });
  CHECK(signal == SIGABRT);
  CHECK(text.find("check_test.cpp:") != std::string::npos);
  CHECK(text.find("check failed: used < 2 | 3 | of two\n") != std::string::npos);
}

TEST_CASE("check: a condition that holds is asked once, and its values not at all") {
  int asked = 0, values = 0;
  const auto holds = [&] { return ++asked > 0; };
  const auto value = [&] { return ++values; };
  SEER_CHECK(holds(), value());
  CHECK(asked == 1);
  CHECK(values == 0);
}
