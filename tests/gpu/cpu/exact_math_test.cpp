#include "gpu/cpu/denormals.h"
#include "gpu/cpu/exact_math.h"
#include "gpu/cpu/lanes_scalar.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>

#include "gpu/cpu/denormals.h"
#include "gpu/cpu/exp_lanes.h"
#include "gpu/cpu/lanes_scalar.h"

namespace seer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double ulps(float got, double want) {
  const float nearest = std::fabs(static_cast<float>(want));
  return std::fabs(got - want) / (std::nextafterf(nearest, kInf) - nearest);
}

TEST_CASE("exact math: float exp and log stay within 1.1 ulp of libm in double") {
  double worst_exp = 0, worst_log = 0;
  for (double x = -87.33; x < 88.72; x += 0.000731) {
    const auto f = static_cast<float>(x);
    worst_exp = std::max(worst_exp, ulps(exact_exp(f), std::exp(static_cast<double>(f))));
  }
  std::mt19937 rng(1);
  for (int i = 0; i < 400'000; ++i) {
    const auto f = std::bit_cast<float>(static_cast<uint32_t>(0x00800000u + rng() % 0x7f000000u));
    if (f != 1.0f) worst_log = std::max(worst_log, ulps(exact_log(f), std::log(static_cast<double>(f))));
  }
  CHECK(worst_exp < 1.1);
  CHECK(worst_log < 1.0);
}

TEST_CASE("exact math: double functions stay within their stated errors") {
  std::mt19937_64 rng(2);
  std::uniform_real_distribution<double> unit(-1, 1);
  double worst_sin = 0, worst_pow = 0, worst_exp = 0, worst_log = 0;
  for (int i = 0; i < 200'000; ++i) {
    const double angle = std::ldexp(unit(rng), i % 41);
    worst_sin = std::max({worst_sin, static_cast<double>(std::fabs(exact_sin(angle) - sinl(angle))),
                          static_cast<double>(std::fabs(exact_cos(angle) - cosl(angle)))});
    const double base = std::exp(16 * unit(rng)), power = 2 * unit(rng), x = 700 * unit(rng);
    worst_pow = std::max(worst_pow, static_cast<double>(std::fabs(exact_pow(base, power) / powl(base, power) - 1)));
    worst_exp = std::max(worst_exp, static_cast<double>(std::fabs(exact_exp(x) / expl(x) - 1)));
    worst_log = std::max(worst_log, static_cast<double>(std::fabs(exact_log(base) / logl(base) - 1)));
  }
  CHECK(worst_sin < 1e-15);
  CHECK(worst_pow < 1e-14);
  CHECK(worst_exp < 1e-15);
  CHECK(worst_log < 1e-15);
}

TEST_CASE("exact math: edges") {
  CHECK(exact_exp(-87.4f) == 0.0f);
  CHECK(exact_exp(-kInf) == 0.0f);
  CHECK(exact_exp(-87.336f) >= std::numeric_limits<float>::min());
  CHECK(exact_exp(88.72283f) < kInf);
  CHECK(exact_exp(88.73f) == kInf);
  CHECK(exact_exp(kInf) == kInf);
  CHECK(std::isnan(exact_exp(kNan)));
  CHECK(exact_log(0.0f) == -kInf);
  CHECK(exact_log(-0.0f) == -kInf);
  CHECK(exact_log(1e-40f) == -kInf);
  CHECK(exact_log(kInf) == kInf);
  CHECK(exact_log(1.0f) == 0.0f);
  CHECK(std::isnan(exact_log(-1.0f)));
  CHECK(std::isnan(exact_log(-kInf)));
  CHECK(std::isnan(exact_log(kNan)));
  CHECK(exact_pow(10000.0, 0.0) == 1.0);
  CHECK(exact_pow(2.0, 10.0) == 1024.0);
  CHECK(std::isnan(exact_sin(0x1p41)));
}

// These bits are part of the contract: tokens made on one machine must be made again on any other.
TEST_CASE("exact math: committed bit patterns, with and without flushing of denormals") {
  struct F {
    float x;
    uint32_t bits;
  };
  struct D {
    double x;
    uint64_t bits;
  };
  struct SinCos {
    double x;
    uint64_t sin, cos;
  };
  struct Pow {
    double base, exponent;
    uint64_t bits;
  };
  const F exp_f32[] = {
      {-87.f, 0x00b33687u},  {-20.5f, 0x30abd1d8u},       {-1.f, 0x3ebc5ab2u}, {-9.99999975e-05f, 0x3f7ff972u},
      {0.f, 0x3f800000u},    {0.300000012f, 0x3facc82cu}, {1.f, 0x402df854u},  {2.71828175f, 0x417277dau},
      {30.25f, 0x5547ad56u}, {88.5f, 0x7f4cdcc4u}};
  const F log_f32[] = {{1e-30f, 0xc28a27b5u},         {0.00100000005f, 0xc0dd0c55u}, {0.5f, 0xbf317218u},
                       {0.707106769f, 0xbeb17218u},   {0.99999994f, 0xb3800000u},    {1.f, 0x00000000u},
                       {1.00000012f, 0x33ffffffu},    {1.5f, 0x3ecf991fu},           {10.f, 0x40135d8eu},
                       {3.39999995e+38f, 0x42b171abu}};
  const D exp_f64[] = {{-700, 0x00d14f2b0fb9307fu},
                       {-1.5, 0x3fcc8f87724b5c1du},
                       {0.1, 0x3ff1aec7b35a00d4u},
                       {3, 0x403415e5bf6fb106u},
                       {600, 0x76088a122d234b39u}};
  const D log_f64[] = {{1e-300, 0xc085963447f87fb5u}, {0.3, 0xbff34378fcbda721u},    {1, 0},
                       {1.1, 0x3fb8663f793c46ccu},    {131072, 0x402791272ee9dd8eu}, {1e300, 0x4085963447f87fb5u}};
  const SinCos angles[] = {{0.0, 0, 0x3ff0000000000000u},
                           {0.5, 0x3fdeaee8744b05f0u, 0x3fec1528065b7d50u},
                           {1.0, 0x3feaed548f090ceeu, 0x3fe14a280fb5068cu},
                           {3.0, 0x3fc210386db6d55bu, 0xbfefae04be85e5d2u},
                           {-7.25, 0xbfea56adb62a27b9u, 0x3fe22c6f50dc3fbfu},
                           {1000, 0x3fea75cc150a206cu, 0x3fe1ff026793f1bbu},
                           {65535.75, 0x3feb2c1e66b1e67eu, 0xbfe0e6cf18bca05fu},
                           {1048575, 0xbfe3b32b2ca06654u, 0x3fe937a45bd49642u}};
  const Pow powers[] = {{10000, -0.25, 0x3fb999999999999au},
                        {1e6, -0.984375, 0x3eb4d1c97f4e952fu},
                        {500000, -0.5, 0x3f572ba43fff3717u},
                        {1e7, 0.3, 0x405f791f6509fb64u}};
  for (bool flush : {false, true}) {
    CAPTURE(flush);
    const FlushDenormals mode(flush);
    for (const F& v : exp_f32) CHECK(std::bit_cast<uint32_t>(exact_exp(v.x)) == v.bits);
    for (const F& v : log_f32) CHECK(std::bit_cast<uint32_t>(exact_log(v.x)) == v.bits);
    for (const D& v : exp_f64) CHECK(std::bit_cast<uint64_t>(exact_exp(v.x)) == v.bits);
    for (const D& v : log_f64) CHECK(std::bit_cast<uint64_t>(exact_log(v.x)) == v.bits);
    for (const SinCos& v : angles) {
      CHECK(std::bit_cast<uint64_t>(exact_sin(v.x)) == v.sin);
      CHECK(std::bit_cast<uint64_t>(exact_cos(v.x)) == v.cos);
    }
    for (const Pow& v : powers) CHECK(std::bit_cast<uint64_t>(exact_pow(v.base, v.exponent)) == v.bits);
  }
}

TEST_CASE("exact math: exp for numbers that are not positive has the bits of exp") {
  const FlushDenormals flush;
  std::mt19937_64 rng(3);
  const auto differs = [](float x) {
    const Lanes::F lanes = Lanes::set1(x);
    const Lanes::F a = exp_lanes<Lanes>(lanes), b = exp_lanes<Lanes, true>(lanes);
    return std::memcmp(&a, &b, sizeof a) != 0;
  };
  int different = 0;
  for (int i = 0; i < 300'000; ++i) {
    const auto bits = static_cast<uint32_t>(rng()) | 0x80000000u;  // any float below zero, infinity and NaN among them
    different += differs(std::bit_cast<float>(bits));
    different += differs(-88.0f * static_cast<float>(rng() % 1'000'000) / 1'000'000.0f);
  }
  for (const float x : {0.0f, -0.0f, -87.336f, -87.33601f, -87.0f, -kInf, kNan}) different += differs(x);
  CHECK(different == 0);
}

}  // namespace
}  // namespace seer
