#include "gpu/step_profile.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "gpu/least_squares.h"
#include "gpu/model/model_config.h"
#include "gpu/text/json_at.h"
#include "protocols/hash.h"

namespace seer {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "seer-step-profile";
constexpr int64_t kVersion = 1;
constexpr int64_t kFileBytesMax = int64_t{64} << 20;
constexpr int64_t kAmountMax = int64_t{1} << 52;  // exact as double

double relative_error(const StepCost& cost, const ProfilePoint& p) {
  return std::abs(cost.predict_us(p.shape) / p.measured_us - 1);
}

/// The value as an error shows it: short, whatever it is.
std::string shown(const JsonAt& at) {
  if (at.is_null()) return "missing";
  if (at.is_array()) return "a list";
  if (at.is_object()) return "an object";
  const std::string text = at.value().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

Result<int64_t> integer_from(const JsonAt& at, int64_t low) {
  const nlohmann::json& value = at.value();
  if (!value.is_number_integer() || value.get<int64_t>() < low || value.get<int64_t>() > kAmountMax)
    return at.wrong("is ", shown(at), ", expected an integer of at least ", low);
  return value.get<int64_t>();
}

Result<double> number_from(const JsonAt& at, double low) {
  const nlohmann::json& value = at.value();
  if (!value.is_number() || !(value.get<double>() >= low) || !std::isfinite(value.get<double>()))
    return at.wrong("is ", shown(at), ", expected a number of at least ", low);
  return value.get<double>();
}

Result<std::string> text_from(const JsonAt& at) {
  if (!at.value().is_string()) return at.wrong("is ", shown(at), ", expected a text");
  return at.value().get<std::string>();
}

Result<StepCost> cost_from(const JsonAt& list) {
  if (!list.is_array()) return list.wrong("is ", shown(list), ", expected a list with the cost of each feature");
  std::array<std::optional<double>, kStepFeatures.size()> found;
  for (const JsonAt& entry : list.elements()) {
    SEER_ASSIGN_OR_RETURN(const std::string name, text_from(entry.at("feature")));
    const auto feature =
        std::find_if(kStepFeatures.begin(), kStepFeatures.end(), [&](const StepFeature& f) { return name == f.name; });
    if (feature == kStepFeatures.end())
      return entry.at("feature").wrong("is ", shown(entry.at("feature")),
                                       ", expected a feature that this program knows");
    auto& us = found[static_cast<size_t>(feature - kStepFeatures.begin())];
    if (us.has_value())
      return entry.at("feature").wrong("is ", shown(entry.at("feature")), ", expected every feature once");
    SEER_ASSIGN_OR_RETURN(us, number_from(entry.at("us"), 0));
  }
  StepCost cost;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].has_value())
      return list.wrong("has no feature ", kStepFeatures[i].name, ", expected every feature once");
    cost.us[i] = *found[i];
  }
  return cost;
}

Result<ProfilePoint> point_from(const JsonAt& at) {
  ProfilePoint point;
  StepShape& s = point.shape;
  SEER_ASSIGN_OR_RETURN(point.kind, text_from(at.at("kind")));
  for (const auto& [field, name, low] : {std::tuple{&s.sequences, "sequences", 1},
                                         {&s.rows, "rows", 1},
                                         {&s.sampled_rows, "sampled_rows", 0},
                                         {&s.kv_tokens, "kv_tokens", 1},
                                         {&s.attended, "attended", 1}}) {
    SEER_ASSIGN_OR_RETURN(*field, integer_from(at.at(name), low));
  }
  SEER_ASSIGN_OR_RETURN(point.measured_us, number_from(at.at("measured_us"), 1e-3));
  const JsonAt held_out = at.at("held_out");
  if (!held_out.value().is_boolean()) return held_out.wrong("is ", shown(held_out), ", expected true or false");
  point.held_out = held_out.value().get<bool>();
  return point;
}

Result<StepProfile> profile_from(const JsonAt& at) {
  const JsonAt format = at.at("format"), version = at.at("version"), machine = at.at("machine"),
               engine = at.at("engine");
  if (format.value() != kFormat) return format.wrong("is ", shown(format), ", expected \"", kFormat, "\"");
  if (version.value() != kVersion) return version.wrong("is ", shown(version), ", expected ", kVersion);
  StepProfile profile;
  SEER_ASSIGN_OR_RETURN(profile.model, text_from(at.at("model")));
  SEER_ASSIGN_OR_RETURN(profile.processor, text_from(machine.at("processor")));
  SEER_ASSIGN_OR_RETURN(profile.cores, integer_from(machine.at("cores"), 0));
  SEER_ASSIGN_OR_RETURN(profile.memory_bytes, integer_from(machine.at("memory_bytes"), 0));
  SEER_ASSIGN_OR_RETURN(profile.isa, text_from(engine.at("isa")));
  SEER_ASSIGN_OR_RETURN(profile.threads, integer_from(engine.at("threads"), 0));
  SEER_ASSIGN_OR_RETURN(profile.weight_dtype, text_from(engine.at("weight_dtype")));
  SEER_ASSIGN_OR_RETURN(profile.kv_dtype, text_from(engine.at("kv_dtype")));
  SEER_ASSIGN_OR_RETURN(profile.block_tokens, integer_from(engine.at("block_tokens"), 1));
  SEER_ASSIGN_OR_RETURN(profile.cost, cost_from(at.at("cost")));
  const JsonAt points = at.at("points");
  if (!points.is_array()) return points.wrong("is ", shown(points), ", expected a list of measured points");
  for (const JsonAt& entry : points.elements()) {
    SEER_ASSIGN_OR_RETURN(ProfilePoint point, point_from(entry));
    profile.points.push_back(std::move(point));
  }
  return profile;
}

Json point_json(const StepProfile& profile, const ProfilePoint& p) {
  return {{"kind", p.kind},
          {"sequences", p.shape.sequences},
          {"rows", p.shape.rows},
          {"sampled_rows", p.shape.sampled_rows},
          {"kv_tokens", p.shape.kv_tokens},
          {"attended", p.shape.attended},
          {"measured_us", p.measured_us},
          {"predicted_us", profile.predict_us(p.shape)},
          {"held_out", p.held_out}};
}

}  // namespace

void hold_out_fifth(std::vector<ProfilePoint>& points) {
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(std::string_view(points[a].kind), mix64(a)) <
           std::pair(std::string_view(points[b].kind), mix64(b));
  });
  for (size_t i = 0; i < order.size(); ++i) points[order[i]].held_out = i % 5 == 2;
}

StepCost fit_step_cost(const std::vector<ProfilePoint>& points) {
  std::vector<std::vector<double>> rows;  // features divided by the time, so that the residual is the relative error
  std::vector<double> targets;
  for (const ProfilePoint& p : points) {
    if (p.held_out) continue;
    rows.emplace_back();
    targets.push_back(std::sqrt(p.weight));
    for (const StepFeature& feature : kStepFeatures) rows.back().push_back(targets.back() * feature.amount(p.shape) / p.measured_us);
  }
  const std::vector<double> us = non_negative_least_squares(rows, targets);
  StepCost cost;
  std::copy(us.begin(), us.end(), cost.us.begin());
  return cost;
}

PredictionError prediction_error(const StepProfile& profile, const std::string& kind, bool held_out) {
  std::vector<double> errors;
  for (const ProfilePoint& p : profile.points)
    if (p.held_out == held_out && (kind.empty() || p.kind == kind)) errors.push_back(relative_error(profile.cost, p));
  if (errors.empty()) return {};
  std::sort(errors.begin(), errors.end());
  return {static_cast<int64_t>(errors.size()), errors[errors.size() / 2], errors.back()};
}

std::string step_profile_json(const StepProfile& profile) {
  Json cost = Json::array(), points = Json::array();
  for (size_t i = 0; i < kStepFeatures.size(); ++i)
    cost.push_back({{"feature", kStepFeatures[i].name}, {"per", kStepFeatures[i].unit}, {"us", profile.cost.us[i]}});
  for (const ProfilePoint& p : profile.points) points.push_back(point_json(profile, p));
  const PredictionError error = prediction_error(profile, "", true);
  Json file;
  file["format"] = kFormat;
  file["version"] = kVersion;
  file["model"] = profile.model;
  file["machine"] = {
      {"processor", profile.processor}, {"cores", profile.cores}, {"memory_bytes", profile.memory_bytes}};
  file["engine"] = {{"isa", profile.isa},
                    {"threads", profile.threads},
                    {"weight_dtype", profile.weight_dtype},
                    {"kv_dtype", profile.kv_dtype},
                    {"block_tokens", profile.block_tokens}};
  file["cost"] = std::move(cost);
  file["held_out_error"] = {{"points", error.points}, {"median", error.median}, {"max", error.max}};
  file["points"] = std::move(points);
  return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<StepProfile> read_step_profile(const std::filesystem::path& path) {
  SEER_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kFileBytesMax));
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object())
    return fail(Code::kInvalidArgument, path.string(),
                ": not a JSON object, expected a profile written by seer profile");
  return profile_from(JsonAt(document, path.string()));
}

}  // namespace seer
