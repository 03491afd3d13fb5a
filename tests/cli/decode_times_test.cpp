#include "cli/decode_times.h"

#include <doctest/doctest.h>

using namespace seer;

TEST_CASE("decode times: without steps they are 0, and a single one is taken for all") {
  DecodeTimes times;
  CHECK(times.step_us(4, 100) == 0);
  times.add(4, 64, 50);
  CHECK(times.step_us(1, 1) == 50);
  CHECK(times.step_us(64, 4096) == 50);
}

TEST_CASE("decode times: what is linear in batch and context is exact between the measured steps and beyond them") {
  const auto linear = [](int64_t sequences, int64_t context) {
    return 20 + static_cast<double>(sequences) * (40 + 0.05 * static_cast<double>(context));
  };
  DecodeTimes times;
  for (const int64_t sequences : {1, 4, 64})
    for (const int64_t context : {int64_t{64}, int64_t{512}, 2048 / sequences + 600}) times.add(sequences, context, linear(sequences, context));
  for (const int64_t sequences : {1, 3, 5, 64, 146})
    for (const int64_t context : {1, 64, 262, 3000}) {
      CAPTURE(sequences);
      CAPTURE(context);
      CHECK(times.step_us(sequences, context) == doctest::Approx(linear(sequences, context)));
    }
}

TEST_CASE("decode times: a bend in the middle stays where it was measured") {
  DecodeTimes times;
  times.add(1, 64, 50);
  times.add(8, 64, 100);
  times.add(16, 64, 400);
  CHECK(times.step_us(8, 64) == 100);
  CHECK(times.step_us(12, 64) == doctest::Approx(250));
  CHECK(times.step_us(32, 64) == doctest::Approx(1000));
}

TEST_CASE("decode times: a step that was delayed while it was measured makes no larger one shorter") {
  DecodeTimes times;
  times.add(8, 64, 90);
  times.add(8, 128, 80);
  times.add(16, 64, 70);
  times.add(16, 128, 85);
  CHECK(times.step_us(8, 64) == 90);
  CHECK(times.step_us(8, 128) == 90);
  CHECK(times.step_us(8, 100'000) == 90);
  CHECK(times.step_us(16, 64) == 90);
  CHECK(times.step_us(1000, 64) == 90);
  CHECK(times.step_us(16, 192) == doctest::Approx(100));
}
