#!/usr/bin/env bash
# Builds Seer: deploy/build.sh PRESET [TARGET...], e.g. `deploy/build.sh release seer`. Without targets: everything.
# The programs land in build/PRESET/bin.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One compiler takes up to 1.5 GiB here: as many as there are cores, but no more than memory can hold.
build_jobs() {
  local cores memory_kib limit
  cores=$(nproc)
  memory_kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ "$limit" != max ]] && ((limit / 1024 < memory_kib)); then memory_kib=$((limit / 1024)); fi
  local fitting=$((memory_kib / (1536 * 1024)))
  if ((fitting < 1)); then fitting=1; fi
  echo $((cores < fitting ? cores : fitting))
}

main() {
  if (($# == 0)); then
    echo "usage: deploy/build.sh release|debug|tsan [TARGET...]" >&2
    exit 2
  fi
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
