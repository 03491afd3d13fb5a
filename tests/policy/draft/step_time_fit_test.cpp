#include "actors/policy/draft/step_time_fit.h"

#include <doctest/doctest.h>

using namespace seer;

namespace {

/// Steps of 1 000 ns by the model, whose drafts add 0 to 500 ns. Their real times differ by these factors.
void add_steps(StepTimeFit& fit, int count, double base, double drafts) {
  for (int i = 0; i < count; ++i) {
    const double drafts_ns = 100.0 * (i % 6);
    fit.add(1000, drafts_ns, base * 1000 + drafts * drafts_ns);
    if (i % 10 == 9) fit.fit();
  }
}

}  // namespace

TEST_CASE("step time fit: without steps the model's times count") { CHECK(StepTimeFit().predict_ns(1000, 200) == 1200); }

TEST_CASE("step time fit: steps without drafts change both factors alike") {
  StepTimeFit fit;
  for (int i = 0; i < 100; ++i) fit.add(1000, 0, 1300);
  CHECK(fit.predict_ns(1000, 200) == 1200);  // until fit()
  fit.fit();
  CHECK(fit.predict_ns(1000, 200) == doctest::Approx(1560));
}

TEST_CASE("step time fit: two factors are found from steps that differ") {
  StepTimeFit fit;
  add_steps(fit, 6000, 0.9, 1.2);
  CHECK(fit.predict_ns(1000, 0) == doctest::Approx(900).epsilon(0.01));
  CHECK(fit.predict_ns(1000, 400) == doctest::Approx(1380).epsilon(0.01));
}

TEST_CASE("step time fit: a machine that becomes slower is not taken for dearer drafts") {
  StepTimeFit fit;
  add_steps(fit, 3000, 1, 1);
  for (double slower = 1; slower < 1.5; slower += 0.01) add_steps(fit, 60, slower, slower);
  const double plain = fit.predict_ns(1000, 0), drafted = fit.predict_ns(1000, 500);
  CHECK(plain > 1100);
  CHECK(drafted / plain == doctest::Approx(1.5).epsilon(0.02));
}

TEST_CASE("step time fit: a step that something else delayed counts as twice as long as expected") {
  StepTimeFit delayed, twice;
  for (int i = 0; i < 10; ++i) {
    delayed.add(1000, 0, i == 5 ? 1e9 : 1000);
    twice.add(1000, 0, i == 5 ? 2000 : 1000);
  }
  delayed.fit();
  twice.fit();
  CHECK(delayed.predict_ns(1000, 100) == twice.predict_ns(1000, 100));
}
