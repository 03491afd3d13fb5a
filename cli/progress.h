// Progress: shows the progress of a rollout on stderr. On a terminal it is one line, redrawn at most 5 times a second and erased
// at the end; elsewhere a plain line at the start and about every 5 s. Time is passed in.
// Used by rollout_command.cpp. Single owner, not thread-safe.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <ostream>
#include <string>

#include "cli/terminal.h"

namespace seer {

struct ProgressState {
  int64_t done = 0, total = 0;        // requests
  int64_t running = 0, waiting = 0;   // requests
  int64_t output_tokens = 0;          // so far
  double kv_used_ratio = 0;           // of the KV caches of all instances
};

struct ProgressLook {
  int64_t columns = 80;
  bool is_coloured = false;
};

/// "312/1600 done  20 %  1:23, left 5:42  8210 tokens/s  run 64  wait 1224  KV 71 %", with "tail" once 90 % are done.
/// Parts that do not fit in `columns` are left out, the last ones first.
std::string progress_line(const ProgressState& state, double tokens_per_s, int64_t elapsed_us, ProgressLook look = {});

struct ProgressConfig {
  Terminal terminal;                   // of the stream
  int64_t redraw_us = 200'000;         // terminal: at most 5 times a second
  int64_t plain_line_us = 5'000'000;   // elsewhere
  int64_t rate_window_us = 5'000'000;  // tokens/s are an average over this time
};

class Progress {
 public:
  /// REQUIRES: `out` outlives this.
  Progress(ProgressConfig config, std::ostream& out);
  /// Draws if a redraw is due; may be called at any rate, with a time that never goes back. The line shows the time since the
  /// first call.
  void update(const ProgressState& state, int64_t now_us);
  /// Erases the live line, so that other text can follow. The next update() draws it again.
  void clear();

 private:
  struct Sample { int64_t at_us = 0, output_tokens = 0; };
  double tokens_per_s(const ProgressState& state, int64_t now_us);

  ProgressConfig config_;
  std::ostream& out_;
  std::deque<Sample> samples_;         // of the last rate_window_us, one per line drawn; the front is the oldest
  std::optional<int64_t> began_us_;    // the first update()
  std::optional<int64_t> drawn_us_;    // when the last line was drawn
  bool on_screen_ = false;
};

}  // namespace seer
