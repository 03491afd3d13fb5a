#!/usr/bin/env bash
# Checks the CUDA engine on the first GPU of this machine, and on several where it has them, then measures it on the first; results are
# JSON lines on stdout, the rest goes to stderr.
#   tests/gpu/run_on_gpu.sh [MODEL]        MODEL: a folder with a bf16 model, or 7b, the default: that shape with random weights
#   tests/gpu/run_on_gpu.sh --pack FILE    builds here and makes a tar file for a machine with a GPU, where run_on_gpu.sh in it needs
#                                          CUDA's driver alone; with PyTorch it compares, with compute-sanitizer it checks more
# To build: CMake, a C++ compiler, CUDA's toolkit and the libraries that the CPU build of seer_gpu and its tests needs; no CAF.
# About two minutes on an H200; without the build at most eight: what runs longer is ended, and has failed.
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

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
SECONDS=0
total_s=470

# limited SECONDS COMMAND...: runs it for at most so long, and not beyond the end of the whole. Exit: that of the command; 124: ended.
limited() {
  local limit=$((total_s - SECONDS))
  ((limit < $1)) || limit=$1
  ((limit > 0)) || return 124
  timeout --kill-after=5 "$limit" "${@:2}"
}
result() {  # NAME true|false|null [WHY]
  [[ $2 != false ]] || failed=1
  echo "{\"check\": \"$1\", \"passed\": $2${3:+, \"why\": \"$3\"}}"
}
why() {  # EXIT_CODE SECONDS
  if (($1 == 124 || $1 == 137)); then echo "ended: it took more than $2 s, or all together $total_s s"; else echo "exit code $1"; fi
}
check() {  # NAME SECONDS COMMAND...
  local rc=0
  if ((SECONDS >= total_s)); then
    result "$1" null "not run: all together have taken $total_s s"
    return
  fi
  limited "${@:2}" 2>&1 | tee "$work/said" >&2 || rc=$?
  if ((rc != 0)); then
    result "$1" false "$(why $rc "$2")"
  elif grep -q 'test cases: *0 ' "$work/said"; then
    result "$1" false "no test has such a name"
  else
    result "$1" true
  fi
}

# The emulation alone can fail on request, or have little memory.
emulated='*(emulated)*' several='tensor parallel*'
tests=$programs/seer_cuda_gpu_tests
check cuda_engine 240 "$tests" -tce="$emulated,$several"
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') || true
if ((gpus >= 2)); then
  check tensor_parallel 120 "$tests" -tc='tensor parallel:*' -tce="$emulated"
  check tensor_parallel_graphs 120 "$tests" -tc='tensor parallel with graphs:*' -tce="$emulated"
else
  result tensor_parallel null "not run: $gpus GPUs here, it needs 2 or 4"
fi

measured=$work/measured
rc=0
limited 240 "$programs/bench_cuda_engine" "${1:-7b}" | tee "$measured" || rc=$?
((rc == 0)) || result bench_cuda_engine false "$(why $rc 240)"
if [[ ${1:-7b} == 7b ]] && python3 -c 'import torch' 2>/dev/null; then
  rc=0
  limited 120 python3 "$compare" --beside "$measured" || rc=$?
  ((rc == 0)) || result PyTorch false "$(why $rc 120)"
else
  result PyTorch null "not installed, or another model"
fi

# Last, with what time is left.
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    for test in '*can be timed*' 'gemm:*' '*large vocabulary*'; do
      check "$tool ${test//\*/}" 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" -tc="$test"
    done
  done
else
  result compute-sanitizer null "not installed"
fi
exit $failed
