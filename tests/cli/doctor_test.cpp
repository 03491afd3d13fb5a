#include "cli/doctor.h"

#include <doctest/doctest.h>

#include "gpu/cuda/cuda_device.h"

using namespace seer;

namespace {

MachineFindings bare_machine() {
  MachineFindings findings;
  findings.cores = 2;
  findings.memory_bytes = int64_t{8} << 30;
  findings.memory_free_bytes = int64_t{4} << 30;
  findings.caf = "0.17.6";
  findings.parts = {{"RocksDB", false, "", "no cold KV tier on disk", "apt-get install librocksdb-dev"},
                    {"SentencePiece", true, "", "no tokenizer.model files", "apt-get install libsentencepiece-dev"},
                    {"UCX", false, "1.13.1, transports tcp", "one process", ""},
                    {"CUDA", false, "", "on the CPU", ""}};
  return findings;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("doctor: a missing part is named with what it costs and what adds it") {
  const std::string text = doctor_text(bare_machine());
  CHECK(contains(text, "  RocksDB         missing\n                  without it: no cold KV tier on disk\n"
                       "                  to add it: apt-get install librocksdb-dev\n"));
  CHECK(contains(text, "  SentencePiece   built in\n"));
  CHECK(!contains(text, "libsentencepiece-dev"));
  CHECK(contains(text, "portable kernels"));
}

TEST_CASE("doctor: a library is not said to work if this build has no code for it") {
  const std::string text = doctor_text(bare_machine());
  CHECK(contains(text, "  UCX             not used: this build has no code for it (this machine: 1.13.1, transports tcp)\n"
                       "                  without it: one process\n"));
  CHECK(contains(text, "  CUDA            not used: this build has no code for it\n"));
  for (const PartFinding& part : inspect_machine().parts)
    if (part.name == "CUDA") CHECK(part.is_used == cuda::has_cuda_engine());
}

TEST_CASE("doctor: the main job needs memory, and no optional part") {
  MachineFindings findings = bare_machine();
  CHECK(can_run_main_job(findings));
  CHECK(doctor_text(findings).ends_with("\nThe main job, `seer rollout`, can run here.\n"));  // an installed program has no scripts
  findings.memory_free_bytes = kMainJobBytes - 1;
  CHECK(!can_run_main_job(findings));
  CHECK(contains(doctor_text(findings), "The main job, `seer rollout`, cannot run here: it needs 1.0 GiB of free memory.\n"));
}

TEST_CASE("doctor: this machine has a core and memory, and all parts that CMake looks for are checked") {
  const MachineFindings findings = inspect_machine();
  CHECK(findings.cores >= 1);
  CHECK(findings.memory_bytes > 0);
  CHECK(findings.memory_free_bytes > 0);
  CHECK(findings.memory_free_bytes <= findings.memory_bytes);
  std::vector<std::string> names;
  for (const PartFinding& part : findings.parts) {
    names.push_back(part.name);
    CHECK(!part.without.empty());
  }
  CHECK(names == std::vector<std::string>{"CUDA", "UCX", "RocksDB", "SentencePiece", "utf8proc", "prometheus-cpp", "mimalloc"});
}

TEST_CASE("doctor: the limits of the machine are told if they were measured") {
  MachineFindings findings = bare_machine();
  CHECK(!contains(doctor_text(findings), "limits"));
  findings.limits = {.read_gb_s = 27.74, .gflop_s = 190.6};
  CHECK(contains(doctor_text(findings),
                 "  limits          memory reads 27.7 GB/s, kernels compute 191 GFLOP/s in registers, with all cores\n"));
}
