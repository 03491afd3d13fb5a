#include "cli/serve/serve_figures.h"

#include <doctest/doctest.h>

#include <string>

using namespace seer;

namespace {

InstanceReport instance(uint32_t id, int64_t output_tokens) {
  return {.instance = InstanceId{id},
          .output_tokens = output_tokens,
          .kv_blocks_total = 100,
          .kv_blocks_used = 25,
          .kv_block_bytes = 10,
          .chunks = 3};
}
GatewayReport report(std::vector<InstanceReport> instances) {
  GatewayReport r;
  r.nodes.push_back({.node = NodeId{0}, .instances = std::move(instances), .pool = {}});
  return r;
}
Response response(FinishReason finish, int64_t tokens, int64_t first_token_us) {
  Response r;
  r.finish = finish;
  r.output.ids.resize(static_cast<size_t>(tokens));
  r.queue_us = 1'000'000;
  r.run_us = 4'000'000;
  r.first_token_us = first_token_us;
  return r;
}
uint64_t count(const Histogram& histogram) {
  uint64_t all = 0;
  for (const uint64_t in_bucket : histogram.counts) all += in_bucket;
  return all;
}
constexpr int64_t kSecond = 1'000'000;

}  // namespace

TEST_CASE("serve figures: a histogram counts a value in the first bucket that it is not above") {
  Histogram h({1, 10});
  for (const double value : {0.5, 1.0, 1.5, 10.0, 11.0, 1e9}) h.add(value);
  CHECK(h.counts == std::vector<uint64_t>{2, 2, 2});
  CHECK(h.sum == doctest::Approx(24 + 1e9));
}

TEST_CASE("serve figures: what clients ask for has few labels, whatever they write") {
  ServeFigures figures;
  for (int i = 0; i < 1000; ++i) figures.count_answer("/made-up-" + std::to_string(i), 404);
  for (int i = 0; i < 1000; ++i) figures.count_answer("/workers/" + std::to_string(i), 200);
  for (int status = -100; status < 1000; ++status) figures.count_answer("/generate", status);
  figures.count_answer("", 401);
  CHECK(figures.answers().at({"other", "4xx"}) == 1001);
  CHECK(figures.answers().at({"/workers/", "2xx"}) == 1000);
  CHECK(figures.answers().at({"/generate", "2xx"}) == 100);
  CHECK(figures.answers().size() == 2 + 6);
}

TEST_CASE(
    "serve figures: latency is of responses that finished, and the first token's time leaves out what came after it") {
  ServeFigures figures;
  figures.count_response(response(FinishReason::kStop, 100, 2'000'000), 7'000'000);  // 2 s before it had a rollout
  CHECK(figures.first_token_s().sum == doctest::Approx(4));
  CHECK(figures.latency_s().sum == doctest::Approx(7));
  CHECK(figures.output_tokens().sum == doctest::Approx(100));
  figures.count_response(response(FinishReason::kAborted, 5, 2'000'000), 5'000'000);
  figures.count_response(response(FinishReason::kAborted, 0, 0), 5'000'000);
  figures.count_response(response(FinishReason::kError, 0, 0), 5'000'000);
  CHECK(count(figures.first_token_s()) == 2);
  CHECK(count(figures.latency_s()) == 1);
  CHECK(count(figures.output_tokens()) == 1);
}

TEST_CASE(
    "serve figures: speed is over the last five seconds, and an instance that is new, gone or started again does not "
    "bend it") {
  ServeFigures figures;
  CHECK(figures.rates().tokens_per_s == 0);
  int64_t at = 0;
  const auto take = [&](std::vector<InstanceReport> instances) {
    figures.take(report(std::move(instances)), at += kSecond);
  };
  take({instance(0, 5'000'000)});
  CHECK(figures.rates().tokens_per_s == 0);
  take({instance(0, 5'000'100), instance(1, 700'000)});
  CHECK(figures.rates().tokens_per_s == doctest::Approx(100));
  take({instance(1, 700'300)});
  CHECK(figures.rates().tokens_per_s == doctest::Approx(200));  // 400 tokens in 2 s
  take({instance(0, 40), instance(1, 700'300)});
  take({instance(0, 30), instance(1, 700'300)});
  CHECK(figures.rates().tokens_per_s == doctest::Approx(100));
  for (int i = 0; i < 6; ++i) take({instance(0, 30), instance(1, 700'300)});
  CHECK(figures.rates().tokens_per_s == 0);
}

TEST_CASE("serve figures: the share of KV that was found is of the tokens that chunks began with") {
  ServeFigures figures;
  InstanceReport i = instance(0, 0);
  i.cached_tokens = 1000;
  figures.take(report({i}), 0);
  i.cached_tokens += 30, i.prefill_tokens += 10;
  figures.take(report({i}), kSecond);
  CHECK(figures.rates().cached_share == doctest::Approx(0.75));
}

TEST_CASE("serve figures: the history keeps ten minutes, and counts its samples on") {
  ServeFigures figures;
  for (int64_t i = 0; i < 700; ++i) figures.take(report({instance(0, i)}), i * kSecond);
  CHECK(figures.samples().size() == 600);
  CHECK(figures.first_sample() == 100);
  CHECK(figures.samples().front().at_us == 100 * kSecond);
  CHECK(figures.samples().back().instances.at(0).running == 3);
  CHECK(figures.samples().back().instances.at(0).kv_share == doctest::Approx(0.25));
  CHECK(figures.samples().back().kv.device.share() == doctest::Approx(0.25));
}
