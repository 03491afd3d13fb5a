#!/usr/bin/env bash
# Builds everything as if no optional library were installed, first without CAF and then with it, to find names that only an
# optional part declares. Nothing is optimized, which halves the time.
#   tests/build_bare.sh FOLDER    builds in this folder, which is made; keeping it saves time at the next build
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if (($# != 1)); then
  sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi

mapfile -t parts < <(sed -n 's/^option(\(SEER_WITH_[A-Z0-9_]*\).*/\1/p' "$root/CMakeLists.txt")
parts_off=("${parts[@]/#/-D}")
parts_off=("${parts_off[@]/%/=OFF}")
for caf in OFF ON; do
  cmake -S "$root" -B "$1" -G Ninja -DCMAKE_BUILD_TYPE=None "${parts_off[@]}" -DSEER_WITH_CAF="$caf"
  cmake --build "$1" --parallel "$(nproc)"
done
