// MachineProcess: a process of a benchmark's cluster. It ends with its owner, even if that is killed.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "protocols/check.h"

namespace seer {

/// The same clock in all processes of a machine.
inline int64_t monotonic_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

class MachineProcess {
 public:
  /// Runs the program at this path. REQUIRES: called on the main thread (it would end with another one).
  explicit MachineProcess(std::vector<std::string> arguments) {
    int in[2], out[2];
    SEER_CHECK(::pipe(in) == 0);
    SEER_CHECK(::pipe(out) == 0);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::syscall(SYS_close_range, 3u, ~0u, 0u);  // connections of this process
      ::execv(argv[0], argv.data());
      ::_exit(1);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = ::fdopen(out[0], "r");
  }
  ~MachineProcess() {
    ::close(in_);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    std::fclose(out_);
  }
  MachineProcess(const MachineProcess&) = delete;
  MachineProcess& operator=(const MachineProcess&) = delete;

  void send(int signal) const { SEER_CHECK(::kill(pid_, signal) == 0); }
  void write(char byte) const { SEER_CHECK(::write(in_, &byte, 1) == 1); }
  /// The next line that it prints. Nothing: it has ended.
  std::optional<std::string> line() {
    char text[256];
    if (std::fgets(text, sizeof(text), out_) == nullptr) return std::nullopt;
    std::string read = text;
    while (!read.empty() && read.back() == '\n') read.pop_back();
    return read;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  FILE* out_ = nullptr;
};

}  // namespace seer
