// What nvcc makes of the kernels: its PTX runs on the emulation with all checks and gives the bits of the host compiler's build; what
// ptxas says of the machine code is within the bars of kernel_args.h.
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <tuple>

#include "gpu/cuda/gemm_rows.h"
#include "gpu/cuda/kernel_steps.h"
#include "gpu/cuda/norm_rows.h"
#include "gpu/cuda/occupancy.cuh"
#include "gpu/cuda/sample_rows.h"
#include "simt/ptx.h"
#include "simt/simt.h"

namespace seer {

TEST_CASE("ptx: no finding, the bits of the CPU engine in f32 mode, and no instruction that none reaches") {
  for (const auto& [kind, dtype] : {std::pair{"qwen3", "BF16"}, {"qwen3", "F32"}}) {
    const bool f32 = dtype == std::string("F32");
    const auto model = tiny(kind, dtype);
    const StepsRun run = run_steps(model, f32 ? CudaType::kF32 : CudaType::kBf16);
    REQUIRE_MESSAGE(run.status.ok(), run.status.error().detail);
    if (!f32) continue;
    auto made = make_cpu_engine(model, {.device_blocks = 64, .kv_type = KvType::kF32});
    CHECK(run.sampled == run_steps_on(EngineRunner(*std::move(made)), 5).sampled);
  }
  for (const int32_t dim : {48, 80}) {  // with 64 and 128 in memory
    const auto model = tiny("llama", "BF16", {{"head_dim", dim}, {"num_hidden_layers", 1}, {"attention_bias", true}, {"mlp_bias", true}});
    const StepsRun run = run_steps(model, CudaType::kBf16);
    REQUIRE_MESSAGE(run.status.ok(), run.status.error().detail);
    const Status far = run_far_step(tiny("llama", "BF16", {{"head_dim", dim}, {"num_hidden_layers", 1}, {"max_position_embeddings", 4096}}), CudaType::kBf16);
    REQUIRE_MESSAGE(far.ok(), far.error().detail);
  }
  // Wide rows, so that unrolled loops are reached too, with biases and norms of heads, and with a row that is not finite.
  for (const std::string dtype : {"BF16", "F32"}) {
    const CudaType type = dtype == "F32" ? CudaType::kF32 : CudaType::kBf16;
    // Logits have one type: those of many tokens are sampled once, where they are made in fewer instructions.
    nlohmann::json wide = {{"hidden_size", 580}, {"intermediate_size", 1100}, {"num_hidden_layers", 1},
                           {"vocab_size", dtype == "F32" ? 500 : 5000}, {"head_dim", 128}, {"tie_word_embeddings", false}};
    for (const auto& [kind, attention_bias, mlp_bias] :
         {std::tuple<std::string, bool, bool>{"llama", true, true}, {"qwen3", true, false}, {"qwen3", false, false}}) {
      wide["attention_bias"] = attention_bias;
      wide["mlp_bias"] = mlp_bias;
      wide["hidden_size"] = attention_bias ? 580 : 640;  // qkv in one part, or in two
      const StepsRun run = run_wide_steps(tiny(kind, dtype, wide, WeightType::kAsStored, overflowing_token(kNotFiniteToken)), type);
      REQUIRE_MESSAGE(run.status.ok(), run.status.error().detail);
    }
    const Status far = run_far_step(tiny("llama", dtype, {{"max_position_embeddings", 4096}}), type);
    REQUIRE_MESSAGE(far.ok(), far.error().detail);
  }
  for (const std::string dtype : {"BF16", "F32"}) {  // heads smaller than a warp
    const nlohmann::json small = {{"head_dim", 8}, {"num_hidden_layers", 1}, {"hidden_size", 128}, {"intermediate_size", 64}, {"attention_bias", true}};
    const StepsRun run = run_steps(tiny("qwen3", dtype, small), dtype == "F32" ? CudaType::kF32 : CudaType::kBf16);
    REQUIRE_MESSAGE(run.status.ok(), run.status.error().detail);
  }
  for (const NormCase& c : norm_cases()) check_norm_rows(c);
  for (const bool f32 : {false, true}) check_finite_scan(f32);
  check_sample_rows(sample_cases(2200));
  check_sample_rows(long_sample_cases());
  // Two GPUs join their logits.
  {
    EngineRunner two(*make_cuda_engine(tiny("llama", "BF16", {{"vocab_size", 4800}}), simt_devices(2), small_config(CudaType::kBf16)));
    std::vector<SequenceStep> steps;
    for (uint64_t i = 0; i < 3; ++i) {  // which are a graph of four rows
      TestSequence s = sequence_of(random_tokens(1, 96, i), i, kRandom);
      steps.push_back(two.plan(s, 1, 1));
    }
    two.step(std::move(steps));
  }
  check_gemm_rows({129}, 256);
  check_gemm_rows({17}, 1024);
  const simt::PtxModule::Unreached unreached = simt::ptx_module().unreached();
  if (const char* file = std::getenv("SEER_UNREACHED")) {
    std::ofstream out(file);
    for (const std::string& instruction : unreached.instructions) out << instruction << "\n";
    for (const std::string& branch : unreached.branches) out << branch << " is never taken\n";
  }
  for (const std::string& instruction : unreached.instructions) MESSAGE(instruction);
  CHECK(unreached.instructions.empty());
  CHECK(unreached.branches.size() <= 57);  // see docs/cuda.md
}

TEST_CASE("ptx: each bug planted in its text is a finding or a wrong result") {
  const auto model = tiny("qwen3", "BF16", {{"intermediate_size", 200}});
  const StepsRun want = run_steps(model, CudaType::kBf16, 3);
  REQUIRE(want.status.ok());
  const std::vector<std::array<std::string, 3>> edits = {
      {"seer_gemm_bf16_64_64", "cp.async.wait_group 2;", "cp.async.wait_group 3;"},
      {"seer_gemm_bf16_64_64", "bar.sync \t0;", ""},
      {"seer_gemm_bf16_16_32", "bar.sync \t0;", ""},
      {"seer_gemm_bf16_16_32", ".row.col.f32", ".row.row.f32"},  // not known to the interpreter
      {"seer_attention_32", ".x4.trans.shared", ".x4.shared"},
      {"seer_attention_32", "cp.async.wait_group 0;", ""},
      {"seer_attention_combine", "rcp.rn", "sqrt.rn"},
      {"seer_norm_bf16", "sqrt.rn", "rcp.rn"},
      {"seer_rope_bf16", "sqrt.rn", "rcp.rn"},
      {"seer_sample_rows", "atom.global.or", "atom.global.add"}};
  for (const auto& [entry, from, to] : edits) {
    CAPTURE(entry);
    CAPTURE(from);
    REQUIRE(simt::edit_ptx(entry, from, to));
    const StepsRun run = run_steps(model, CudaType::kBf16, 3);
    CHECK((!run.status.ok() || run.sampled != want.sampled));
  }
  CHECK(!simt::edit_ptx("", "", ""));
}

TEST_CASE("ptxas: no spills, no local memory, registers and blocks within the bars of each kernel, for every architecture") {
  std::ifstream log(SEER_PTXAS_LOG);
  std::map<std::string, cuda::KernelInfo> bars;
  for (const cuda::KernelInfo& info : cuda::kKernels) bars[std::string("seer_") + info.name] = info;
  std::string line, kernel;
  int architecture = 0;
  std::map<std::string, int> seen, most, fewest;
  while (std::getline(log, line)) {
    const auto number_before = [&](const std::string& text) {
      const size_t end = line.find(text);
      if (end == std::string::npos) return -1;
      const size_t begin = line.find_last_not_of("0123456789", end - 1) + 1;
      return std::stoi(line.substr(begin, end - begin));
    };
    if (const size_t at = line.find("entry function '"); at != std::string::npos) {
      kernel = line.substr(at + 16, line.find('\'', at + 16) - at - 16);
      ++seen[kernel];
      architecture = std::stoi(line.substr(line.find("'sm_") + 4));
    }
    CAPTURE(kernel);
    if (line.find("spill stores") != std::string::npos) {
      CHECK(number_before(" bytes stack frame") == 0);
      CHECK(number_before(" bytes spill stores") == 0);
      CHECK(number_before(" bytes spill loads") == 0);
    }
    if (const int registers = number_before(" registers"); registers >= 0) {
      most[kernel] = std::max(most[kernel], registers);
      REQUIRE(bars.contains(kernel));
      CHECK(registers <= bars[kernel].registers_max);
      const int blocks = blocks_per_multiprocessor(architecture, registers, bars[kernel]);
      CAPTURE(architecture);
      CHECK(blocks >= std::min(bars[kernel].blocks_min, blocks_by_shared_memory(architecture, bars[kernel])));
      fewest[kernel] = fewest.contains(kernel) ? std::min(fewest[kernel], blocks) : blocks;
    }
  }
  for (const auto& [name, bar] : bars) {
    CAPTURE(name);
    CHECK(seen[name] >= 1);
    MESSAGE(name << ": " << most[name] << " registers, at most " << bar.registers_max << "; " << fewest[name] << " blocks, at least "
                 << bar.blocks_min);
  }
}

}  // namespace seer
