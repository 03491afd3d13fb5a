#!/usr/bin/env bash
# Checks the CUDA engine on the first GPU of this machine, then measures it; results are JSON lines on stdout, the rest goes to stderr.
#   tests/gpu/run_on_gpu.sh [MODEL]        MODEL: a folder with a bf16 model, or 7b, the default: that shape with random weights
#   tests/gpu/run_on_gpu.sh --pack FILE    builds here and makes a tar file for a machine with a GPU, where run_on_gpu.sh in it needs
#                                          CUDA's driver alone; with PyTorch it compares, with compute-sanitizer it checks more
# To build: CMake, a C++ compiler, CUDA's toolkit and the libraries that the CPU build of seer_gpu and its tests needs; no CAF.
# About two minutes on an H200.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
programs=$here/bin
if [[ ! -x $programs/seer_cuda_gpu_tests ]]; then
  root=$(cd "$here/../.." && pwd)
  build=${SEER_GPU_BUILD:-$root/build/gpu}
  cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DSEER_WITH_CAF=OFF -DSEER_CUDA_ARCHITECTURES="${SEER_CUDA_ARCHITECTURES:-}" >&2
  cmake --build "$build" --parallel "$(nproc)" --target seer_cuda_gpu_tests bench_cuda_engine >&2
  programs=$build/bin
  compare=$root/tests/bench/gpu/bench_torch.py
fi
if [[ ${1:-} == --pack ]]; then
  packed=$(mktemp -d)
  trap 'rm -rf "$packed"' EXIT
  mkdir "$packed/bin"
  cp "$programs/seer_cuda_gpu_tests" "$programs/bench_cuda_engine" "$packed/bin"
  cp "$here/run_on_gpu.sh" "$compare" "$packed"
  tar -czf "${2:?the tar file to write}" -C "$packed" .
  exit
fi
compare=${compare:-$here/bench_torch.py}

# The emulation alone can fail on request, or have little memory.
emulated='*(emulated)*'
failed=0
check() {  # NAME COMMAND...
  local passed=true
  "${@:2}" >&2 || { passed=false failed=1; }
  echo "{\"check\": \"$1\", \"passed\": $passed}"
}
check cuda_engine "$programs/seer_cuda_gpu_tests" -tce="$emulated"
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    for test in '*can be timed*' 'gemm:*' '*large vocabulary*'; do
      check "$tool ${test//\*/}" timeout 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$programs/seer_cuda_gpu_tests" -tc="$test"
    done
  done
else
  echo '{"check": "compute-sanitizer", "passed": null, "why": "not installed"}'
fi

measured=$(mktemp)
trap 'rm -f "$measured"' EXIT
"$programs/bench_cuda_engine" "${1:-7b}" | tee "$measured"
if [[ ${1:-7b} == 7b ]] && python3 -c 'import torch' 2>/dev/null; then
  python3 "$compare" --beside "$measured"
else
  echo '{"check": "PyTorch", "passed": null, "why": "not installed, or another model"}'
fi
exit $failed
