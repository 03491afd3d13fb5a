#!/usr/bin/env bash
# Builds Seer: deploy/build.sh PRESET [TARGET...], e.g. `deploy/build.sh release seer`. Without targets: everything
# but the benchmarks, which `deploy/build.sh release benchmarks` builds. The programs land in build/PRESET/bin.
# Presets: release, debug (with sanitizers), tsan.
set -euo pipefail

# One compiler takes up to 1.5 GiB here. Runs as many as there are cores, but no more than memory can hold, or a container may use.
build_jobs() {
  local cores memory_kib limit quota period
  cores=$(nproc)
  if read -r quota period </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
    quota=$(((quota + period - 1) / period))
    cores=$((quota < cores ? quota : cores))
  fi 2>/dev/null
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ "$limit" != max ]] && ((limit / 1024 < memory_kib)); then memory_kib=$((limit / 1024)); fi
  local fitting=$((memory_kib / (1536 * 1024)))
  if ((fitting < 1)); then fitting=1; fi
  echo $((cores < fitting ? cores : fitting))
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
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
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
