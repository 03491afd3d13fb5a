// Result<T>: a value or an Error. Expected failures (bad input, full tiers, lost peers) are values, not exceptions.
// Codes are few: one per reaction that a caller can have. The detail is one clear sentence naming what is wrong and
// where; it is what a user reads.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <variant>

#include "protocols/check.h"

namespace seer {

enum class Code : uint8_t {
  kInvalidArgument = 1,  // the caller's input is wrong; trying again will not help
  kNotFound,             // no such file, tensor, block, request
  kFull,                 // a bounded resource has no room; the caller may wait or do without
  kStale,                // older weight version, epoch or token than the current one
  kCorrupt,              // bytes are not what was written
  kIo,                   // the operating system or a library refused
  kUnavailable,          // a part is not built in, or a peer is gone
  kCancelled,            // stopped on request
};

constexpr const char* to_string(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kNotFound: return "not_found";
    case Code::kFull: return "full";
    case Code::kStale: return "stale";
    case Code::kCorrupt: return "corrupt";
    case Code::kIo: return "io";
    case Code::kUnavailable: return "unavailable";
    case Code::kCancelled: return "cancelled";
  }
  return "unknown";
}

struct Error {
  Code code = Code::kInvalidArgument;
  std::string detail;
};
inline std::ostream& operator<<(std::ostream& out, const Error& e) { return out << to_string(e.code) << ": " << e.detail; }

/// Makes an Error whose detail is the parts joined: `return fail(Code::kNotFound, "no tensor ", name);`
template <class... Ts>
Error fail(Code code, const Ts&... parts) { return Error{code, cat(parts...)}; }

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { SEER_CHECK(ok(), std::get<1>(state_)); return std::get<0>(state_); }
  const T& value() const& { SEER_CHECK(ok(), std::get<1>(state_)); return std::get<0>(state_); }
  T&& value() && { SEER_CHECK(ok(), std::get<1>(state_)); return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { SEER_CHECK(!ok()); return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

/// Result without a value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : failed_(true), error_(std::move(error)) {}
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { SEER_CHECK(failed_); return error_; }

 private:
  bool failed_ = false;
  Error error_;
};

}  // namespace seer

/// Returns the error of a Status or Result expression from the enclosing function.
#define SEER_RETURN_IF_ERROR(expr) \
  do {                             \
    if (auto status_ = (expr); !status_.ok()) return status_.error(); \
  } while (false)
#define SEER_CONCAT_INNER(a, b) a##b
#define SEER_CONCAT(a, b) SEER_CONCAT_INNER(a, b)
/// SEER_ASSIGN_OR_RETURN(auto x, f()): x = value of f(), or returns its error.
#define SEER_ASSIGN_OR_RETURN(lhs, expr) SEER_ASSIGN_OR_RETURN_IN(SEER_CONCAT(result_, __LINE__), lhs, expr)
#define SEER_ASSIGN_OR_RETURN_IN(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.error();             \
  lhs = *std::move(tmp)
