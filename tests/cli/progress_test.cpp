#include "cli/progress.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

using namespace seer;

namespace {

constexpr int64_t kSecond = 1'000'000;

ProgressState state_at(int64_t done, int64_t output_tokens) {
  return {.done = done,
          .total = 1600,
          .running = 64,
          .waiting = 1224,
          .output_tokens = output_tokens,
          .kv_used_ratio = 0.71};
}

}  // namespace

TEST_CASE("progress: the line says what is done and at what rate, and flags the tail from 90 % on") {
  CHECK(progress_line(state_at(312, 0), 8210.4) ==
        "312/1600 done  20 %  8210 tokens/s  running 64  waiting 1224  KV 71 %");
  CHECK(progress_line(state_at(1439, 0), 1).find("tail") == std::string::npos);
  CHECK(progress_line(state_at(1440, 0), 1).ends_with("  tail"));
  CHECK(progress_line({}, 0).starts_with("0/0 done  0 %"));
}

TEST_CASE("progress: a terminal is drawn at most 5 times a second, over the same line, and is clean at the end") {
  std::ostringstream out;
  Progress progress({.terminal = true}, out);
  for (int64_t now_us = 0; now_us < 2 * kSecond; now_us += 1000) progress.update(state_at(1, now_us / 100), now_us);
  const std::string text = out.str();
  CHECK(std::count(text.begin(), text.end(), '\r') == 10);
  CHECK(std::count(text.begin(), text.end(), '\n') == 0);
  CHECK(text.find("10000 tokens/s") != std::string::npos);
  progress.clear();
  CHECK(out.str() == text + "\r\x1b[K");
  progress.clear();
  CHECK(out.str() == text + "\r\x1b[K");
}

TEST_CASE("progress: a line never reaches the last column, where it would wrap") {
  std::ostringstream out;
  Progress progress({.terminal = true, .columns = 20}, out);
  progress.update(state_at(1, 0), 0);
  CHECK(out.str() == "\r1/1600 done  0 %  0\x1b[K");
}

TEST_CASE("progress: elsewhere a plain line comes every 5 s, without control characters") {
  std::ostringstream out;
  Progress progress({.terminal = false}, out);
  for (int64_t now_us = 0; now_us <= 12 * kSecond; now_us += 100'000)
    progress.update(state_at(1, now_us / 1000), now_us);
  const std::string line = "1/1600 done  0 %  1000 tokens/s  running 64  waiting 1224  KV 71 %\n";
  CHECK(out.str() == line + line);
  progress.clear();
  CHECK(out.str() == line + line);
}

TEST_CASE("progress: the rate is that of the last seconds, not of the whole run") {
  std::ostringstream out;
  Progress progress({.terminal = true}, out);
  for (int64_t now_us = 0; now_us <= 20 * kSecond; now_us += 200'000)
    progress.update(state_at(1, std::min(now_us, 10 * kSecond) / 1000), now_us);
  CHECK(out.str().substr(out.str().rfind('\r')).find(" 0 tokens/s") != std::string::npos);
}
