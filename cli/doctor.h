// `seer doctor`: what this machine and this build have for Seer: what each missing part costs, and the line that adds it.
// Used by seer.cpp. inspect_machine() looks around (processor, memory, loadable libraries, programs in PATH); the rest is
// pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace seer {

/// One optional part: CUDA, UCX, RocksDB, SentencePiece.
struct PartFinding {
  std::string name;
  bool is_used = false;  // this build has the code that uses it
  std::string found;     // what the machine has of it: version, devices, transports; empty: nothing, or not looked for
  std::string without;   // what Seer does without it, and why that matters
  std::string add;       // the line that adds it; empty: nothing can
};

struct MachineFindings {
  std::string processor;                      // as it calls itself
  std::vector<std::string> instruction_sets;  // of those that the CPU engine has kernels for; empty: portable kernels
  int64_t cores = 0;                          // that this process may use
  int64_t memory_bytes = 0;                   // that this process may use: the machine's, or its control group's limit
  int64_t memory_free_bytes = 0;
  std::string caf;                            // version that the program was built with
  std::vector<PartFinding> parts;
};

MachineFindings inspect_machine();

/// The main job (rollouts on the CPU with the shipped model) needs nothing optional, but this much memory.
inline constexpr int64_t kMainJobBytes = int64_t{1} << 30;
bool can_run_main_job(const MachineFindings& findings);
std::string doctor_text(const MachineFindings& findings);

}  // namespace seer
