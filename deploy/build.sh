#!/usr/bin/env bash
# Builds Seer: deploy/build.sh PRESET [TARGET...], e.g. `deploy/build.sh release seer`. Without targets: everything
# but the benchmarks, which `deploy/build.sh release benchmarks` builds. The programs land in build/PRESET/bin.
# Presets: release, debug (with sanitizers), tsan.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/usable_cpus.sh
source "$root/deploy/usable_cpus.sh"

# One compiler takes up to 1.5 GiB here. Runs as many as there are usable CPUs, but no more than memory can hold, or a container may use.
build_jobs() {
  local cpus memory_kib group limit
  cpus=$(usable_cpus)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  while IFS= read -r group; do
    limit=$(cat "$group"/memory.{max,limit_in_bytes} 2>/dev/null) || true  # a group has one of them
    if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1024 < memory_kib)); then memory_kib=$((limit / 1024)); fi  # else it is "max"
  done < <(control_groups memory)
  local fitting=$((memory_kib / (1536 * 1024)))
  if ((fitting < 1)); then fitting=1; fi
  echo $((cpus < fitting ? cpus : fitting))
}

# An older CMake would only say that it does not know the version of CMakePresets.json.
check_cmake() {
  local needed=3.25 found
  found=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9.]*\).*/\1/p') || true
  if [[ $(printf '%s\n' "$needed" "${found:-0}" | sort -V | head -n 1) != "$needed" ]]; then
    if [[ -n $found ]]; then found="CMake $found"; else found="no CMake"; fi
    echo "build: this machine has $found: expected CMake $needed or later, which comes with Debian 12 and Ubuntu 24.04" >&2
    exit 1
  fi
}

main() {
  for argument in "$@"; do
    if [[ $argument == -h || $argument == --help ]]; then
      sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
    fi
  done
  if (($# == 0)) || [[ ! $1 =~ ^(release|debug|tsan)$ ]]; then
    echo "build: ${1:+unknown preset $1; }usage: deploy/build.sh release|debug|tsan [TARGET...]" >&2
    exit 2
  fi
  check_cmake
  cd "$root"
  local preset=$1 log=build/$1-configure.log
  shift
  mkdir -p build
  if ! cmake --preset "$preset" >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
  fi
  cmake --build --preset "$preset" --parallel "$(build_jobs)" ${1:+--target "$@"}
}

main "$@"
