#!/usr/bin/env bash
# Fuzzes with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer: tests/fuzz.sh [SECONDS [TARGET...]], SECONDS for each target
# (10 by default). Prints a line for each, and exits with 1 if one found something, with 77 if there is no Clang with libFuzzer.
# Inputs that reach new code are kept in build/fuzz/corpus/TARGET and tried first the next time; what was found lies in
# build/fuzz/findings: build/fuzz/fuzz_TARGET FILE runs one again. CXX names another Clang.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/fuzz
clang=${CXX:-clang++}

has_fuzzer() {
  local folder
  folder=$(mktemp -d)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' >"$folder/a.cpp"
  local found=0
  "$clang" -fsanitize=fuzzer,address,undefined "$folder/a.cpp" -o "$folder/a" >/dev/null 2>&1 || found=1
  rm -rf "$folder"
  return $found
}

# fuzz TARGET SECONDS: 0 if nothing was found.
fuzz() {
  local target=$1 seconds=$2 seeds=$root/tests/fuzz/corpus/$1 kept=$build/corpus/$1 log=$build/$1.log status=0
  mkdir -p "$kept" "$build/findings"
  UBSAN_OPTIONS=print_stacktrace=1 "$build/fuzz_$target" "$kept" "$seeds" -max_total_time="$seconds" -max_len=65536 -timeout=10 \
    -rss_limit_mb=2048 -malloc_limit_mb=1024 -dict="$root/tests/fuzz/dictionaries/$target.dict" \
    -artifact_prefix="$build/findings/$target-" -print_final_stats=1 >"$log" 2>&1 || status=$?
  local runs rate covered
  runs=$(awk '/^stat::number_of_executed_units:/ {print $2}' "$log")
  rate=$(awk '/^stat::average_exec_per_sec:/ {print $2}' "$log")
  covered=$(grep -o 'cov: [0-9]*' "$log" | awk 'NR == 1 {first = $2} {last = $2} END {print first " -> " last}')
  printf '%-14s %9s runs %7s /s   edges %-14s %s\n' "$target" "${runs:-?}" "${rate:-?}" "${covered:-?}" \
    "$( ((status == 0)) && echo "nothing found" || echo "FOUND: $(grep -m1 -oE '(ERROR|FINDING|SUMMARY|runtime error): .*' "$log" || tail -1 "$log"), see $log")"
  return $((status != 0))
}

main() {
  if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
  fi
  local seconds=${1:-10} found=0 target
  if ! has_fuzzer; then
    echo "fuzz: $clang has no libFuzzer (apt-get install clang libclang-rt-14-dev)"
    exit 77
  fi
  mkdir -p "$root/build"
  cmake -S "$root/tests/fuzz" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$clang" >"$build-configure.log"
  local targets=("${@:2}")
  if ((${#targets[@]} == 0)); then
    for target in "$root"/tests/fuzz/*.cpp; do targets+=("$(basename "$target" .cpp)"); done
  fi
  cmake --build "$build" --target "${targets[@]/#/fuzz_}" >"$build-build.log" || { grep -m5 -E 'error:|undefined' "$build-build.log" >&2 || tail -30 "$build-build.log" >&2; exit 2; }
  for target in "${targets[@]}"; do fuzz "$target" "$seconds" || found=1; done
  exit $found
}

main "$@"
