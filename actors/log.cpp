#include "actors/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/pattern_formatter.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>

#include "protocols/check.h"

namespace seer {
namespace {

struct NamedLevel {
  const char* name;
  LogLevel level;
};
constexpr NamedLevel kLevels[] = {{"off", LogLevel::kOff}, {"error", LogLevel::kError}, {"warn", LogLevel::kWarn},
                                  {"info", LogLevel::kInfo}, {"debug", LogLevel::kDebug}};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarn: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: break;
  }
  return spdlog::level::off;
}

constexpr size_t kValueBytesMax = 1000;  // the beginning of a longer value is written

/// A control character could move a terminal's cursor or begin a line of its own.
bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }

std::string shown(std::string value) {
  if (value.size() > kValueBytesMax) {
    size_t end = kValueBytesMax;
    while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xc0) == 0x80) --end;  // not inside a character
    value = value.substr(0, end) + "...";
  }
  const auto needs_quotes = [](char c) { return is_control(c) || c == ' ' || c == '"' || c == '=' || c == '\\'; };
  if (!value.empty() && std::ranges::none_of(value, needs_quotes)) return value;
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (is_control(c) && c != '\n')
      quoted += cat("\\x", kHex[static_cast<size_t>(c) >> 4 & 15], kHex[static_cast<size_t>(c) & 15]);
    else
      quoted += c == '\n' ? ' ' : c;
  }
  return quoted + '"';
}

int64_t us_of(auto time_point) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time_point.time_since_epoch()).count();
}

std::string text_of(std::initializer_list<LogField> fields) {
  std::string text;
  for (const LogField& field : fields) text += cat(" ", field.key, "=", shown(field.value));
  return text;
}

}  // namespace

std::vector<std::string> log_level_names() {
  std::vector<std::string> names;
  for (const NamedLevel& named : kLevels) names.push_back(named.name);
  return names;
}

LogLevel log_level_of(const std::string& name) {
  for (const NamedLevel& named : kLevels)
    if (name == named.name) return named.level;
  SEER_CHECK(false, name);
  return LogLevel::kOff;
}

std::string to_string(LogLevel level) {
  for (const NamedLevel& named : kLevels)
    if (named.level == level) return named.name;
  return "unknown";
}

struct EventLog::Sink {
  Sink(std::ofstream file_in, std::string name_in, LogLevel level_in, LogClock clock)
      : level(level_in), name(std::move(name_in)), file(std::move(file_in)), logger("seer", std::make_shared<spdlog::sinks::ostream_sink_mt>(file)) {
    set_up(clock);
  }
  Sink(spdlog::sink_ptr out, LogLevel level_in, LogClock clock) : level(level_in), logger("seer", std::move(out)) {
    set_up(clock);
  }
  void set_up(LogClock clock) {
    logger.set_level(spdlog_level(level));
    logger.flush_on(spdlog::level::trace);  // so that a crash loses no line
    if (clock == LogClock::kSteady) offset_us = us_of(std::chrono::system_clock::now()) - us_of(std::chrono::steady_clock::now());
    logger.set_formatter(std::make_unique<spdlog::pattern_formatter>(
        clock == LogClock::kSteady ? "%Y-%m-%dT%H:%M:%S.%fZ %v" : "%E.%f %v", spdlog::pattern_time_type::utc, "\n"));
  }

  /// Says once that lines are lost.
  void note_failure() {
    if (file.is_open() && !file && !has_failed.exchange(true)) std::cerr << cat("seer: the log ", name, " cannot be written: its lines are lost\n");
  }

  const LogLevel level;
  const std::string name;
  std::atomic<bool> has_failed = false;
  std::ofstream file;  // declared before the logger, which writes to it; not open if the sink is another stream
  spdlog::logger logger;
  int64_t offset_us = 0;  // added to the actors' clock for the time in a line
};

Result<EventLog> EventLog::open(const LogConfig& config) {
  if (config.file.empty())
    return EventLog(std::make_shared<Sink>(std::make_shared<spdlog::sinks::stderr_sink_mt>(), config.level, config.clock));
  std::ofstream file(config.file, std::ios::app);
  if (!file) return fail(Code::kIo, "cannot open the log ", config.file, ": ", std::strerror(errno));
  return EventLog(std::make_shared<Sink>(std::move(file), config.file, config.level, config.clock));
}

EventLog EventLog::to(std::ostream& out, LogLevel level, LogClock clock) {
  return EventLog(std::make_shared<Sink>(std::make_shared<spdlog::sinks::ostream_sink_mt>(out), level, clock));
}

bool EventLog::is_on(LogLevel level) const { return sink_ != nullptr && level >= sink_->level && level != LogLevel::kOff; }

EventLog EventLog::with(std::initializer_list<LogField> fields) const {
  EventLog same = *this;
  same.first_fields_ += text_of(fields);
  return same;
}

void EventLog::write(LogLevel level, int64_t now_us, const char* event, std::initializer_list<LogField> fields) const {
  if (!is_on(level)) return;
  const std::string line = cat(to_string(level), " ", event, first_fields_, text_of(fields));
  const std::chrono::microseconds time(now_us + sink_->offset_us);
  sink_->logger.log(spdlog::log_clock::time_point(time), spdlog::source_loc{}, spdlog_level(level), line);
  sink_->note_failure();
}

void EventLog::error(int64_t now_us, const char* event, std::initializer_list<LogField> fields) const {
  write(LogLevel::kError, now_us, event, fields);
}
void EventLog::warn(int64_t now_us, const char* event, std::initializer_list<LogField> fields) const {
  write(LogLevel::kWarn, now_us, event, fields);
}
void EventLog::info(int64_t now_us, const char* event, std::initializer_list<LogField> fields) const {
  write(LogLevel::kInfo, now_us, event, fields);
}
void EventLog::debug(int64_t now_us, const char* event, std::initializer_list<LogField> fields) const {
  write(LogLevel::kDebug, now_us, event, fields);
}

}  // namespace seer
