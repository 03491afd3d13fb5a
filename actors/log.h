// EventLog: writes a line for each change of state that a person would ask about: `instance_lost instance=3 chunks=4`. It
// writes nothing per token, chunk or step. Hold it by value: a copy writes to the same log, and a default one is silent.
// Thread-safe.
//
// A line is `TIME LEVEL EVENT KEY=VALUE...`. The caller passes the time of the actor's clock; it is shown in seconds in
// simulation, else as the date in UTC. A value with spaces, quotes or '=' is quoted, with \ before quotes. Control characters
// are written as \x1b, a newline as a space. Values are cut after 1000 bytes.
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

/// `key=value`. The value is anything that can be written to a stream.
struct LogField {
  template <class Value>
  LogField(const char* key_in, const Value& value_in) : key(key_in), value(cat(value_in)) {}
  const char* key;
  std::string value;
};

class EventLog {
 public:
  EventLog() = default;  // silent
  /// Errors: kIo if the file cannot be opened.
  static Result<EventLog> open(const LogConfig& config);
  /// For tests. REQUIRES: `out` outlives every copy.
  static EventLog to(std::ostream& out, LogLevel level, LogClock clock);

  /// The same log, with these fields first in each line.
  EventLog with(std::initializer_list<LogField> fields) const;

  bool is_on(LogLevel level) const;
  void error(int64_t now_us, const char* event, std::initializer_list<LogField> fields = {}) const;
  /// For a fault that costs time or room but does not end the run: a lost instance, a failing store.
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
