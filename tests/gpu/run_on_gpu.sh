#!/usr/bin/env bash
# Checks the CUDA engine on the GPU of this machine, then measures steps; results are JSON lines on stdout, the rest goes to stderr.
#   tests/gpu/run_on_gpu.sh [MODEL]    MODEL: a folder with a bf16 model; the small one of this repository by default
# Needs CMake, a C++ compiler, CUDA's toolkit and the libraries that the CPU build of seer_gpu and its tests needs; no CAF.
# It was not yet run: there was no GPU.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${SEER_GPU_BUILD:-$root/build/gpu}
model=${1:-$root/deploy/models/scratchpad-1m8}

cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DSEER_WITH_CAF=OFF -DSEER_CUDA_ARCHITECTURES="${SEER_CUDA_ARCHITECTURES:-}" >&2
cmake --build "$build" --parallel "$(nproc)" --target seer_cuda_gpu_tests bench_cuda_engine >&2

# The emulation alone can fail on request, and has little memory.
if "$build/bin/seer_cuda_gpu_tests" -tce="*a device that fails*,*is one sentence*" >&2; then
  echo '{"check": "cuda_engine", "passed": true}'
else
  echo '{"check": "cuda_engine", "passed": false}'
  exit 1
fi
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    if compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/bin/seer_cuda_gpu_tests" -tc="*verify of any width*" >&2; then
      echo "{\"check\": \"$tool\", \"passed\": true}"
    else
      echo "{\"check\": \"$tool\", \"passed\": false}"
      exit 1
    fi
  done
else
  echo '{"check": "compute-sanitizer", "passed": null, "why": "not installed"}'
fi
"$build/bin/bench_cuda_engine" "$model"
