#include "cli/doctor.h"

#include <dlfcn.h>
#include <stdio.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cli/figure_text.h"
#include "cli/machine_memory.h"
#include "cli/serve/metrics.h"
#include "gpu/cpu/kernels.h"
#include "gpu/cpu/machine_limits.h"
#include "gpu/cpu/thread_pool.h"
#include "gpu/cuda/communicator.h"
#include "gpu/cuda/cuda_device.h"
#include "protocols/text.h"

namespace seer {
namespace {

// ---- processor and memory ------------------------------------------------------------------------------------------

#if defined(__x86_64__)
/// Which registers the operating system saves (XCR0). An instruction set cannot be used if its registers are not saved.
uint64_t saved_registers() {
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

std::vector<std::string> find_instruction_sets() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return {};
  const bool has_fma = (c & bit_FMA) != 0;
  const uint64_t saved = saved_registers();
  const auto saves = [&](uint64_t mask) { return (saved & mask) == mask; };
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return {};
  std::vector<std::string> sets;
  // XCR0: bits 1-2 SSE and AVX, 5-7 AVX-512, 17-18 AMX tiles.
  if (has_fma && (b & bit_AVX2) != 0 && saves(0x6)) sets.push_back("AVX2");
  const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  if ((b & avx512) == avx512 && saves(0xe6)) sets.push_back("AVX-512");
  constexpr uint32_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;  // leaf 7, edx
  if ((d & kAmxBf16) != 0 && (d & kAmxTile) != 0 && saves(0x60000)) sets.push_back("AMX");
  constexpr uint32_t kAvxVnni = 1u << 4;  // leaf 7, subleaf 1, eax
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnni) != 0 && saves(0x6)) sets.push_back("AVX-VNNI");
  return sets;
}
#else
std::vector<std::string> find_instruction_sets() { return {}; }
#endif

/// The text after "key:" in a file of lines like /proc/cpuinfo; empty when there is none.
std::string value_after(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) {
      const size_t colon = line.find(':');
      const size_t value = colon == line.npos ? line.npos : line.find_first_not_of(" \t", colon + 1);
      if (value != line.npos) return line.substr(value);
    }
  return {};
}

// ---- optional parts ------------------------------------------------------------------------------------------------

/// A library, or null. It stays loaded, because these libraries start threads and handlers that unloading would break.
void* load(const char* name) { return ::dlopen(name, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE); }

template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

struct PipeCloser {
  void operator()(FILE* pipe) const { ::pclose(pipe); }
};

/// What a command prints; empty if it does not exist.
std::string output_of(const char* command) {
  const std::unique_ptr<FILE, PipeCloser> pipe(::popen(command, "r"));
  std::string text;
  std::array<char, 4096> buffer;
  while (pipe && ::fgets(buffer.data(), buffer.size(), pipe.get())) text += buffer.data();
  return text;
}

/// Asks the driver's library for devices, which needs no CUDA toolkit. Of several, the first is described.
std::string cuda_devices() {
  void* const cuda = load("libcuda.so.1");
  if (!cuda) return "";
  auto* init = symbol<int(unsigned)>(cuda, "cuInit");
  auto* driver_version = symbol<int(int*)>(cuda, "cuDriverGetVersion");
  auto* device_count = symbol<int(int*)>(cuda, "cuDeviceGetCount");
  auto* device_name = symbol<int(char*, int, int)>(cuda, "cuDeviceGetName");
  int version = 0, count = 0;
  if (!init || !driver_version || !device_count || !device_name || init(0) != 0) return "";
  if (driver_version(&version) != 0 || device_count(&count) != 0 || count == 0) return "";
  std::array<char, 128> name{};
  if (device_name(name.data(), static_cast<int>(name.size()), 0) != 0) return "";
  std::string text = cat(count, " x ", name.data());
  constexpr int kComputeMajor = 75, kComputeMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  auto* attribute = symbol<int(int*, int, int)>(cuda, "cuDeviceGetAttribute");
  int major = 0, minor = 0;
  if (attribute && attribute(&major, kComputeMajor, 0) == 0 && attribute(&minor, kComputeMinor, 0) == 0)
    text += cat(", compute capability ", major, ".", minor);
  auto* memory = symbol<int(size_t*, int)>(cuda, "cuDeviceTotalMem_v2");
  size_t bytes = 0;
  if (memory && memory(&bytes, 0) == 0) text += cat(", ", size_text(static_cast<int64_t>(bytes)));
  return text + cat(", driver for CUDA ", version / 1000, ".", version % 1000 / 10);
}

/// Whether network cards can reach the memory of GPUs. Seer moves KV through host memory in any case.
std::string gpu_direct() {
  return std::ifstream("/sys/module/nvidia_peermem/initstate").good() ? "GPUDirect (nvidia_peermem), not used" : "no GPUDirect";
}

PartFinding find_cuda() {
  const std::string devices = cuda_devices();
  const Result<std::string> nccl = cuda::nccl_version();
  const std::string compiler = output_of(
      "PATH=$PATH:/usr/local/cuda/bin nvcc --version 2>/dev/null | sed -n 's/.*release \\([0-9.]*\\).*/\\1/p'");
  return {.name = "CUDA",
          .is_used = cuda::has_cuda_engine(),
          .found = cat(devices.empty() ? "no device" : devices, ", ",
                       compiler.empty() ? "no nvcc" : "nvcc " + compiler.substr(0, compiler.find('\n')), ", ",
                       nccl.ok() ? "NCCL " + *nccl : "no NCCL (--tensor-parallel above 1 needs it)", ", ", gpu_direct()),
          .without = "models run on the CPU, many times slower than a GPU would",
          .add = "install CUDA's toolkit with nvcc, 12 or later, then build again"};
}

PartFinding find_ucx() {
  PartFinding part;
  part.name = "UCX";
#ifdef SEER_HAVE_UCX
  part.is_used = true;
#endif
  part.without = "KV does not move between the machines of a cluster: it is computed again there";
  part.add = "apt-get install libucx-dev, then build again";
  void* const ucp = load("libucp.so.0");
  if (!ucp) return part;
  auto* version_string = symbol<const char*()>(ucp, "ucp_get_version_string");
  part.found = version_string ? version_string() : "";
  std::istringstream transports(output_of("ucx_info -d 2>/dev/null | sed -n 's/.*Transport: *//p'"));
  std::set<std::string> names;
  for (std::string name; transports >> name;) names.insert(name);
  if (names.empty()) part.found += ", transports not known (apt-get install ucx-utils)";
  for (const std::string& name : names) part.found += (name == *names.begin() ? ", transports " : " ") + name;
  return part;
}

PartFinding built_in(const char* name, bool is_used, const char* without, const char* add) {
  return {name, is_used, "", without, cat(add, ", then build again")};
}

std::string line_text(const std::string& name, const std::string& value) {
  return cat("  ", name, std::string(std::max<std::ptrdiff_t>(1, 16 - std::ssize(name)), ' '), value, "\n");
}

std::string part_text(const PartFinding& part) {
  if (part.is_used) return line_text(part.name, cat("built in", part.found.empty() ? "" : ", ", part.found));
  const std::string here = part.found.empty() ? "" : cat(" (this machine: ", part.found, ")");
  const std::string why = cat(part.add.empty() ? "not used: this build has no code for it" : "missing", here);
  const std::string add = part.add.empty() ? "" : line_text("", "to add it: " + part.add);
  return line_text(part.name, why) + line_text("", "without it: " + part.without) + add;
}

#ifdef SEER_HAVE_ROCKSDB
constexpr bool kHasRocksdb = true;
#else
constexpr bool kHasRocksdb = false;
#endif
#ifdef SEER_HAVE_SENTENCEPIECE
constexpr bool kHasSentencePiece = true;
#else
constexpr bool kHasSentencePiece = false;
#endif
#ifdef SEER_HAVE_UTF8PROC
constexpr bool kHasUtf8proc = true;
#else
constexpr bool kHasUtf8proc = false;
#endif
#ifdef SEER_HAVE_MIMALLOC
constexpr bool kHasMimalloc = true;
#else
constexpr bool kHasMimalloc = false;
#endif

std::string caf_version() {
#ifdef SEER_CAF_VERSION
  return cat(SEER_CAF_VERSION / 10000, ".", SEER_CAF_VERSION / 100 % 100, ".", SEER_CAF_VERSION % 100);
#else
  return "not known";
#endif
}

}  // namespace

MachineFindings inspect_machine() {
  MachineFindings findings;
  findings.processor = value_after("/proc/cpuinfo", "model name");
  findings.instruction_sets = find_instruction_sets();
  findings.cores = find_cpus();
  const MachineMemory memory = find_memory();
  findings.memory_bytes = memory.bytes;
  findings.memory_free_bytes = memory.free_bytes;
  findings.caf = caf_version();
  findings.parts = {
      find_cuda(), find_ucx(),
      built_in("RocksDB", kHasRocksdb, "no cold tier: KV that does not fit in DRAM is computed again", "apt-get install librocksdb-dev"),
      built_in("SentencePiece", kHasSentencePiece, "no tokenizer.model files; tokenizer.json and token ids work",
               "apt-get install libsentencepiece-dev"),
      built_in("utf8proc", kHasUtf8proc, "tokenizers that normalize Unicode (NFC) take ASCII only", "apt-get install libutf8proc-dev"),
      built_in("prometheus-cpp", has_metrics(), "seer serve has no /metrics; its status page works", "apt-get install prometheus-cpp-dev"),
      built_in("mimalloc", kHasMimalloc, "simulations take a quarter longer", "apt-get install libmimalloc-dev")};
  return findings;
}

void measure_speed(MachineFindings& findings) {
  constexpr int64_t kBufferBytes = int64_t{256} << 20;
  const CpuKernels* const kernels = cpu_kernels(CpuIsa::kAuto);
  if (kernels == nullptr || findings.memory_free_bytes < 2 * kBufferBytes) return;
  findings.limits = measure_limits(*kernels, static_cast<int32_t>(findings.cores), kBufferBytes);
}

bool can_run_main_job(const MachineFindings& findings) { return findings.memory_free_bytes >= kMainJobBytes; }

std::string doctor_text(const MachineFindings& findings) {
  std::string sets;
  for (const std::string& set : findings.instruction_sets) sets += (sets.empty() ? "" : " ") + set;
  std::string text = line_text("processor", findings.processor.empty() ? "not known" : findings.processor);
  text += line_text("instructions", sets.empty() ? "none beyond the baseline: portable kernels" : sets);
  text += line_text("cores", cat(findings.cores));
  if (findings.limits.gflop_s > 0)
    text += line_text("limits", cat("memory reads ", decimal_text(findings.limits.read_gb_s, 1), " GB/s, kernels compute ",
                                    decimal_text(findings.limits.gflop_s, 0), " GFLOP/s in registers, with all cores"));
  text +=
      line_text("memory", cat(size_text(findings.memory_bytes), ", ", size_text(findings.memory_free_bytes), " free"));
  text += line_text("CAF", findings.caf);
  for (const PartFinding& part : findings.parts) text += part_text(part);
  text += can_run_main_job(findings) ? "The main job, `seer rollout`, can run here.\n"
                                     : cat("The main job, `seer rollout`, cannot run here: it needs ", size_text(kMainJobBytes), " of free memory.\n");
  return text;
}

}  // namespace seer
