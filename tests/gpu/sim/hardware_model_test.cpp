#include "gpu/sim/hardware_model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>

using namespace seer;

namespace {

/// An instance of the paper's evaluation (Table 3), on the shipped numbers.
HardwareSetup setup_of(const char* gpu, const char* model, int64_t tp, int64_t dp, int64_t ep) {
  const HardwareCatalog& known = builtin_hardware();
  HardwareSetup setup;
  setup.gpu = known.gpus.at(gpu);
  setup.model = known.models.at(model);
  setup.costs = known.costs;
  setup.gpus_per_instance = tp * dp;
  setup.tp = tp;
  setup.dp = dp;
  setup.ep = ep;
  return setup;
}
HardwareSetup moonlight() { return setup_of("H800", "Moonlight", 1, 1, 1); }
HardwareSetup qwen_vl() { return setup_of("H800", "Qwen2-VL-72B", 8, 1, 1); }
HardwareSetup kimi_k2() { return setup_of("H800", "Kimi-K2", 1, 32, 32); }

HardwareModel model_of(HardwareSetup setup) {
  Result<HardwareModel> model = HardwareModel::create(std::move(setup));
  REQUIRE_MESSAGE(model.ok(), model.error().detail);
  return *std::move(model);
}

/// `sequences` sequences with `context` positions each that feed `rows` rows, all sampled.
StepShape decode(int64_t sequences, int64_t context, int64_t rows = 1) {
  StepShape shape;
  for (int64_t i = 0; i < sequences; ++i) shape.add(context, rows, rows);
  return shape;
}

double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

/// A GPU and a dense model with round numbers: 1 TB/s, 100 TFLOP/s, all shares 1, no overheads.
HardwareSetup round_setup() {
  HardwareSetup s;
  s.gpu = {.name = "G",
           .hbm_gb = 10,
           .hbm_tb_per_s = 1,
           .bf16_tflops = 100,
           .fp8_tflops = 200,
           .nvlink_gb_per_s = 100,
           .nic_gb_per_s = 10,
           .gpus_per_node = 8};
  s.costs.weight_bandwidth_share = s.costs.kv_bandwidth_share = s.costs.expert_bandwidth_share = 1;
  s.costs.linear_flops_share = s.costs.attention_flops_share = 1;
  s.costs.nvlink_share = s.costs.nic_share = 1;
  s.costs.dispatch_bytes = 1;
  s.costs.combine_bytes = 2;
  s.model.name = "M";
  s.model.layers = 10;
  s.model.hidden = 1000;
  s.model.heads = 8;
  s.model.kv_heads = 4;
  s.model.head_dim = 125;
  s.model.dense_inter = 2000;
  s.model.vocab = 10000;
  s.model.weight_bytes = s.model.head_bytes = s.model.kv_bytes = 2;
  s.kv_reserve_share = 0;
  return s;
}

}  // namespace

TEST_CASE("hardware model: parameters of the shipped models are those published") {
  const struct {
    const char* name;
    double total, active;  // workloads of the paper and model cards; 0: not published
  } rows[] = {{"Moonlight", 15.96e9, 2.91e9}, {"Qwen2-VL-72B", 73.4e9, 0}, {"Kimi-K2", 1026e9, 32.6e9},
              {"Qwen2.5-7B", 7.62e9, 0},      {"Qwen2.5-32B", 32.8e9, 0},  {"Llama-3.1-8B", 8.03e9, 0},
              {"Llama-3.1-70B", 70.6e9, 0}};
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const ModelSpec& model = builtin_hardware().models.at(row.name);
    CHECK(model.total_params() == doctest::Approx(row.total).epsilon(0.005));
    if (row.active > 0) {
      // Published active parameters leave the embedding out, which is looked up.
      CHECK(model.active_params() - model.head_params() == doctest::Approx(row.active).epsilon(0.12));
      CHECK(model.active_params() >= row.active * 0.99);
    }
  }
  // 26 layers x 64 experts x 3 x 2048 x 1408, bf16: 28.8 GB.
  CHECK(builtin_hardware().models.at("Moonlight").routed_params() * 2 == doctest::Approx(28.8e9).epsilon(0.001));
}

TEST_CASE("hardware model: KV of a token is that of the paper's workloads") {
  CHECK(model_of(moonlight()).kv_bytes_per_token() == 31104);  // (512 + 64) x 27 x 2 B
  CHECK(model_of(qwen_vl()).kv_bytes_per_token() == 327680);   // 2 x 80 x 8 x 128 x 2 B
  CHECK(model_of(kimi_k2()).kv_bytes_per_token() == 70272);    // 576 x 61 x 2 B
  CHECK(model_of(setup_of("H100", "Qwen2.5-7B", 1, 1, 1)).kv_bytes_per_token() == 57344);
  CHECK(model_of(setup_of("H100", "Qwen2.5-32B", 4, 1, 1)).kv_bytes_per_token() == 262144);
  CHECK(model_of(setup_of("H100", "Llama-3.1-8B", 1, 1, 1)).kv_bytes_per_token() == 131072);
  CHECK(model_of(setup_of("H200", "Llama-3.1-70B", 2, 1, 1)).kv_bytes_per_token() == 327680);
}

TEST_CASE("hardware model: KV capacity is memory less weights less the reserve") {
  // 80 GB x 0.9 - 31.92 GB = 40.08 GB; / 31104 B = 1.2886 M tokens.
  CHECK(model_of(moonlight()).kv_capacity_tokens() == doctest::Approx(1'288'600).epsilon(0.001));
  // 72 GB - (145.4 + 1.35) GB / 8 = 53.66 GB; a GPU holds 1 of 8 KV heads: 40960 B per token: 1.310 M tokens.
  CHECK(model_of(qwen_vl()).kv_capacity_tokens() == doctest::Approx(1'310'000).epsilon(0.001));
  // 72 GB - 1014.7 GB / 32 (routed) - 14.0 GB (attention, shared, head: on every GPU) = 26.3 GB; / 70272 B x 32.
  CHECK(model_of(kimi_k2()).kv_capacity_tokens() == doctest::Approx(11'960'000).epsilon(0.02));
  // 80 x 0.9 - 15.23 = 56.8 GB: the 55 GB that the 7B workload assumes, within 4 %.
  const HardwareModel small = model_of(setup_of("H100", "Qwen2.5-7B", 1, 1, 1));
  CHECK(static_cast<double>(small.kv_capacity_tokens() * small.kv_bytes_per_token()) ==
        doctest::Approx(55e9).epsilon(0.04));

  HardwareSetup more = moonlight();
  more.kv_reserve_share = 0.2;
  CHECK(model_of(more).kv_capacity_tokens() < model_of(moonlight()).kv_capacity_tokens());
}

TEST_CASE("hardware model: a token touches its experts, many tokens all of them") {
  CHECK(expected_experts(0, 6, 64) == doctest::Approx(0));
  CHECK(expected_experts(1, 6, 64) == doctest::Approx(6));
  CHECK(expected_experts(2, 6, 64) == doctest::Approx(6 + 6 * 58.0 / 64));  // the second meets 6/64 of its own taken
  CHECK(expected_experts(1e6, 6, 64) == doctest::Approx(64));
  CHECK(expected_experts(1, 8, 8) == 8);
  CHECK(expected_experts(0, 8, 8) == 0);
}

TEST_CASE("hardware model: the busiest rank has more than the mean, never more than there is") {
  CHECK(busiest_of(3.5, 12, 1) == 3.5);
  CHECK(busiest_of(0, 12, 32) == 0);
  CHECK(busiest_of(12, 12, 32) == 12);
  CHECK(busiest_of(3, 12, 32) == doctest::Approx(3 + std::sqrt(3 * 0.75 * 2 * std::log(32.0))));
  for (int64_t ranks : {2, 8, 32})
    for (double mean = 0; mean < 12; mean += 0.01)
      CHECK(busiest_of(mean + 0.01, 12, ranks) >= busiest_of(mean, 12, ranks));
}

TEST_CASE("hardware model: a dense step takes what a sum by hand gives") {
  const HardwareModel model = model_of(round_setup());
  // A layer: q and o 2 x 1000 x 1000, k and v 2 x 1000 x 500, MLP 3 x 1000 x 2000: 9 M; x 10 = 90 M, 180 MB: 180 us.
  // Head 10 M, 20 MB: 20 us. KV of 1000 positions: 10 x 2 x 4 x 125 x 2 B = 20 kB each, 20 MB: 20 us. FLOPs hide.
  CHECK(model.step_ns(decode(1, 999)) == 220'000);
  // A step without a sampled row leaves the head unread. 1000 rows: 2 x 90 M x 1000 / 100e12 = 1.8 ms; attention
  // 500500 pairs x 10 layers x 8 heads x 4 x 125 FLOPs = 20.02 GFLOP: 200.2 us.
  StepShape prefill;
  prefill.add(0, 1000, 0);
  CHECK(model.step_ns(prefill) == 2'000'200);
  // 9.98 GB left beside 0.2 GB + embedding 20 MB: floor(9.78e9 / 20000).
  CHECK(model.kv_capacity_tokens() == 489'000);

  HardwareSetup slow = round_setup();
  slow.time_scale = 1.5;
  slow.costs.step_us = 100;
  slow.costs.layer_us = 10;
  slow.costs.sequence_us = 7;
  CHECK(model_of(slow).step_ns(decode(1, 999)) == 1.5 * (220'000 + 100'000 + 100'000 + 7'000));
}

TEST_CASE("hardware model: tensor parallelism cuts bytes and adds all-reduces") {
  HardwareSetup s = round_setup();
  s.tp = s.gpus_per_instance = 4;
  s.costs.all_reduce_us = 5;
  // 220 us / 4 = 55 us. 20 all-reduces of 5 us + 2 x 1000 x 2 B x 3/4 / 100 GB/s = 0.03 us: 100.6 us.
  // Logits: 10000 x 2 B x 3/4 / 100 GB/s = 0.15 us.
  CHECK(model_of(s).step_ns(decode(1, 999)) == 155'750);
}

TEST_CASE("hardware model: experts that are read follow the rows of the step") {
  HardwareSetup s = round_setup();
  s.model.experts = 16;
  s.model.experts_per_token = 2;
  s.model.moe_inter = 1000;  // an expert: 3 M parameters, 6 MB
  s.model.head_dim = 125;
  const HardwareModel model = model_of(s);
  // Outside experts: 3 M attention + router 16000, x 10 = 30.16 M: 60.32 us. Head 20 us.
  // 1 row: 2 experts x 10 layers x 6 us = 120 us. KV of 1000 positions: 20 us.
  CHECK(model.step_ns(decode(1, 999)) == 220'320);
  // 1000 rows touch all 16: 960 us of reading; FLOPs 2 x 1000 x 2 x 30 M = 120 G: 1200 us. Outside: 603.2 us of FLOPs.
  StepShape prefill;
  prefill.add(0, 1000, 0);
  CHECK(model.step_ns(prefill) == 1'200'000 + 603'200 + 200'200);
}

TEST_CASE("hardware model: the all-to-all is as fast as measured ones") {
  // DeepEP README (v1), H800, 128 tokens of 7168 per GPU, 8 experts each: dispatch in fp8, combine in bf16.
  HardwareSetup s = kimi_k2();
  CHECK(all_to_all_s(s, 128, 1) * 1e6 == doctest::Approx(155).epsilon(0.05));
  CHECK(all_to_all_s(s, 128, 2) * 1e6 == doctest::Approx(273).epsilon(0.05));
  s.ep = 8;
  CHECK(all_to_all_s(s, 128, 1) * 1e6 == doctest::Approx(77).epsilon(0.1));
  CHECK(all_to_all_s(s, 128, 2) * 1e6 == doctest::Approx(114).epsilon(0.1));
}

TEST_CASE("hardware model: an expert-parallel instance is as slow as its busiest rank") {
  const HardwareModel model = model_of(kimi_k2());
  // 33 sequences put two on one rank: as 64 do, but for the routed experts, which all ranks share.
  const int64_t one_each = model.step_ns(decode(32, 10'000)), two_on_one = model.step_ns(decode(33, 10'000));
  CHECK(two_on_one > one_each);
  CHECK(two_on_one == doctest::Approx(static_cast<double>(model.step_ns(decode(2, 10'000), decode(33, 10'000)))));
  CHECK(two_on_one <= model.step_ns(decode(64, 10'000)));
  // One sequence alone pays for its own rank's KV, not for a share of it.
  CHECK(model.step_ns(decode(1, 90'000)) > model.step_ns(decode(1, 0)) + int64_t{61} * 90'000 * 1152 / 3350);
}

TEST_CASE("hardware model: no field of a step makes it shorter") {
  int64_t StepShape::*const fields[] = {&StepShape::rows, &StepShape::sampled_rows, &StepShape::kv_tokens,
                                        &StepShape::attended};
  for (const HardwareSetup& setup :
       {moonlight(), qwen_vl(), kimi_k2(), setup_of("A100", "Kimi-K2", 1, 32, 32),
        setup_of("H200", "Moonlight", 2, 4, 8), setup_of("H200", "Llama-3.1-70B", 4, 1, 1)}) {
    Result<HardwareModel> made = HardwareModel::create(setup);
    if (!made.ok()) continue;  // Kimi-K2 with its weights fits some of them only
    const HardwareModel model = *made;
    CAPTURE(setup.model.name);
    for (int64_t sequences : {1, 7, 32, 100, 500})
      for (int64_t context : {0, 100, 5'000, 60'000}) {
        const StepShape base = decode(sequences, context);
        const int64_t base_ns = model.step_ns(base), rank_ns = model.step_ns(base, base);
        for (int64_t StepShape::*field : fields)
          for (int64_t more : {1, 1'000, 1'000'000}) {
            StepShape larger = base;
            larger.*field += more;
            if (field == &StepShape::sampled_rows) larger.rows += more;
            CHECK(model.step_ns(larger) >= base_ns);
            CHECK(model.step_ns(larger, larger) >= rank_ns);
            CHECK(model.step_ns(base, larger) >= rank_ns);
          }
        StepShape another = base;
        another.add(context, 1, 1);
        CHECK(model.step_ns(another) >= base_ns);
        CHECK(model.step_ns(another, another) >= rank_ns);
      }
  }
}

TEST_CASE("hardware model: step times are those of the model, whatever step came before") {
  for (const HardwareSetup& setup : {moonlight(), kimi_k2()}) {
    const HardwareModel model = model_of(setup);
    HardwareStepTimes times(model);
    for (const int64_t sequences : {7, 7, 32, 7, 500})
      for (const int64_t rows : {1, 1, 5, 1})
        for (const int64_t context : {0, 5'000, 5'001}) {
          const StepShape verify = decode(sequences, context, rows);
          CHECK(times(verify) == model.step_ns(verify));
          StepShape prefill = verify;
          prefill.add(context, rows, 0);
          CHECK(times(prefill) == model.step_ns(prefill));
          prefill.sampled_rows += 1;
          CHECK(times(prefill) == model.step_ns(prefill));
        }
  }
}

TEST_CASE("hardware model: skewed ranks hold less KV and keep the others waiting, but one sequence is one sequence") {
  HardwareSetup even = kimi_k2(), skewed = even;
  skewed.rank_skew = 1.6;
  const HardwareModel a = model_of(even), b = model_of(skewed);
  CHECK(static_cast<double>(b.kv_capacity_tokens()) == doctest::Approx(static_cast<double>(a.kv_capacity_tokens()) / 1.6).epsilon(1e-6));
  CHECK(b.step_ns(decode(640, 20'000)) > 1.1 * static_cast<double>(a.step_ns(decode(640, 20'000))));
  CHECK(b.step_ns(decode(1, 20'000)) == a.step_ns(decode(1, 20'000)));
  skewed.rank_skew = 33;
  CHECK(HardwareModel::create(skewed).error().detail == "rank-skew is 33: expected a number from 1 to dp, 32");
}

TEST_CASE("hardware model: while memory is the limit, verifying a few rows costs barely more; with experts, the factor") {
  const double factor = builtin_hardware().costs.verify_factor;
  CHECK(factor > 1);
  const auto ratio = [&](const HardwareModel& model, int64_t sequences, int64_t context, int64_t rows) {
    return static_cast<double>(model.step_ns(decode(sequences, context, rows))) /
           static_cast<double>(model.step_ns(decode(sequences, context)));
  };
  CHECK(ratio(model_of(setup_of("H100", "Qwen2.5-7B", 1, 1, 1)), 16, 8'000, 4) < 1.01);
  const HardwareModel dense = model_of(qwen_vl());
  CHECK(ratio(dense, 16, 8'000, 4) < 1.15);  // the all-reduces carry the rows too
  // With hundreds of rows it is not: their FLOPs are the limit then.
  CHECK(ratio(dense, 256, 1'000, 9) > 2.0);
  for (const int64_t sequences : {1, 8, 64}) {
    CAPTURE(sequences);
    const double of_moonlight = ratio(model_of(moonlight()), sequences, 8'000, 2) / factor;
    CHECK(of_moonlight >= 1);
    CHECK(of_moonlight < 1.01);
  }
  // Rows that are not of drafts touch further experts: of a prefill, and in a step that also verifies.
  const HardwareModel sparse = model_of(moonlight());
  const auto with_prefill = [](StepShape step) {
    step.add(0, 8, 0);
    return step;
  };
  for (const int64_t rows : {1, 2})
    CHECK(sparse.step_ns(with_prefill(decode(1, 1'000, rows))) > 1.3 * static_cast<double>(sparse.step_ns(decode(1, 1'000, rows))));
}

TEST_CASE("hardware model: more GPU is never slower") {
  const auto faster = [](const std::function<void(GpuSpec&)>& change) {
    for (const HardwareSetup& setup : {moonlight(), qwen_vl(), kimi_k2()}) {
      HardwareSetup better = setup;
      change(better.gpu);
      for (int64_t sequences : {1, 50, 400}) {
        CHECK(model_of(better).step_ns(decode(sequences, 9'000)) <= model_of(setup).step_ns(decode(sequences, 9'000)));
        CHECK(model_of(better).kv_capacity_tokens() >= model_of(setup).kv_capacity_tokens());
      }
    }
  };
  faster([](GpuSpec& gpu) { gpu.hbm_tb_per_s *= 2; });
  faster([](GpuSpec& gpu) { gpu.bf16_tflops *= 2; });
  faster([](GpuSpec& gpu) { gpu.fp8_tflops *= 2; });
  faster([](GpuSpec& gpu) { gpu.nvlink_gb_per_s *= 2; });
  faster([](GpuSpec& gpu) { gpu.nic_gb_per_s *= 2; });
  faster([](GpuSpec& gpu) { gpu.hbm_gb *= 2; });
}

TEST_CASE("hardware model: steps of the paper's workloads are as long as real decode steps") {
  // No published step times: bounds that a mistake by a unit or by a missing term would break.
  CHECK(ms(model_of(moonlight()).step_ns(decode(1, 1'000))) > 2);
  CHECK(ms(model_of(moonlight()).step_ns(decode(64, 12'000))) < 60);
  CHECK(ms(model_of(qwen_vl()).step_ns(decode(1, 1'000))) > 7);
  CHECK(ms(model_of(qwen_vl()).step_ns(decode(200, 4'000))) < 80);
  CHECK(ms(model_of(kimi_k2()).step_ns(decode(32, 1'000))) > 10);
  CHECK(ms(model_of(kimi_k2()).step_ns(decode(400, 20'000))) < 120);
}

TEST_CASE("hardware model: a setup that cannot be is refused in one sentence") {
  const struct {
    std::function<void(HardwareSetup&)> change;
    const char* error;
  } rows[] = {
      {[](HardwareSetup& s) { s.tp = 3; },
       "tp is 3: expected a divisor of the 8 GPUs of a node and of the 64 heads of Kimi-K2"},
      {[](HardwareSetup& s) { s.dp = 0; }, "dp is 0: expected at least 1"},
      {[](HardwareSetup& s) { s.dp = 16; }, "gpus-per-instance is 32: expected tp x dp = 1 x 16"},
      {[](HardwareSetup& s) { s.ep = 8; }, "ep is 8: expected 1 or gpus-per-instance, 32"},
      {[](HardwareSetup& s) { s.dp = s.ep = s.gpus_per_instance = 7; },
       "ep is 7: expected 1 or a divisor of the 384 experts of Kimi-K2"},
      {[](HardwareSetup& s) { s.kv_reserve_share = 1; }, "kv-reserve-share is 1: expected a number from 0 to below 1"},
      {[](HardwareSetup& s) { s.time_scale = 0; }, "time-scale is 0: expected a number above 0, at most 1e6"},
      {[](HardwareSetup& s) { s.dp = s.ep = s.gpus_per_instance = 8; },
       "the weights of Kimi-K2 do not fit: 140.906 GB on each H800 (tp 1, dp 8, ep 8), which has 80 GB less a reserve "
       "of 8"},
  };
  for (const auto& row : rows) {
    HardwareSetup setup = kimi_k2();
    row.change(setup);
    const Result<HardwareModel> model = HardwareModel::create(setup);
    REQUIRE(!model.ok());
    CHECK(model.error().detail == row.error);
  }
}
