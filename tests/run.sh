#!/usr/bin/env bash
# Installs what is missing, builds everything but the benchmarks, and runs the tests; ctest's summary comes last.
#   tests/run.sh              all tests but the slow ones
#   tests/run.sh --nightly    the slow ones (label "nightly"); builds the benchmarks too
#   tests/run.sh --asan       a debug build with AddressSanitizer and UndefinedBehaviorSanitizer
# Where CI is set, as .ci/run does, it also installs what some tests are skipped without (deploy/setup.sh --tests).
# Further arguments go to ctest: tests/run.sh -R cli/
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/usable_cpus.sh
source "$root/deploy/usable_cpus.sh"

for argument in "$@"; do
  if [[ $argument == -h || $argument == --help ]]; then
    sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
  fi
done
preset=release
labels=(-LE nightly)
targets=()
while (($# > 0)); do
  case $1 in
    --nightly) labels=(-L nightly) targets=(all benchmarks) ;;
    --asan) preset=debug ;;
    *) break ;;
  esac
  shift
done

"$root/deploy/setup.sh" ${CI:+--tests}
"$root/deploy/build.sh" "$preset" "${targets[@]}"
ctest --test-dir "$root/build/$preset" --output-on-failure --no-tests=error --parallel "$(usable_cpus)" "${labels[@]}" "$@"
