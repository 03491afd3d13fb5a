// Runs work that may end its process. For tests of SEER_CHECK.
#pragma once
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>

namespace seer {

/// What a process of its own writes to stderr while it runs `work`, and the signal that ended it; 0: none did.
template <class Work>
std::pair<std::string, int> outcome(Work work) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);  // not the test runner's
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

}  // namespace seer
