#include "cli/progress.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace seer {

std::string progress_line(const ProgressState& state, double tokens_per_s) {
  const double done_ratio = state.total > 0 ? static_cast<double>(state.done) / static_cast<double>(state.total) : 0;
  std::array<char, 200> buffer;
  std::snprintf(buffer.data(), buffer.size(),
                "%lld/%lld done  %.0f %%  %.0f tokens/s  running %lld  waiting %lld  KV %.0f %%%s",
                static_cast<long long>(state.done), static_cast<long long>(state.total), 100 * done_ratio, tokens_per_s,
                static_cast<long long>(state.running), static_cast<long long>(state.waiting), 100 * state.kv_used_ratio,
                done_ratio >= 0.9 ? "  tail" : "");
  return buffer.data();
}

Progress::Progress(ProgressConfig config, std::ostream& out) : config_(config), out_(out) {}

void Progress::update(const ProgressState& state, int64_t now_us) {
  const int64_t pause_us = config_.terminal ? config_.redraw_us : config_.plain_line_us;
  if (samples_.empty()) samples_.push_back({now_us, state.output_tokens});  // the rate counts from here
  if (!config_.terminal && !drawn_us_) drawn_us_ = now_us;  // the first plain line comes after a pause, with a rate
  if (drawn_us_ && now_us - *drawn_us_ < pause_us) return;
  drawn_us_ = now_us;
  const std::string line = progress_line(state, tokens_per_s(state, now_us));
  if (config_.terminal) {
    // \r, the line, and "erase to the end of the line", so that a shorter line leaves nothing of a longer one.
    out_ << '\r' << line.substr(0, static_cast<size_t>(std::max<int64_t>(config_.columns - 1, 0))) << "\x1b[K";
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
