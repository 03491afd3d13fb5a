// cpu_engine_test.cpp checks that SEER_CPU_ISA reaches a whole engine.
#include "gpu/cpu/cpu_isa.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace seer {
namespace {

constexpr CpuIsa kSlowestFirst[] = {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvxVnni, CpuIsa::kAvx512, CpuIsa::kAmx};

/// Sets SEER_CPU_ISA, or takes it away, while this lives.
class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* before = std::getenv("SEER_CPU_ISA")) before_ = before;
    set(value);
  }
  ~Environment() { set(before_ ? before_->c_str() : nullptr); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const char* value) { value ? ::setenv("SEER_CPU_ISA", value, 1) : ::unsetenv("SEER_CPU_ISA"); }
  std::optional<std::string> before_;
};

TEST_CASE("cpu isa: each has the name that SEER_CPU_ISA takes") {
  CHECK(to_string(CpuIsa::kAuto) == std::string("auto"));
  for (const CpuIsa isa : kSlowestFirst) {
    const Environment environment(to_string(isa));
    const auto resolved = resolve_cpu_isa(CpuIsa::kAuto);
    if (resolved.ok()) CHECK(*resolved == isa);
    CHECK(resolved.ok() == resolve_cpu_isa(isa).ok());
    if (!resolved.ok()) CHECK(resolved.error().code == Code::kUnavailable);
  }
}

TEST_CASE("cpu isa: without SEER_CPU_ISA, kAuto is the fastest that the processor has") {
  const Environment environment(nullptr);
  CpuIsa fastest = CpuIsa::kScalar;
  for (const CpuIsa isa : kSlowestFirst)
    if (resolve_cpu_isa(isa).ok()) fastest = isa;
  CHECK(*resolve_cpu_isa(CpuIsa::kAuto) == fastest);
}

TEST_CASE("cpu isa: a requested one is given or refused by name, whatever the environment says") {
  const Environment environment("nonsense");
  CHECK(*resolve_cpu_isa(CpuIsa::kScalar) == CpuIsa::kScalar);
  CHECK(resolve_cpu_isa(CpuIsa::kAuto).error().code == Code::kInvalidArgument);
  for (const CpuIsa isa : kSlowestFirst)
    if (const auto resolved = resolve_cpu_isa(isa); !resolved.ok())
      CHECK(resolved.error().detail == cat("this processor cannot run the ", to_string(isa), " kernels"));
}

}  // namespace
}  // namespace seer
