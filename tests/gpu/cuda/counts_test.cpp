// What kernels ask memory for, counted by the emulation: the bytes that their headers state, and how far the accesses are from the
// fewest sectors of global memory and wavefronts of shared memory.
#include <map>
#include <string>

#include "gpu/cuda/cuda_forward.h"
#include "gpu/cuda/kernel_steps.h"
#include "simt/simt.h"

namespace seer {
namespace {

/// Bytes of global memory that the launches of a kernel in one step read and write by its header's formula; `small` is what each
/// thread may read of plans and row states besides. sectors: of scattered accesses, whose least is stated; else 0.
struct Stated {
  int64_t read = 0, written = 0, small = 0, sectors = 0;
};

struct Step {
  int64_t rows = 0, context = 0;  // rows of a step, each of a sequence with this context
  std::map<std::string, simt::KernelCount> counts;
};

/// A step of `sequences` rows that decode behind `context` tokens each.
Step counted_decode(const std::shared_ptr<const Model>& model, int sequences, int context) {
  CudaEngineConfig config = small_config(CudaType::kBf16);
  config.graphs = false;  // whose grids are larger than the step
  EngineRunner runner(simt_engine(model, config));
  std::vector<TestSequence> live;
  std::vector<SequenceStep> prompts, decodes;
  for (int i = 0; i < sequences; ++i) {
    live.push_back(sequence_of(random_tokens(context, 96, static_cast<uint64_t>(i)), 1, SamplingParams{}));
    prompts.push_back(runner.plan(live.back(), context - 1, 0));
  }
  runner.step(std::move(prompts));
  for (TestSequence& s : live) decodes.push_back(runner.plan(s, 1, 1));
  simt::options().count = true;
  simt::take_kernel_counts();
  runner.step(std::move(decodes));
  simt::options().count = false;
  return {sequences, context, simt::take_kernel_counts()};
}

}  // namespace

TEST_CASE("counts: kernels move the bytes that their headers state") {
  const auto model = tiny("llama", "BF16");
  const ModelConfig& c = model->config;
  constexpr int64_t kDim = 32;  // of heads in memory
  for (const auto& [sequences, context] : {std::pair{5, 40}, {16, 20}}) {
    const Step step = counted_decode(model, sequences, context);
    const int64_t m = step.rows, layers = c.layers, q = c.query_size(), kv = c.kv_size();
    std::map<std::string, Stated> stated;
    const auto gemm = [&](int64_t n, int64_t k, bool activated = false) {
      n = (n + 63) / 64 * 64;
      k = (k + 63) / 64 * 64;
      Stated& s = stated["gemm_bf16_16_32"];
      s.read += n * k * 2 + n / 32 * m * k * 2;
      s.written += activated ? m * n : m * n * 4;
      s.small += n / 32 * 64 * 4;
    };
    for (int64_t i = 0; i < layers; ++i) {
      gemm(q + 2 * kv, c.hidden_size);
      gemm(c.hidden_size, q);
      gemm(2 * c.intermediate_size, c.hidden_size, true);
      gemm(c.hidden_size, c.intermediate_size);
    }
    gemm(c.vocab_size, c.hidden_size);
    stated["embed_bf16"] = {m * c.hidden_size * 2, m * c.hidden_size * 4, m * 128 * 20};
    // Two norms per layer, of which the first adds nothing, and one of the samples, which leaves the hidden states.
    const int64_t norms = 2 * layers + 1, norm_row = c.hidden_size * 4;
    stated["norm_bf16"] = {m * norm_row * (norms * 2 + norms - 1), m * (norm_row * (norms - 2) + norms * c.hidden_size * 2),
                           norms * m * cuda::kNormThreads * 16};
    stated["rope_bf16"] = {layers * m * ((q + 2 * kv) * 4 + (c.heads + c.kv_heads) * c.head_dim * 4),
                           layers * m * (c.heads + 2 * c.kv_heads) * kDim * 2, layers * m * 256 * 24};
    // A tile per sequence here.
    const int64_t partial = layers * m * c.heads * (kDim + 2) * 4;
    stated["attention_32"] = {layers * m * (context * 2 * kDim * 2 * c.kv_heads + c.heads * kDim * 2), partial,
                              layers * m * c.kv_heads * 128 * (4 * 8 + 4 * 16)};
    // Every thread, one per two elements, reads the largest and the sum of its splits.
    stated["attention_combine"] = {layers * m * (q * 4 + q / 2 * 8), layers * m * q * 2, layers * m * c.heads * kDim * 16};
    // A block of 128 threads each, which read up to 16 bytes of the header.
    const int64_t blocks = m * ((context + 15) / 16);
    stated["apply_changes"] = {m * 116 + blocks * 12, m * 112 + blocks * 4, 128 * 16, m * 29 + blocks * 4};
    stated["begin_rows"] = {m * 44, m * 36, 128 * 16, m * 7};
    stated["weigh_logits"] = {m * c.vocab_size * 4, m * 12, m * 256 * 48};
    stated["sample_rows"] = {m * (12 + c.vocab_size * 4 + 4), m * 8, m * 256 * 96};  // one part
    for (const auto& [kernel, s] : stated) {
      CAPTURE(kernel);
      REQUIRE(step.counts.contains(kernel));
      const simt::KernelCount& count = step.counts.at(kernel);
      CHECK(count.written_bytes == s.written);
      CHECK(count.read_bytes >= s.read);
      CHECK(count.read_bytes <= s.read + s.small);
      if (s.sectors > 0) CHECK(count.sectors <= s.sectors + s.small / 128);  // of the header one per warp and access
      MESSAGE(kernel << ": reads " << count.read_bytes << " stated " << s.read << ", writes " << count.written_bytes << " stated "
                     << s.written << ", sectors " << count.sectors << " least " << count.sectors_least);
    }
  }
}

TEST_CASE("counts: what finish_rows moves, of samples whose slots go on and of others") {
  using namespace cuda;
  constexpr int32_t kRows = 100, kGoOn = 60;
  const auto device = simt::make_simt_device({});
  Pass pass;
  pass.rows.resize(kRows);
  for (int32_t i = 0; i < kRows; ++i) pass.samples.push_back({.row = i, .advances_slot = i < kGoOn ? (i * 7) % kRows : -1});
  std::vector<std::byte> plan(static_cast<size_t>(CudaForward::plan_bytes(kRows)));
  CudaForward::write_plan(pass, plan.data());
  std::vector<Sampled> sampled(kRows, {.token = 5, .logprob = 0});
  sampled[1].token = kNotFinite;
  std::vector<SlotState> slots(kRows);
  std::byte* const on_device = put_on(*device, slots);
  const FinishArgs args{.plan = reinterpret_cast<const Plan*>(put_on(*device, plan)),
                        .sampled = reinterpret_cast<const Sampled*>(put_on(*device, sampled)),
                        .slots = reinterpret_cast<SlotState*>(on_device)};
  simt::options().count = true;
  simt::take_kernel_counts();
  device->launch(Stream::kSteps, KernelId::k_finish_rows, {1}, args);
  device->copy_out(Stream::kSteps, slots.data(), on_device, std::ssize(slots) * int64_t{sizeof(SlotState)});
  REQUIRE(device->wait(device->record(Stream::kSteps)).ok());
  simt::options().count = false;
  const simt::KernelCount count = simt::take_kernel_counts().at("finish_rows");
  CHECK(count.written_bytes == kGoOn * 8);
  CHECK(count.read_bytes == kGoOn * 12 + (kRows - kGoOn) * 4 + 128 * 4 + kRows * 4);  // numbers of samples, and of rows
  CHECK(count.sectors <= kGoOn * 4 + kRows + 8);
  for (int32_t i = 0; i < kRows; ++i) {
    const SlotNext next = slots[static_cast<size_t>((i * 7) % kRows)].next;
    CHECK(next.start == (i < kGoOn));
    CHECK(next.last_token == (i < kGoOn && i != 1 ? 5 : 0));
  }
}

TEST_CASE("counts: accesses that are not scattered take no more sectors and wavefronts than the least") {
  const auto model = tiny("llama", "BF16", {{"head_dim", 64}, {"num_hidden_layers", 1}, {"hidden_size", 128}, {"vocab_size", 2048}});
  for (const auto& [kernel, count] : counted_decode(model, 8, 40).counts) {
    // A thread per row or change: the sectors of these are stated above.
    if (kernel == "apply_changes" || kernel == "begin_rows" || kernel == "finish_rows") continue;
    CAPTURE(kernel);
    // A warp of the GEMM for few rows writes 16 bytes of a row of activations, half a sector.
    for (const auto& [place, ratio] : count.worst) {
      const bool halves = kernel == "gemm_bf16_16_32" && place.ends_with("global write");
      CHECK_MESSAGE(ratio <= (halves ? 2.0 : 1.05), place);
    }
  }
  simt::options().planted = 8;  // no swizzle of keys and values
  const Step planted = counted_decode(model, 8, 40);
  simt::options().planted = 0;
  const simt::KernelCount& attention = planted.counts.at("attention_64");
  CHECK(attention.wavefronts > 2 * attention.wavefronts_least);
}

}  // namespace seer
