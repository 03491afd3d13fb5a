// The running batch on the device: what slot_engine_test.cpp checks of the host's table, with real tokens. The reference is the same
// engine computing given rows, one sequence at a time.
#include <algorithm>
#include <map>
#include <ranges>

#include "gpu/cuda/cuda_bench.h"
#include "gpu/step_runner.h"

namespace seer {
namespace {

using Tokens = std::vector<int32_t>;

/// Passes everything on, and counts the bytes that steps send to the device.
class CountingDevice final : public cuda::Device {
 public:
  CountingDevice(std::unique_ptr<cuda::Device> device, int64_t& sent_bytes) : device_(std::move(device)), sent_bytes_(sent_bytes) {}
  const cuda::DeviceProperties& properties() const override { return device_->properties(); }
  Result<std::byte*> allocate(int64_t bytes) override { return device_->allocate(bytes); }
  Result<std::byte*> allocate_pinned(int64_t bytes) override { return device_->allocate_pinned(bytes); }
  void copy_in(cuda::Stream stream, void* to, const void* host, int64_t bytes) override {
    sent_bytes_ += bytes;
    device_->copy_in(stream, to, host, bytes);
  }
  void copy_out(cuda::Stream stream, void* host, const void* from, int64_t bytes) override {
    device_->copy_out(stream, host, from, bytes);
  }
  void clear(cuda::Stream stream, void* to, int64_t bytes) override { device_->clear(stream, to, bytes); }
  void launch_raw(cuda::Stream stream, cuda::KernelId kernel, cuda::Grid grid, const void* args, size_t bytes) override {
    device_->launch_raw(stream, kernel, grid, args, bytes);
  }
  void call(cuda::Stream stream, cuda::HostCall& call) override { device_->call(stream, call); }
  void begin_graph() override { device_->begin_graph(); }
  std::optional<cuda::GraphId> end_graph() override { return device_->end_graph(); }
  void launch_graph(cuda::GraphId graph) override { device_->launch_graph(graph); }
  void drop_graphs() override { device_->drop_graphs(); }
  cuda::EventId record(cuda::Stream stream) override { return device_->record(stream); }
  void wait_on(cuda::Stream stream, cuda::EventId event) override { device_->wait_on(stream, event); }
  Status wait(cuda::EventId event) override { return device_->wait(event); }
  bool wait_for(cuda::EventId event, int64_t us_max) override { return device_->wait_for(event, us_max); }
  Status status() const override { return device_->status(); }
  void fail_with(const Error& why) override { device_->fail_with(why); }
  bool drain(cuda::Stream stream, int64_t us_max) override { return device_->drain(stream, us_max); }
  void* native_stream(cuda::Stream stream) override { return device_->native_stream(stream); }

 private:
  std::unique_ptr<cuda::Device> device_;
  int64_t& sent_bytes_;
};

/// An engine driven as an instance does: sequences in slots, orders, grants.
class SlotBench {
 public:
  SlotBench(const std::shared_ptr<const Model>& model, CudaType type, uint64_t seed = 1) {
    auto made = make_cuda_engine(
        model, std::make_unique<CountingDevice>(simt::make_simt_device({.seed = seed}), sent_bytes), small_config(type));
    REQUIRE(made.ok());
    runner = std::make_unique<EngineRunner>(*std::move(made));
    slots = runner->engine().step_run();
    REQUIRE(slots != nullptr);
  }

  /// Computes the prompt but for its last token, then the sequence decodes in the slot.
  void join(int32_t slot, TestSequence& s, int64_t gain_max) {
    if (std::ssize(s.tokens) > 1) {
      slots->join(slot, runner->plan(s, std::ssize(s.tokens) - 1, 0), std::nullopt);
      CHECK(order().ended == Tokens{slot});
      slots->leave(slot);
    }
    const SequenceStep step = runner->plan(s, 1, 1);
    slots->join(slot, step, StepsLimit{.gain_max = gain_max, .covered = std::ssize(step.blocks) * 16});
  }
  void submit() {
    runner->submit(StepOrder{});
    for (const int32_t slot : slots->take_block_needs(1)) slots->grant(slot, runner->take_block());
  }
  StepResult result() {
    auto step = std::get<StepResult>(runner->wait());
    REQUIRE(step.status.ok());
    return step;
  }
  StepResult order() {
    submit();
    return result();
  }
  std::vector<SampledToken> gained(int32_t slot) {
    GainedTokens tokens;
    slots->take(slot, 1, tokens);
    return tokens.sampled;
  }

  int64_t sent_bytes = 0;
  std::unique_ptr<EngineRunner> runner;
  StepRun* slots = nullptr;
};

TestSequence prompt_of(int length, uint64_t seed, const SamplingParams& sampling = {}) {
  TestSequence s = sequence_of(random_tokens(length, 96, seed), seed, sampling);
  return s;
}
SamplingParams penalized() {
  SamplingParams sampling;
  sampling.repetition_penalty = 1.4f;
  sampling.top_k = 20;
  sampling.ignore_eos = true;
  return sampling;
}
SamplingParams endless() {
  SamplingParams sampling;
  sampling.ignore_eos = true;
  return sampling;
}

std::vector<SampledToken> decoded(const std::shared_ptr<const Model>& model, CudaType type, TestSequence s, int count) {
  EngineRunner runner(simt_engine(model, small_config(type)));
  return runner.decode(s, count);
}

}  // namespace

TEST_CASE("cuda slots: sequences that join and leave at any time, with two orders open, gain what they gain alone") {
  const auto model = tiny("qwen3", "BF16");
  for (const int open_max : {1, 2}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(open_max);
      CAPTURE(seed);
      SlotBench b(model, CudaType::kBf16, seed);
      std::mt19937_64 rng(seed);
      struct Live {
        TestSequence sequence;
        std::vector<SampledToken> got;
        int64_t count = 0;
      };
      std::map<int32_t, Live> in_slot;
      std::vector<Live> done;
      int started = 0;
      while (done.size() < 9) {
        if (started < 9 && in_slot.size() < 4) {
          const auto slot = static_cast<int32_t>(std::ranges::find_if(std::views::iota(0), [&](int s) { return !in_slot.contains(s); }) -
                                                 std::views::iota(0).begin());
          Live live{.sequence = prompt_of(1 + static_cast<int>(rng() % 40), 10 + static_cast<uint64_t>(started),
                                          started % 3 == 0 ? penalized() : endless()),
                    .count = 1 + static_cast<int64_t>(rng() % 30)};
          ++started;
          // The others decode along while its prompt is computed.
          TestSequence& s = live.sequence;
          const std::vector<int32_t> all = s.tokens;
          b.slots->join(slot, b.runner->plan(s, std::ssize(all), 1), std::nullopt);
          in_slot[slot] = std::move(live);
        }
        int open = 0;
        for (; open < open_max && (open == 0 || b.slots->all_go_on()); ++open) b.submit();
        for (; open > 0; --open) {
          const StepResult result = b.result();
          std::vector<int32_t> finished;
          for (auto& [slot, live] : in_slot) {
            const bool prefilled = live.got.empty();
            for (const SampledToken& t : b.gained(slot)) live.got.push_back(t);
            const bool ended = std::ranges::find(result.ended, slot) != result.ended.end();
            if (ended && (!prefilled || live.count == 1 || live.got.empty())) finished.push_back(slot);
            if (ended && prefilled && live.count > 1) {  // its prompt is computed: now it decodes
              b.slots->leave(slot);
              live.sequence.tokens.push_back(live.got.back().token);
              b.slots->join(slot, b.runner->plan(live.sequence, 1, 1), StepsLimit{.gain_max = live.count - 2, .covered = 1 << 20});
            }
          }
          for (const int32_t slot : finished) {
            b.slots->leave(slot);
            done.push_back(std::move(in_slot[slot]));
            in_slot.erase(slot);
          }
        }
      }
      for (Live& live : done) {
        TestSequence alone = live.sequence;
        if (live.count > 1) alone.tokens.pop_back();
        alone.computed = 0;
        alone.blocks.clear();
        CHECK(live.got == decoded(model, CudaType::kBf16, alone, static_cast<int>(live.count)));
      }
    }
  }
}

TEST_CASE("cuda slots: a step in which nothing changes sends nothing, a granted block sends a few bytes") {
  const auto model = tiny("llama", "BF16");
  SlotBench b(model, CudaType::kBf16);
  std::vector<TestSequence> sequences{prompt_of(9, 1, endless()), prompt_of(5, 2, endless())};
  for (int32_t slot : {0, 1}) b.join(slot, sequences[static_cast<size_t>(slot)], 100);
  b.order();  // at positions 9 (the first decoded along with the second's prompt) and 4
  for (int step = 1; step < 40; ++step) {
    const int64_t before = b.sent_bytes;
    b.order();
    const bool granted = (9 + step) % 16 == 0 || (4 + step) % 16 == 0;
    // A header and one table entry.
    CHECK(b.sent_bytes - before == (granted ? static_cast<int64_t>(sizeof(cuda::Changes) + sizeof(cuda::TableChange)) : 0));
  }
}

TEST_CASE("cuda slots: a verify gains the tokens of its accepted rows, and an end-of-sequence token ends a slot") {
  const auto model = tiny("qwen3", "BF16");
  SamplingParams sampling = endless();
  TestSequence s = prompt_of(20, 3, sampling);
  const std::vector<SampledToken> want = decoded(model, CudaType::kBf16, s, 4);
  SlotBench b(model, CudaType::kBf16);
  b.slots->join(3, b.runner->plan(s, 19, 0), std::nullopt);
  CHECK(b.order().ended == Tokens{3});
  CHECK(b.gained(3).empty());
  b.slots->leave(3);
  s.tokens.insert(s.tokens.end(), {want[0].token, want[1].token, (want[2].token + 1) % 96, 5});
  b.slots->join(3, b.runner->plan(s, 5, 5), std::nullopt);
  CHECK(b.order().ended == Tokens{3});
  GainedTokens gained;
  b.slots->take(3, 1, gained);
  CHECK(gained.sampled == std::vector(want.begin(), want.begin() + 3));
  CHECK(gained.rows == Tokens{0, 1, 2});
  b.slots->leave(3);

  // Tokens are drawn until one is the model's end: 1.
  sampling.ignore_eos = false;
  const auto tokens_to_end = [&] {
    TestSequence ends = prompt_of(4, 9, sampling);
    b.join(0, ends, 1000);
    std::vector<SampledToken> got;
    bool ended = false;
    while (!ended) {
      ended = b.order().ended == Tokens{0};
      for (const SampledToken& t : b.gained(0)) got.push_back(t);
      REQUIRE(got.size() < 800);
    }
    CHECK(got.back().token == 1);
    CHECK(std::ranges::count(got, 1, &SampledToken::token) == 1);
    b.slots->leave(0);
    return std::ssize(got);
  };
  sampling.min_tokens = tokens_to_end();
  CHECK(tokens_to_end() > sampling.min_tokens);
}

TEST_CASE("cuda slots: a sequence that leaves while two orders are open gains nothing, and its slot can be taken again") {
  const auto model = tiny("qwen2", "BF16");
  SlotBench b(model, CudaType::kBf16);
  TestSequence a = prompt_of(6, 1, endless()), c = prompt_of(7, 2, endless()), d = prompt_of(8, 3, endless());
  const auto want_c = decoded(model, CudaType::kBf16, c, 6), want_d = decoded(model, CudaType::kBf16, d, 2);
  b.join(0, a, 100);
  b.join(1, c, 5);
  std::vector<SampledToken> got;
  for (int pair = 0; pair < 3; ++pair) {
    b.submit();
    b.submit();
    if (pair == 1) b.slots->leave(0);
    for (int i = 0; i < 2; ++i) {
      b.result();
      for (const SampledToken& t : b.gained(1)) got.push_back(t);
    }
    if (pair != 1) continue;
    SequenceStep step = b.runner->plan(d, 8, 1);
    b.slots->join(0, step, std::nullopt);
  }
  CHECK(got == want_c);
  CHECK(b.gained(0) == std::vector(want_d.begin(), want_d.begin() + 1));
}

TEST_CASE("cuda slots (emulated): a device that fails ends the step with its error") {
  const auto model = tiny("qwen3", "BF16");
  auto made = make_cuda_engine(model, simt::make_simt_device({.fail_launch = 60}), small_config(CudaType::kBf16));
  REQUIRE(made.ok());
  EngineRunner runner(*std::move(made));
  StepRun& slots = *runner.engine().step_run();
  TestSequence s = prompt_of(1, 4, endless());
  slots.join(0, runner.plan(s, 1, 1), StepsLimit{.gain_max = 100, .covered = 1 << 20});
  Status status;
  for (int step = 0; step < 10 && status.ok(); ++step) {
    runner.submit(StepOrder{});
    status = std::get<StepResult>(runner.wait()).status;
  }
  REQUIRE(!status.ok());
  CHECK(status.error().code == Code::kUnavailable);
  CHECK(status.error().detail.starts_with("simt: launch 60 ("));
  CHECK(make_cuda_engine(model, simt::make_simt_device({.fail_allocation = 3}), small_config(CudaType::kBf16)).error().code ==
        Code::kFull);
}

TEST_CASE("cuda slots: a running batch of any shape can be timed") {
  StepRunner runner(simt_engine(tiny("qwen2", "BF16"), small_config(CudaType::kBf16)));
  std::vector<std::byte> block(static_cast<size_t>(runner.info().block_bytes));
  runner.fill_blocks(runner.info().device_blocks, block);
  for (const StepSequences& sequences : {StepSequences(3, {.start = 20}), StepSequences(1, {.start = 0})}) {
    CHECK(runner.decoding_step_us(sequences, 5) > 0);
    CHECK(runner.status().ok());
  }
}

}  // namespace seer
