// ChildProcess: runs the real program in a child process, with its output in files of a scratch folder. Ends with its owner.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cli/scratch.h"

namespace seer {

class ChildProcess {
 public:
  /// Starts `arguments[0]`, looked up in PATH unless it has a slash.
  /// It reads from `stdin_fd`, which stays the caller's; -1: from nothing.
  explicit ChildProcess(std::vector<std::string> arguments, int stdin_fd = -1) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    if (stdin_fd >= 0)
      posix_spawn_file_actions_adddup2(&files, stdin_fd, STDIN_FILENO);
    else
      posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, folder_.path("out").c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, folder_.path("err").c_str(), O_WRONLY | O_CREAT, 0600);
    const int failed = ::posix_spawnp(&pid_, argv[0], &files, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    REQUIRE_MESSAGE(failed == 0, arguments[0]);
    pid_fd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    REQUIRE(pid_fd_ >= 0);
  }
  ~ChildProcess() {
    if (exit_code_ < 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(pid_fd_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { REQUIRE(::kill(pid_, signal) == 0); }
  /// False if it still runs after this time.
  bool wait(int timeout_ms) {
    if (exit_code_ >= 0) return true;
    pollfd ended{.fd = pid_fd_, .events = POLLIN, .revents = 0};
    if (::poll(&ended, 1, timeout_ms) <= 0) return false;
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return true;
  }
  /// As a shell has it: 128 + the signal that killed it. REQUIRES: wait() was true.
  int exit_code() const { return exit_code_; }
  std::string out() const { return folder_.read("out"); }
  std::string err() const { return folder_.read("err"); }

 private:
  ScratchFolder folder_;
  pid_t pid_ = -1;
  int pid_fd_ = -1;
  int exit_code_ = -1;  // -1: it runs
};

}  // namespace seer
