// Time of one linear layer by rows and type of the weights, one JSON line each. Usage:
//   bench_linear [columns outputs] [threads]
// Weights are read in turn from 500 MB of copies, so that they come from memory as in a step. The lower limit is the
// line of type "read": one thread only adds up the same bytes.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <vector>

#include "gpu/cpu/float_bits.h"
#include "gpu/cpu/linear.h"

using namespace seer;

namespace {

constexpr int64_t kTotalBytes = 500'000'000;
constexpr int32_t kRowsMax = 64;

template <class Fn>
double seconds(Fn&& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print(const char* type, int32_t rows, const PackedMatrix& w, int32_t threads, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  std::cout << nlohmann::json{{"bench", "linear"},
                              {"type", type},
                              {"columns", w.columns()},
                              {"outputs", w.rows()},
                              {"threads", threads},
                              {"rows", rows},
                              {"us_p50", median * 1e6},
                              {"us_p90", times[times.size() * 9 / 10] * 1e6},
                              {"weight_gb_per_s", static_cast<double>(w.bytes()) / median * 1e-9},
                              {"gflop_per_s", 2e-9 * rows * w.columns() * w.rows() / median}}
            << std::endl;
}

void run(const char* name, MatrixType type, int32_t columns, int32_t outputs, int32_t threads) {
  std::mt19937 rng(1);
  std::vector<uint16_t> bits(static_cast<size_t>(columns) * outputs);
  for (uint16_t& b : bits) b = static_cast<uint16_t>(0x3c00u + (rng() & 0x80ffu));
  const TensorView tensor{type == MatrixType::kF32 ? TensorType::kF16 : TensorType::kBf16,
                          {outputs, columns},
                          std::as_bytes(std::span(bits))};
  PageArena arena;
  std::vector<PackedMatrix> copies;
  do {
    copies.emplace_back(outputs, columns, type, &arena);
    copies.back().fill(0, tensor);
  } while (static_cast<int64_t>(copies.size()) * copies[0].bytes() < kTotalBytes);

  ThreadPool pool(threads);
  Linear linear(*cpu_kernels(CpuIsa::kAuto), pool);
  Activations in(columns), out(copies[0].rows_padded());
  in.reserve_rows(kRowsMax);
  out.reserve_rows(kRowsMax);
  for (int32_t r = 0; r < kRowsMax; ++r)
    for (int32_t k = 0; k < columns; ++k)
      in.row(r)[k] = bf16_to_float(static_cast<uint16_t>(0x3f80u + (rng() & 0x7fu)));
  std::vector<double> times;
  if (type == MatrixType::kBf16) {
    volatile uint64_t sum = 0;
    for (const PackedMatrix& w : copies)
      times.push_back(seconds([&] {
        uint64_t total = 0, word;
        const char* p = reinterpret_cast<const char*>(w.bf16_data());
        for (int64_t i = 0; i < w.bytes(); i += 64) {
          __builtin_prefetch(p + i + 4096);
          std::memcpy(&word, p + i, sizeof word);
          total += word;
        }
        sum = sum + total;
      }));
    print("read", 0, copies[0], 1, std::move(times));
  }
  for (int32_t rows : {1, 2, 4, 8, 16, 64}) {
    times.clear();
    for (const PackedMatrix& w : copies) times.push_back(seconds([&] { linear.multiply(w, in, rows, out); }));
    print(name, rows, copies[0], threads, times);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (cpu_kernels(CpuIsa::kAuto) == nullptr) {
    std::cerr << "SEER_CPU_ISA is unknown, or not what this processor has\n";
    return 1;
  }
  const int32_t columns = argc > 2 ? std::atoi(argv[1]) : 896, outputs = argc > 2 ? std::atoi(argv[2]) : 4864;
  const int32_t threads = argc > 3 ? std::atoi(argv[3]) : 1;
  run("bf16", MatrixType::kBf16, columns, outputs, threads);
  run("int8", MatrixType::kInt8, columns, outputs, threads);
  run("w8a8", MatrixType::kW8a8, columns, outputs, threads);
  run("f32", MatrixType::kF32, columns, outputs, threads);
}
