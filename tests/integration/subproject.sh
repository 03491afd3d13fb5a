#!/usr/bin/env bash
# CMakeLists.txt: Seer may be a part of another project, in folders with spaces in their names, and options that cannot go together
# are refused.
# Usage: subproject.sh [<build folder>]    Exit: 0 passed, 1 failed.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "subproject: FAILED: $*"; exit 1; }

configure() { cmake -G Ninja "$@" >"$work/log" 2>&1; }
for options in -DSEER_BUILD_TESTS=OFF -DSEER_SANITIZE=address; do
  configure -S "$root" -B "$work/refused" -DSEER_WITH_SIMT=ON "$options" && fail "SEER_WITH_SIMT=ON goes with $options"
  tr -s ' \n' ' ' <"$work/log" | grep -q 'SEER_WITH_SIMT needs the emulated GPU of tests/simt' || fail "with $options: $(cat "$work/log")"
done

mkdir "$work/an other"
cat >"$work/an other/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(other LANGUAGES CXX)
add_subdirectory("$root" seer)
add_executable(other other.cpp)
target_link_libraries(other PRIVATE seer_protocols)
END
cat >"$work/an other/other.cpp" <<'END'
#include "protocols/cluster.h"
int main() { return seer::model_name("models/x") == "x" ? 0 : 1; }
END
built=$work/"an other"/build
configure -S "$work/an other" -B "$built" || fail "$(cat "$work/log")"
cmake --build "$built" --target other >"$work/log" 2>&1 || fail "$(cat "$work/log")"
"$(find "$built" -type f -name other -perm -u+x)" || fail "its program fails"

# What compiles the kernels is replaced by a script, because they take minutes.
if grep -q ' [^ ]*/bin/nvcc ' "$built/build.ninja"; then
  printf '#!/bin/bash\necho registers\n: >"${!#}"\n' >"$work/nvcc"
  chmod +x "$work/nvcc"
  sed -i "s, [^ ]*/bin/nvcc , $work/nvcc ," "$built/build.ninja"
  cmake --build "$built" --target seer/cuda/cuda_kernels.o >"$work/log" 2>&1 || fail "kernels: $(cat "$work/log")"
  [[ $(cat "$built/seer/cuda/ptxas.log") == registers ]] || fail "there is no log of the kernels' compiler"
fi
echo "subproject: passed"
