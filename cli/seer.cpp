// seer: the command line. Reads the arguments, runs the subcommand, prints errors as one sentence.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "cli/cluster_commands.h"
#include "cli/config.h"
#include "cli/doctor.h"
#include "cli/node_command.h"
#include "cli/one_line.h"
#include "cli/profile_command.h"
#include "cli/rollout_command.h"
#include "cli/serve/serve_command.h"
#include "cli/sim/simulate_command.h"

#if SEER_HAVE_MIMALLOC
#include <mimalloc.h>
#endif

namespace {

std::atomic<bool> g_stop{false};  // set by Ctrl-C, the only thing a signal handler can do

void on_interrupt(int) { g_stop.store(true); }

/// How SIGHUP was handled when the process started. Read before libraries start, because UCX replaces the handler.
struct sigaction g_inherited_hangup;
void note_hangup(int, char**, char**) { sigaction(SIGHUP, nullptr, &g_inherited_hangup); }
[[gnu::section(".preinit_array"), gnu::used]] void (*const g_at_preinit)(int, char**, char**) = note_hangup;

/// Ctrl-C, SIGTERM and SIGHUP ask the command to stop. A pipe without a reader and a file at its size limit become write errors:
/// an output that fails ends the run with a sentence; a progress line is only lost.
void handle_signals() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESETHAND;  // a second Ctrl-C ends the program at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A closed terminal sends SIGHUP more than once (the shell, then the kernel), so SIGHUP never ends the program at once.
  action.sa_flags = 0;
  if (g_inherited_hangup.sa_handler == SIG_IGN) action.sa_handler = SIG_IGN;  // nohup ignores it
  sigaction(SIGHUP, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

/// A simulation uses the memory of many instances in turn; pages of 2 MiB save TLB misses.
void allocate_in_large_pages() {
#if SEER_HAVE_MIMALLOC
  mi_option_enable(mi_option_large_os_pages);
#endif
}

struct Run {
  seer::Status operator()(const seer::PrintAndExit& print) const {
    std::signal(SIGPIPE, SIG_DFL);  // `seer man | head` ends quietly: nothing is lost
    std::cout << print.text;
    return {};
  }
  seer::Status operator()(const seer::RolloutOptions& options) const { return seer::rollout_command(options, g_stop); }
  seer::Status operator()(const seer::ServeOptions& options) const { return seer::serve_command(options, g_stop); }
  seer::Status operator()(const seer::NodeOptions& options) const { return seer::node_command(options, g_stop); }
  seer::Status operator()(const seer::StatusOptions& options) const { return seer::status_command(options, g_stop); }
  seer::Status operator()(const seer::DrainOptions& options) const { return seer::drain_command(options, g_stop); }
  seer::Status operator()(const seer::ScoreOptions& options) const { return seer::score_command(options, g_stop); }
  seer::Status operator()(const seer::ProfileOptions& options) const { return seer::profile_command(options, g_stop); }
  seer::Status operator()(const seer::SimulateOptions& options) const {
    allocate_in_large_pages();
    return seer::simulate_command(options, g_stop);
  }
  seer::Status operator()(const seer::DoctorOptions&) const {
    seer::MachineFindings findings = seer::inspect_machine();
    seer::measure_speed(findings);
    std::cout << seer::doctor_text(findings);
    if (seer::can_run_main_job(findings)) return {};
    return seer::fail(seer::Code::kUnavailable, "the main job cannot run here");
  }
};

/// Checks that stdout took all that was printed: a full disk shows only when the stream is flushed.
seer::Status flush_stdout() {
  errno = 0;
  std::cout.flush();
  if (std::cout) return {};
  return seer::fail(seer::Code::kIo, "cannot write to standard output", errno != 0 ? seer::cat(": ", std::strerror(errno)) : "");
}

}  // namespace

int main(int argc, char** argv) {
  handle_signals();
  std::vector<std::string> warnings;
  auto command = seer::parse_command_line({argv + 1, argv + argc}, &warnings);
  for (const std::string& warning : warnings) std::cerr << "seer: warning: " << seer::one_line(warning) << "\n";
  if (const auto* print = command.ok() ? std::get_if<seer::PrintAndExit>(&*command) : nullptr; print && print->exit_code != 0) {
    std::cerr << print->text;
    return print->exit_code;
  }
  seer::Status status = command.ok() ? std::visit(Run{}, *command) : seer::Status(command.error());
  if (status.ok()) status = flush_stdout();
  if (status.ok()) return 0;
  std::cerr << "seer: " << seer::one_line(status.error().detail) << "\n";
  return status.error().code == seer::Code::kCancelled ? 130 : status.error().code == seer::Code::kInvalidArgument ? 2 : 1;
}
