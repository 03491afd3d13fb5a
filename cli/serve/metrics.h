// metrics: the figures of `seer serve` in the text format of Prometheus. Names are `seer_<component>_<noun>_<unit>`;
// those that begin with `sglang:` mean the same as SGLang's, for dashboards and trainers that know it. No label holds
// what a client sent. metrics.cpp is the only file that includes prometheus-cpp.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "cli/serve/front.h"
#include "cli/serve/serve_figures.h"
#include "protocols/result.h"

namespace seer {

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

/// Whether this build has prometheus-cpp.
bool has_metrics();
/// `now` may be later than the last report in `figures`. `journal_fails`: that of rollouts cannot be written; none: there is no journal.
/// kUnavailable: this build has no prometheus-cpp.
Result<std::string> metrics_text(const ServeFigures& figures, const GatewayLoads& now, const ServedModel& model,
                                 size_t connections, std::optional<bool> journal_fails = {});

}  // namespace seer
