// `seer doctor`: reports what this machine and this build have, what each missing part costs, and the command that adds it.
// Used by seer.cpp. inspect_machine() checks the processor, memory, loadable libraries and programs in PATH; measure_speed() keeps the
// cores busy for a moment; the rest is pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/cpu/machine_limits.h"

namespace seer {

/// One optional part: CUDA, UCX, RocksDB, SentencePiece, utf8proc, prometheus-cpp, mimalloc.
struct PartFinding {
  std::string name;
  bool is_used = false;  // this build has the code that uses it
  std::string found;     // on this machine: version, devices, transports; empty: nothing, or not looked for
  std::string without;   // what Seer does without it
  std::string add;       // the command that adds it; empty: there is none
};

struct MachineFindings {
  std::string processor;                      // the name that it reports
  std::vector<std::string> instruction_sets;  // those that the CPU engine has kernels for; empty: it uses portable ones
  int64_t cores = 0;                          // that this process may use
  MachineLimits limits;                       // with all cores; zeros: not measured
  int64_t memory_bytes = 0;                   // the machine's, or the limit of this process's control group
  int64_t memory_free_bytes = 0;
  std::string caf;                            // version that the program was built with
  std::vector<PartFinding> parts;
};

MachineFindings inspect_machine();
/// Fills `limits`: a quarter of a second with all cores busy. Leaves zeros if memory is short.
void measure_speed(MachineFindings& findings);

/// The main job (rollouts on the CPU with the shipped model) needs no optional part, only this much free memory.
inline constexpr int64_t kMainJobBytes = int64_t{1} << 30;
bool can_run_main_job(const MachineFindings& findings);
std::string doctor_text(const MachineFindings& findings);

}  // namespace seer
