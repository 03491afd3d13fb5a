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
  CHECK(progress_line(state_at(320, 0), 8210.4, 83 * kSecond) ==
        "320/1600 done  20 %  1:23, left 5:32  8210 tokens/s  run 64  wait 1224  KV 71 %");
  CHECK(progress_line(state_at(1439, 0), 1, 0).find("tail") == std::string::npos);
  CHECK(progress_line(state_at(1440, 0), 1, 0).starts_with("1440/1600 done  90 %  tail  0:00"));
  CHECK(progress_line({}, 0, 0).starts_with("0/0 done  0 %"));
}

TEST_CASE("progress: the time left is that of the requests left at the rate so far, once some are done") {
  CHECK(progress_line(state_at(31, 0), 1, 60 * kSecond).find("1:00, left -  ") != std::string::npos);
  CHECK(progress_line(state_at(32, 0), 1, 60 * kSecond).find("1:00, left 49:00  ") != std::string::npos);
  CHECK(progress_line(state_at(800, 0), 1, 3723 * kSecond).find("1:02:03, left 1:02:03  ") != std::string::npos);
  CHECK(progress_line(state_at(1600, 0), 1, 60 * kSecond).find("left 0:00") != std::string::npos);
}

TEST_CASE("progress: a line of 79 columns drops its last parts whole, never the count and the time left") {
  const ProgressState large{.done = 123456, .total = 1'600'000, .running = 4096, .waiting = 1'472'448, .output_tokens = 0,
                            .kv_used_ratio = 1};
  CHECK(progress_line(large, 1'234'567, 7200 * kSecond, {.columns = 79}) ==
        "123456/1600000 done  8 %  2:00:00, left 23:55:12  1234567 tokens/s  run 4096");
  CHECK(progress_line(state_at(320, 0), 8210.4, 83 * kSecond, {.columns = 79}).size() == 79);
}

TEST_CASE("progress: only the tail is coloured, and colour takes no columns") {
  const std::string plain = progress_line(state_at(1500, 0), 1, 0, {.columns = 50});
  const std::string coloured = progress_line(state_at(1500, 0), 1, 0, {.columns = 50, .is_coloured = true});
  std::string expected = plain;
  expected.replace(plain.find("tail"), 4, "\x1b[1;33mtail\x1b[0m");
  CHECK(coloured == expected);
  CHECK(progress_line(state_at(1, 0), 1, 0, {.is_coloured = true}).find('\x1b') == std::string::npos);
}

TEST_CASE("progress: a terminal is drawn at most 5 times a second, over the same line, and is clean at the end") {
  std::ostringstream out;
  Progress progress({.terminal = {.is_live = true}}, out);
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
  Progress progress({.terminal = {.is_live = true, .columns = 20}}, out);
  progress.update(state_at(1, 0), 0);
  CHECK(out.str() == "\r1/1600 done  0 %\x1b[K");
}

TEST_CASE("progress: elsewhere a plain line comes at the start and every 5 s, without control characters") {
  std::ostringstream out;
  Progress progress({}, out);
  for (int64_t now_us = 0; now_us <= 12 * kSecond; now_us += 100'000)
    progress.update(state_at(1, now_us / 1000), now_us);
  const std::string lines =
      "1/1600 done  0 %  0:00, left -  0 tokens/s  run 64  wait 1224  KV 71 %\n"
      "1/1600 done  0 %  0:05, left -  1000 tokens/s  run 64  wait 1224  KV 71 %\n"
      "1/1600 done  0 %  0:10, left -  1000 tokens/s  run 64  wait 1224  KV 71 %\n";
  CHECK(out.str() == lines);
  progress.clear();
  CHECK(out.str() == lines);
}

TEST_CASE("progress: the rate is that of the last seconds, not of the whole run") {
  std::ostringstream out;
  Progress progress({.terminal = {.is_live = true}}, out);
  for (int64_t now_us = 0; now_us <= 20 * kSecond; now_us += 200'000)
    progress.update(state_at(1, std::min(now_us, 10 * kSecond) / 1000), now_us);
  CHECK(out.str().substr(out.str().rfind('\r')).find(" 0 tokens/s") != std::string::npos);
}
