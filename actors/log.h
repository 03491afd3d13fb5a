// EventLog: a line for each change of state that a person would ask about: `instance_lost instance=3 chunks=4`. Nothing per
// token, chunk or step. A copy refers to the same log, and a default one is silent, so that a part holds a EventLog by value.
// Threads may share one.
//
// A line is `TIME LEVEL EVENT KEY=VALUE...`. The time is the actor's clock, which the caller passes: in simulation the
// seconds of the virtual clock, else the date in UTC. A value with spaces, quotes or '=' is quoted, with \ before quotes; control
// characters are written as \x1b, a newline as a space. Of a value of more than 1000 bytes the beginning is written.
// Used by actors and cli. log.cpp is the only file that includes spdlog.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protocols/result.h"

namespace seer {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kError, kOff };
/// In this order: off, error, warn, info, debug.
std::vector<std::string> log_level_names();
/// REQUIRES: one of log_level_names().
LogLevel log_level_of(const std::string& name);
std::string to_string(LogLevel level);

enum class LogClock : uint8_t {
  kSteady,   // microseconds of the steady clock, as actors of a real system have; shown as the date in UTC
  kVirtual,  // microseconds from the start of a simulation; shown in seconds
};

struct LogConfig {
  LogLevel level = LogLevel::kWarn;
  std::string file;  // appended to; empty: stderr
  LogClock clock = LogClock::kSteady;
};

/// `key=value`. The value is anything that a stream writes.
struct LogField {
  template <class Value>
  LogField(const char* key_in, const Value& value_in) : key(key_in), value(cat(value_in)) {}
  const char* key;
  std::string value;
};

class EventLog {
 public:
  EventLog() = default;  // silent
  /// kIo: the file cannot be opened, as one sentence.
  static Result<EventLog> open(const LogConfig& config);
  /// For tests. REQUIRES: `out` outlives every copy.
  static EventLog to(std::ostream& out, LogLevel level, LogClock clock);

  /// The same log, with these fields first in each line.
  EventLog with(std::initializer_list<LogField> fields) const;

  bool is_on(LogLevel level) const;
  void error(int64_t now_us, const char* event, std::initializer_list<LogField> fields = {}) const;
  /// What costs time or room, and goes on: an instance lost, a store that fails.
  void warn(int64_t now_us, const char* event, std::initializer_list<LogField> fields = {}) const;
  void info(int64_t now_us, const char* event, std::initializer_list<LogField> fields = {}) const;
  void debug(int64_t now_us, const char* event, std::initializer_list<LogField> fields = {}) const;

 private:
  struct Sink;
  explicit EventLog(std::shared_ptr<Sink> sink) : sink_(std::move(sink)) {}
  void write(LogLevel level, int64_t now_us, const char* event, std::initializer_list<LogField> fields) const;

  std::shared_ptr<Sink> sink_;
  std::string first_fields_;
};

}  // namespace seer
