#include "gpu/step_profile.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

using namespace seer;
using Json = nlohmann::ordered_json;

namespace {

/// A file of this test's own, gone with it.
class ProfileFile {
 public:
  explicit ProfileFile(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
  ~ProfileFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                ("seer-step-profile-" + std::to_string(::getpid()) + "-" +
                                 std::to_string(reinterpret_cast<uintptr_t>(this)) + ".json");
};

/// Shapes over a grid wide enough to tell the features apart.
std::vector<StepShape> many_shapes() {
  std::vector<StepShape> shapes;
  for (const int64_t context : {0, 100, 1000, 3000})
    for (const int64_t batch : {1, 2, 6, 12, 40, 100})
      for (const int64_t width : {1, 4, 7})
        for (const int64_t sampled : {int64_t{0}, int64_t{1}, width}) {
          StepShape shape;
          for (int64_t i = 0; i < batch; ++i) shape.add(context, width, sampled);
          shapes.push_back(shape);
        }
  return shapes;
}

StepProfile sample_profile() {
  StepProfile profile;
  profile.model = "models/\"quoted\"";
  profile.processor = "some processor";
  profile.cores = 2;
  profile.memory_bytes = 1 << 30;
  profile.isa = "avx2";
  profile.weight_dtype = "bf16";
  profile.kv_dtype = "f32";
  profile.threads = 3;
  profile.block_tokens = 16;
  for (size_t i = 0; i < profile.cost.us.size(); ++i) profile.cost.us[i] = 1.0 / (3.0 + static_cast<double>(i));
  for (const StepShape& shape : many_shapes()) profile.points.push_back({"decode", shape, 123.456, false});
  hold_out_fifth(profile.points);
  return profile;
}

std::string error_of(const std::string& text) {
  const ProfileFile file(text);
  const auto read = read_step_profile(file.path());
  REQUIRE(!read.ok());
  CHECK(read.error().code == Code::kInvalidArgument);
  CHECK(read.error().detail.starts_with(file.path().string() + ": "));
  CHECK(read.error().detail.find('\n') == std::string::npos);
  return read.error().detail;
}

/// What reading says after `edit` of a good file.
std::string error_after(const std::function<void(Json& file)>& edit) {
  Json file = Json::parse(step_profile_json(sample_profile()));
  edit(file);
  return error_of(file.dump());
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("step profile: fitting points made by a cost model predicts like it") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 rng(seed);
    StepCost truth;
    for (double& us : truth.us) us = rng() % 3 == 0 ? 0 : static_cast<double>(rng() % 1000) / 10;
    truth.us[0] += 50;
    std::vector<ProfilePoint> points;
    for (const StepShape& shape : many_shapes()) points.push_back({"decode", shape, truth.predict_us(shape), false});
    hold_out_fifth(points);
    const StepCost fitted = fit_step_cost(points);
    for (const ProfilePoint& p : points) {
      CAPTURE(p.shape.rows);
      CHECK(std::abs(fitted.predict_us(p.shape) / p.measured_us - 1) < 1e-6);
    }
    for (const double us : fitted.us) CHECK(us >= 0);
  }
}

TEST_CASE("step profile: costs that no other features can replace come back") {
  StepCost truth;  // in the order of kStepFeatures: step, sequences, sampled_rows, kv_tokens, attended
  for (const auto& [feature, us] : {std::pair{0, 200.0}, {2, 7.0}, {9, 3.5}, {10, 0.25}, {13, 0.125}})
    truth.us[static_cast<size_t>(feature)] = us;
  std::vector<ProfilePoint> points;
  for (const StepShape& shape : many_shapes()) points.push_back({"decode", shape, truth.predict_us(shape), false});
  const StepCost fitted = fit_step_cost(points);
  for (size_t i = 0; i < truth.us.size(); ++i) {
    CAPTURE(kStepFeatures[i].name);
    CHECK(fitted.us[i] == doctest::Approx(truth.us[i]).epsilon(1e-4));
  }
}

TEST_CASE("step profile: of points that contradict each other, the heavier one counts more") {
  StepShape shape;
  shape.add(100, 1, 1);
  const auto fitted = [&](double weight) {
    return fit_step_cost({{.kind = "decode", .shape = shape, .measured_us = 100, .weight = weight},
                          {.kind = "decode", .shape = shape, .measured_us = 200, .weight = 1}}).predict_us(shape);
  };
  CHECK(fitted(1) == doctest::Approx(120));  // the least (x / 100 - 1)^2 + (x / 200 - 1)^2
  CHECK(fitted(0) == doctest::Approx(200));
  CHECK(fitted(1e6) == doctest::Approx(100).epsilon(1e-3));
}

TEST_CASE("step profile: a fixed fifth is held out, and the errors tell it from the rest") {
  StepProfile profile = sample_profile();
  int64_t held_out = 0;
  for (const ProfilePoint& p : profile.points) held_out += p.held_out;
  CHECK(held_out == static_cast<int64_t>(profile.points.size() / 5));
  StepProfile again = sample_profile();
  for (size_t i = 0; i < profile.points.size(); ++i) CHECK(again.points[i].held_out == profile.points[i].held_out);

  for (ProfilePoint& p : profile.points) p.measured_us = profile.predict_us(p.shape) / (p.held_out ? 1.5 : 1.25);
  CHECK(prediction_error(profile, "", true).points == held_out);
  CHECK(prediction_error(profile, "", true).median == doctest::Approx(0.5));
  CHECK(prediction_error(profile, "decode", false).max == doctest::Approx(0.25));
  CHECK(prediction_error(profile, "verify", false).points == 0);
}

TEST_CASE("step profile: a written profile is read back") {
  const StepProfile profile = sample_profile();
  const std::string text = step_profile_json(profile);
  const ProfileFile file(text);
  const auto read = read_step_profile(file.path());
  REQUIRE_MESSAGE(read.ok(), read.error().detail);
  CHECK(read->model == profile.model);
  CHECK(read->cost.us == profile.cost.us);
  REQUIRE(read->points.size() == profile.points.size());
  CHECK(read->points[7].shape == profile.points[7].shape);
  CHECK(read->predict_us(profile.points[7].shape) == profile.predict_us(profile.points[7].shape));
  CHECK(step_profile_json(*read) == text);
}

TEST_CASE("step profile: a wrong file is one sentence with file, field, value and what was expected") {
  CHECK(contains(error_of(""), "not a JSON object"));
  CHECK(contains(error_of("{\"format\": "), "not a JSON object"));
  CHECK(contains(error_of("[]"), "not a JSON object"));
  CHECK(contains(error_of("{}"), "format is missing, expected \"seer-step-profile\""));
  CHECK(contains(error_after([](Json& f) { f["version"] = 2; }), "version is 2, expected 1"));
  CHECK(contains(error_after([](Json& f) { f["model"] = 3; }), "model is 3, expected a text"));
  CHECK(contains(error_after([](Json& f) { f["machine"] = "m"; }), "machine.processor is missing, expected a text"));
  CHECK(contains(error_after([](Json& f) { f["engine"]["threads"] = -1; }),
                 "engine.threads is -1, expected an integer of at least 0"));
  CHECK(contains(error_after([](Json& f) { f["cost"] = {{"rows", 1}}; }), "cost is an object, expected a list"));
  CHECK(contains(error_after([](Json& f) { f["cost"][3]["us"] = -1; }),
                 "cost[3].us is -1, expected a number of at least 0"));
  CHECK(contains(error_after([](Json& f) { f["cost"][3]["us"] = nullptr; }), "cost[3].us is missing"));
  CHECK(contains(error_after([](Json& f) { f["cost"][3]["feature"] = "moon"; }), "cost[3].feature is \"moon\""));
  CHECK(contains(error_after([](Json& f) { f["cost"][3]["feature"] = "step"; }), "expected every feature once"));
  CHECK(contains(error_after([](Json& f) { f["cost"].erase(4); }), "cost has no feature rows_up_to_4"));
  CHECK(contains(error_after([](Json& f) { f["points"] = 1; }), "points is 1, expected a list"));
  CHECK(contains(error_after([](Json& f) { f["points"][2]["rows"] = 1.5; }),
                 "points[2].rows is 1.5, expected an integer of at least 1"));
  CHECK(contains(error_after([](Json& f) { f["points"][2]["rows"] = 18446744073709551615u; }), "points[2].rows is"));
  CHECK(contains(error_after([](Json& f) { f["points"][2]["measured_us"] = 0; }), "points[2].measured_us is 0"));
  CHECK(contains(error_after([](Json& f) { f["points"][2]["held_out"] = "no"; }),
                 "points[2].held_out is \"no\", expected true or false"));
  const auto missing = read_step_profile("/nothing/profile.json");
  REQUIRE(!missing.ok());
  CHECK(missing.error().code == Code::kNotFound);
}
