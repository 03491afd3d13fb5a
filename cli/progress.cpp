#include "cli/progress.h"

#include <vector>

#include "cli/figure_text.h"
#include "protocols/check.h"

namespace seer {
namespace {

constexpr double kTailRatio = 0.9;
constexpr double kBasisRatio = 0.02;  // share of requests done; before that, the time left would be a guess

/// "1:23", "1:02:03".
std::string clock_text(int64_t us) {
  const auto s = static_cast<long long>(us / 1'000'000);
  return s < 3600 ? formatted("%lld:%02lld", s / 60, s % 60)
                  : formatted("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

/// The time left at the rate so far; "-" while too few requests are done.
std::string left_text(double done_ratio, int64_t elapsed_us) {
  if (done_ratio < kBasisRatio) return "-";
  return clock_text(static_cast<int64_t>(static_cast<double>(elapsed_us) * (1 - done_ratio) / done_ratio));
}

}  // namespace

std::string progress_line(const ProgressState& state, double tokens_per_s, int64_t elapsed_us, ProgressLook look) {
  const double done_ratio = state.total > 0 ? static_cast<double>(state.done) / static_cast<double>(state.total) : 0;
  const bool is_tail = done_ratio >= kTailRatio;
  const std::string percent = formatted("%.0f %%", 100 * done_ratio);
  std::vector<std::string> parts{cat(state.done, "/", state.total, " done"), percent};
  if (is_tail) parts.push_back("tail");
  parts.push_back(cat(clock_text(elapsed_us), ", left ", left_text(done_ratio, elapsed_us)));
  parts.push_back(formatted("%.0f tokens/s", tokens_per_s));
  parts.push_back(cat("run ", state.running));
  if (state.waiting > 0) parts.push_back(cat("wait ", state.waiting));
  parts.push_back(formatted("KV %.0f %%", 100 * state.kv_used_ratio));
  std::string line;
  int64_t width = 0;  // of what is shown
  for (const std::string& part : parts) {
    const auto more = std::ssize(part) + (line.empty() ? 0 : 2);
    if (width + more > look.columns) break;
    width += more;
    const bool is_marked = part == "tail";
    line += (line.empty() ? "" : "  ") + with_look(part, Look::kAttention, is_marked && look.is_coloured);
  }
  return line;
}

Progress::Progress(ProgressConfig config, std::ostream& out) : config_(config), out_(out) {}

void Progress::update(const ProgressState& state, int64_t now_us) {
  const Terminal& terminal = config_.terminal;
  const int64_t pause_us = terminal.is_live ? config_.redraw_us : config_.plain_line_us;
  if (!began_us_) began_us_ = now_us;
  if (samples_.empty()) samples_.push_back({now_us, state.output_tokens});  // the rate counts from here
  if (drawn_us_ && now_us - *drawn_us_ < pause_us) return;
  drawn_us_ = now_us;
  // The last column stays free: a line that reached it would wrap.
  const ProgressLook look{terminal.columns - 1, terminal.is_coloured};
  const std::string line = progress_line(state, tokens_per_s(state, now_us), now_us - *began_us_, look);
  if (terminal.is_live) {
    // \r, the line, and "erase to the end of the line", so that a shorter line leaves nothing of a longer one.
    out_ << '\r' << line << "\x1b[K";
    on_screen_ = true;
  } else {
    out_ << line << '\n';
  }
  out_.flush();
}

void Progress::clear() {
  if (!on_screen_) return;
  out_ << "\r\x1b[K" << std::flush;
  on_screen_ = false;
  drawn_us_.reset();
}

double Progress::tokens_per_s(const ProgressState& state, int64_t now_us) {
  samples_.push_back({now_us, state.output_tokens});
  while (samples_.size() > 2 && now_us - samples_[1].at_us >= config_.rate_window_us) samples_.pop_front();
  const int64_t window_us = now_us - samples_.front().at_us;
  const int64_t tokens = state.output_tokens - samples_.front().output_tokens;
  return window_us > 0 ? 1e6 * static_cast<double>(tokens) / static_cast<double>(window_us) : 0;
}

}  // namespace seer
