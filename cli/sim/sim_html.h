// SimHtml: a page with charts of rollouts, simulated or real, in one file that needs no network, fonts or libraries (its content
// security policy allows none). The figures are those of sim_report.h.
// Used by `seer simulate` and `seer rollout`. Pure: the same runs give the same bytes.
//
// The data is embedded as JSON and drawn by a script of the page (sim_html_page.h). Timelines are averaged over
// kTimelineColumns spans of time, so that the size of the page does not depend on how finely they were recorded:
// 64 instances x 300 columns x 2 series x 2 characters = 77 kB for a policy of a workload.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "cli/sim/sim_report.h"

namespace seer {

/// Shows timelines and completions of the first seed of each workload and policy. `made_by`: the command line that made the runs.
std::string sim_html(std::span<const SimRun> runs, std::string_view made_by, std::string_view title = "Simulated rollouts");

// What other pages share.
/// The text with <, >, & and quotes written so that they stay text.
std::string escaped(std::string_view text);
/// From the doctype to <body>, with the style of the pages. `policy`: of the content, as a header would say it.
std::string html_head(std::string_view title, std::string_view policy);

}  // namespace seer
