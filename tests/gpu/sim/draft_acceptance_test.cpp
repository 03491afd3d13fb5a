#include "gpu/sim/draft_acceptance.h"

#include <doctest/doctest.h>

#include "gpu/sim/hardware_model.h"

using namespace seer;

namespace {

DraftAcceptance published(const std::string& drafting) {
  Result<DraftAcceptance> curve = DraftAcceptance::published(drafting);
  REQUIRE_MESSAGE(curve.ok(), curve.error().detail);
  return *std::move(curve);
}

}  // namespace

TEST_CASE("draft acceptance: Table 2 comes back at its own references and draft length") {
  const struct {
    const char* drafting;
    double accepted[4];
  } rows[] = {{"linear", {1.70, 2.04, 2.32, 2.53}},
              {"multipath-2", {1.77, 2.14, 2.44, 2.69}},
              {"multipath-4", {1.85, 2.25, 2.59, 2.85}}};
  const double references[] = {0, 1, 5, 15};
  for (const auto& row : rows) {
    const DraftAcceptance curve = published(row.drafting);
    for (int i = 0; i < 4; ++i) {
      CAPTURE(row.drafting);
      CAPTURE(references[i]);
      CHECK(curve.mean_accepted(references[i], 8) == doctest::Approx(row.accepted[i]).epsilon(1e-9));
    }
  }
  // 1 + 0.413 + ... + 0.413^8 = (1 - 0.413^9) / 0.587 = 1.703.
  CHECK(published("linear").token_acceptance(0) == doctest::Approx(0.413).epsilon(3e-3));
}

TEST_CASE("draft acceptance: scaled, it has the given length where asked, and all gains differ by one factor") {
  const DraftAcceptance table = published("linear"), scaled = table.scaled(1.89, 3.5);
  CHECK(scaled.mean_accepted(3.5, 8) == doctest::Approx(1.89).epsilon(0.01));
  const double factor = 0.89 / (table.mean_accepted(3.5, 8) - 1);
  for (const double references : {0.0, 1.0, 5.0, 15.0})
    CHECK(scaled.mean_accepted(references, 8) - 1 == doctest::Approx(factor * (table.mean_accepted(references, 8) - 1)).epsilon(1e-6));
  CHECK(table.scaled(9, 0).mean_accepted(15, 8) <= 9);
}

TEST_CASE("draft acceptance: a constant one does not depend on references") {
  const DraftAcceptance own = DraftAcceptance::constant(1.67, 16), one = DraftAcceptance::constant(1.74, 1);
  for (const double references : {0.0, 0.5, 7.0}) {
    CHECK(own.mean_accepted(references, 16) == doctest::Approx(1.67));
    CHECK(one.mean_accepted(references, 1) == doctest::Approx(1.74));
  }
  CHECK(one.token_acceptance(0) == doctest::Approx(0.74));
}

TEST_CASE("draft acceptance: grows with references and draft tokens, and is 1 without a draft") {
  const DraftAcceptance curve = published("linear");
  for (double references = 0; references <= 20; references += 0.5) {
    CHECK(curve.mean_accepted(references, 0) == 1);
    CHECK(curve.mean_accepted(references + 0.5, 4) >= curve.mean_accepted(references, 4));
    for (int64_t g = 0; g < 12; ++g) CHECK(curve.mean_accepted(references, g + 1) > curve.mean_accepted(references, g));
  }
  CHECK(curve.mean_accepted(1e6, 8) == curve.mean_accepted(15, 8));
}

TEST_CASE("draft acceptance: bad files are told apart in one sentence") {
  const struct {
    const char* json;
    const char* error;
  } rows[] = {
      {"[", "f is not a JSON object"},
      {R"({"references": [0]})", "f: draft_tokens.value is null: expected a whole number from 1 to 1024"},
      {R"({"draft_tokens": {"value": 8}})", "f: references is missing: expected a list of numbers"},
      {R"({"draft_tokens": {"value": 8}, "references": [0, "1"]})",
       "f: references[1] is \"1\": expected a number from 0 to 1e+09"},
      {R"({"draft_tokens": {"value": 8}, "references": [1, 1]})",
       "f: references[1] is 1: expected more than the one before, 1"},
      {R"({"draft_tokens": {"value": 8}, "references": [0], "accepted": {"a": [2], "b": [2]}})",
       "f: accepted.linear is missing: expected one of a, b"},
      {R"({"draft_tokens": {"value": 8}, "references": [0], "accepted": {"linear": [9.5]}})",
       "f: accepted.linear[0] is 9.5: expected a number from 1 to 9"},
      {R"({"draft_tokens": {"value": 8}, "references": [0], "accepted": {"linear": [2, 3]}})",
       "f: accepted.linear has 2 numbers: expected one per reference, 1"},
  };
  for (const auto& row : rows) {
    const Result<DraftAcceptance> curve = DraftAcceptance::parse(row.json, "f", "linear");
    REQUIRE(!curve.ok());
    CHECK(curve.error().detail == row.error);
  }
  CHECK(!DraftAcceptance::published("tree").ok());
}
