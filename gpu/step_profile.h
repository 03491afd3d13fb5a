// StepProfile: what the steps of one engine with one model cost on one machine: measured points, the cost model fitted
// to them, and its error on points that were held out. Written by `seer profile`; read by everything that predicts steps.
// Plain data and pure functions, except read_step_profile().
//
// The file is one JSON object:
//   {"format": "seer-step-profile", "version": 1,
//    "model": DIR, "machine": {"processor", "cores", "memory_bytes"},
//    "engine": {"isa" (or the device: "cuda"), "threads", "weight_dtype", "kv_dtype", "block_tokens"},
//    "cost": [{"feature", "per", "us"}, ...],                     one per feature of protocols/step_cost.h
//    "held_out_error": {"points", "median", "max"},               |predicted / measured - 1|
//    "points": [{"kind", "sequences", "rows", "sampled_rows", "kv_tokens", "attended", "measured_us", "predicted_us",
//                "held_out"}, ...]}
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "protocols/result.h"
#include "protocols/step_cost.h"

namespace seer {

struct ProfilePoint {
  std::string kind;  // decode | verify | prefill | mixed, for reports
  StepShape shape;
  double measured_us = 0;  // above 0
  bool held_out = false;   // not used for the fit
  double weight = 1;       // of its error in the fit; not in the file
};

struct StepProfile {
  std::string model;
  std::string processor;
  int64_t cores = 0, memory_bytes = 0;
  std::string isa, weight_dtype, kv_dtype;
  int64_t threads = 0;  // CPU threads; 0: the engine is on a GPU
  int64_t block_tokens = 0;
  StepCost cost;
  std::vector<ProfilePoint> points;

  double predict_us(const StepShape& shape) const { return cost.predict_us(shape); }
};

/// Marks a fifth of the points of each kind as held out. A fixed seed chooses their positions: every call marks the same
/// ones.
void hold_out_fifth(std::vector<ProfilePoint>& points);
/// The cost model with the least weighted sum of squared relative errors over the points that are not held out.
StepCost fit_step_cost(const std::vector<ProfilePoint>& points);

struct PredictionError {
  int64_t points = 0;
  double median = 0, max = 0;  // |predicted / measured - 1|; 0 without points
};
/// Error over the points of this kind (empty: any) that are held out, or not.
PredictionError prediction_error(const StepProfile& profile, const std::string& kind, bool held_out);

/// The file's text, with a newline at its end. Numbers read back to the same values.
std::string step_profile_json(const StepProfile& profile);
/// Errors: kNotFound, kIo, kInvalidArgument (not a profile, or a field with a wrong value: file, field, value,
/// expected).
Result<StepProfile> read_step_profile(const std::filesystem::path& path);

}  // namespace seer
