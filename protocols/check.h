// SEER_CHECK: for our own mistakes only (preconditions, invariants, impossible states). On in every build; prints the
// condition and the values given, then aborts. What a peer, a disk or a user can cause is a Result, never a check.
#pragma once
#include <cstdio>
#include <cstdlib>

#include "protocols/text.h"

namespace seer {

template <class... Ts>
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const Ts&... values) {
  std::string text = cat(file, ":", line, ": check failed: ", condition);
  ((text += " | " + cat(values)), ...);
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
}

}  // namespace seer

#define SEER_CHECK(condition, ...)                                                                    \
  do {                                                                                                \
    if (!(condition)) [[unlikely]]                                                                    \
      ::seer::check_failed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__);                \
  } while (false)
