#include "gpu/sim/draft_acceptance.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gpu/cpu/exact_math.h"
#include "gpu/model/model_config.h"
#include "protocols/check.h"

namespace seer {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPublishedJson =
#include "embedded/draft_acceptance.json.inc"
    ;
constexpr int64_t kDraftTokensMax = 1024;
constexpr int64_t kFileBytesMax = 1 << 20;

/// 1 + a + ... + a^draft_tokens.
double accepted_of(double a, int64_t draft_tokens) {
  double total = 1, power = 1;
  for (int64_t i = 0; i < draft_tokens; ++i) total += power *= a;
  return total;
}

/// The a in [0, 1] with accepted_of(a, draft_tokens) = accepted. REQUIRES: 1 <= accepted <= 1 + draft_tokens.
double acceptance_of(double accepted, int64_t draft_tokens) {
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (accepted_of(middle, draft_tokens) < accepted ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// A list of numbers of which each is from `low` to `high`.
Result<std::vector<double>> numbers(const Json& json, double low, double high, const std::string& place) {
  if (!json.is_array() || json.empty())
    return fail(Code::kInvalidArgument, place, " is ", json.is_null() ? "missing" : json.type_name(),
                ": expected a list of numbers");
  std::vector<double> values;
  for (const Json& entry : json) {
    if (!entry.is_number() || entry.get<double>() < low || entry.get<double>() > high)
      return fail(Code::kInvalidArgument, place, "[", values.size(), "] is ", entry.dump(), ": expected a number from ",
                  low, " to ", high);
    values.push_back(entry.get<double>());
  }
  return values;
}

/// The member, or null.
const Json& member(const Json& object, const char* name) {
  static const Json kNull;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : kNull;
}

}  // namespace

Result<DraftAcceptance> DraftAcceptance::published(const std::string& drafting) {
  return parse(kPublishedJson, "deploy/sim/draft_acceptance.json", drafting);
}

Result<DraftAcceptance> DraftAcceptance::read(const std::string& path, const std::string& drafting) {
  SEER_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kFileBytesMax));
  return parse(text, path, drafting);
}

DraftAcceptance DraftAcceptance::constant(double accepted, int64_t draft_tokens) {
  SEER_CHECK(accepted >= 1 && accepted <= static_cast<double>(1 + draft_tokens), accepted, draft_tokens);
  DraftAcceptance curve;
  curve.draft_tokens_ = draft_tokens;
  curve.references_ = {0};
  curve.acceptance_ = {acceptance_of(accepted, draft_tokens)};
  return curve;
}

DraftAcceptance DraftAcceptance::scaled(double accepted, double references) const {
  const auto longest = static_cast<double>(draft_tokens_);
  SEER_CHECK(accepted >= 1 && accepted <= 1 + longest, accepted, draft_tokens_);
  const double gain = mean_accepted(references, draft_tokens_) - 1;
  DraftAcceptance curve = *this;
  if (gain == 0) return curve;
  for (double& a : curve.acceptance_)
    a = acceptance_of(1 + std::min(longest, (accepted_of(a, draft_tokens_) - 1) * (accepted - 1) / gain), draft_tokens_);
  return curve;
}

Result<DraftAcceptance> DraftAcceptance::parse(std::string_view json, const std::string& name,
                                               const std::string& drafting) {
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return fail(Code::kInvalidArgument, name, " is not a JSON object");
  const Json& draft_tokens = member(member(root, "draft_tokens"), "value");
  if (!draft_tokens.is_number_integer() || draft_tokens.get<int64_t>() < 1 ||
      draft_tokens.get<int64_t>() > kDraftTokensMax)
    return fail(Code::kInvalidArgument, name, ": draft_tokens.value is ", draft_tokens.dump(),
                ": expected a whole number from 1 to ", kDraftTokensMax);
  const auto length = draft_tokens.get<int64_t>();
  DraftAcceptance curve;
  curve.draft_tokens_ = length;
  SEER_ASSIGN_OR_RETURN(curve.references_, numbers(member(root, "references"), 0, 1e9, cat(name, ": references")));
  for (size_t i = 1; i < curve.references_.size(); ++i)
    if (curve.references_[i] <= curve.references_[i - 1])
      return fail(Code::kInvalidArgument, name, ": references[", i, "] is ", curve.references_[i],
                  ": expected more than the one before, ", curve.references_[i - 1]);
  const Json& curves = member(root, "accepted");
  const std::string place = cat(name, ": accepted.", drafting);
  if (member(curves, drafting.c_str()).is_null()) {
    std::string known;
    if (curves.is_object())
      for (const auto& entry : curves.items()) known += cat(known.empty() ? "" : ", ", entry.key());
    return fail(Code::kInvalidArgument, place, " is missing: expected one of ", known);
  }
  SEER_ASSIGN_OR_RETURN(const std::vector<double> accepted,
                        numbers(member(curves, drafting.c_str()), 1, static_cast<double>(1 + length), place));
  if (accepted.size() != curve.references_.size())
    return fail(Code::kInvalidArgument, place, " has ", accepted.size(), " numbers: expected one per reference, ",
                curve.references_.size());
  for (double a : accepted) curve.acceptance_.push_back(acceptance_of(a, length));
  return curve;
}

double DraftAcceptance::token_acceptance(double references) const {
  SEER_CHECK(references >= 0, references);
  if (references <= references_.front()) return acceptance_.front();
  if (references >= references_.back()) return acceptance_.back();
  size_t right = 1;
  while (references_[right] < references) ++right;
  const auto at = [](double n) { return exact_log(1 + n); };
  const double share =
      (at(references) - at(references_[right - 1])) / (at(references_[right]) - at(references_[right - 1]));
  return acceptance_[right - 1] + share * (acceptance_[right] - acceptance_[right - 1]);
}

double DraftAcceptance::mean_accepted(double references, int64_t draft_tokens) const {
  SEER_CHECK(draft_tokens >= 0, draft_tokens);
  return accepted_of(token_acceptance(references), draft_tokens);
}

}  // namespace seer
