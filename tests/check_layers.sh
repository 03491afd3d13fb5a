#!/usr/bin/env bash
# Checks every #include against the layers: who may include what, and where CAF, CUDA, UCX, RocksDB, spdlog and prometheus-cpp may be named.
#   tests/check_layers.sh [ROOT]         checks the tree at ROOT (this repository by default)
#   tests/check_layers.sh --self-test    plants faults in a tree of its own and expects each to be found
set -euo pipefail

# Each rule: files (a regular expression on the path), then the includes that they may not have.
# A layer also may not include what it is not linked to; the build says so too, but only for files that it compiles.
rules=(
  '^protocols/(actors|rt)\.h$'          '^(actors|gpu|served|storage|cli|tests)/'
  '^protocols/'                         '^(actors|gpu|served|storage|cli|tests)/|^nlohmann/|^toml|^CLI/'
  '^actors/policy/'                     '^(actors/(instance|sim)/|actors/[^/]*$|gpu/|served/|storage/|cli/|tests/)|^(chrono|ctime|thread|mutex|atomic)$|protocols/(actors|rt)\.h'
  '^gpu/'                               '^(actors|served|storage|cli|tests)/|protocols/(actors|rt)\.h'
  '^served/'                            '^(actors|gpu|storage|cli|tests)/|protocols/(actors|rt)\.h'
  '^storage/'                           '^(actors|gpu|served|cli|tests)/|protocols/(actors|rt)\.h'
  '^actors/'                            '^(cli|tests)/'
  '^cli/'                               '^tests/'
)
# Each library: its includes, then the only files that may have them.
libraries=(
  '^caf/'                               '^protocols/(rt|rt_net|actors)\.h$|^actors/sim/sim_world\.(h|cpp)$|^tests/actors/messages_test\.cpp$'
  '^(cuda|cublas|curand|nccl|cooperative_groups|mma)' '^(gpu|tests/gpu|tests/bench/gpu)/(.*/)?[^/]*(\.cuh?$)|^gpu/(.*/)?(cuda_|nccl_)[^/]*$'
  '^uc[pst]/'                           '^storage/ucx_[^/]*$'
  '^rocksdb/'                           '^storage/rocksdb_[^/]*$'
  '^spdlog/'                            '^actors/log\.cpp$'
  '^toml'                               '^cli/toml_options\.cpp$'
  '^CLI/'                               '^cli/arguments\.cpp$|^tests/'
  '^prometheus/'                        '^cli/serve/metrics\.cpp$'
  '^(boost|openssl)/'                   '^protocols/kv\.cpp$|^cli/(base64|cluster_gate|serve/http_(server|session|head))\.(h|cpp)$|^served/http_client\.cpp$|^tests/cli/cluster_gate_test\.cpp$'
)

# The only files of the layers below cli/ that may name CAF.
caf_names_in='^protocols/(rt|rt_net|actors)\.h$|^protocols/messages\.cpp$|^actors/sim/sim_world\.(h|cpp)$'

# Every include in the tree, one per line: path, line number, included name.
list_includes() {
  local folders=() folder
  for folder in actors cli gpu protocols served storage tests; do
    if [[ -d $folder ]]; then folders+=("$folder"); fi
  done
  grep -rnE --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' \
      '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' "${folders[@]}" |
    sed -E 's|^([^:]*):([0-9]*):[^<"]*[<"]([^>"]*).*|\1\t\2\t\3|' | LC_ALL=C sort -t$'\t' -k1,1 -k2,2n
}

# The first rule whose files match is the one that counts: the special cases stand before the general ones.
check() {
  local file line name i broken=0
  while IFS=$'\t' read -r file line name; do
    for ((i = 0; i < ${#rules[@]}; i += 2)); do
      if [[ $file =~ ${rules[i]} ]]; then
        if [[ $name =~ ${rules[i + 1]} ]]; then
          echo "$file:$line: this layer may not include $name"
          broken=1
        fi
        break
      fi
    done
    for ((i = 0; i < ${#libraries[@]}; i += 2)); do
      if [[ $name =~ ${libraries[i]} && ! $file =~ ${libraries[i + 1]} ]]; then
        echo "$file:$line: $name may be included only by files like ${libraries[i + 1]}"
        broken=1
      fi
    done
  done < <(list_includes)
  # What rt.h brings in can be named without an include: the actors use its names, not CAF's.
  while IFS=: read -r file line _; do
    if [[ ! $file =~ $caf_names_in ]]; then
      echo "$file:$line: this layer may not name caf::, but rt::"
      broken=1
    fi
  done < <(grep -rnE --include='*.h' --include='*.cpp' '^[^"]*\bcaf::' actors gpu protocols served storage || true)
  return $broken
}

self_test() {
  local tree
  tree=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name is known now, and is what must go
  trap "rm -rf '$tree'" EXIT
  cd "$tree"
  mkdir -p actors/policy cli gpu/cpu protocols served storage tests/gpu
  # Right includes: nothing may be found in these.
  printf '#include <caf/all.hpp>\n' >protocols/rt.h
  printf '#include <vector>\n#include "protocols/ids.h"\n#include "actors/policy/other.h"\n' >actors/policy/good.h
  printf '#include "gpu/engine.h"\n#include "storage/kv_tiers.h"\n#include "protocols/rt.h"\n' >actors/good_actor.h
  printf '#include <boost/beast/http.hpp>\n#include "protocols/ids.h"\n' >served/http_client.cpp
  printf '#include <rocksdb/db.h>\n' >storage/rocksdb_store.cpp
  printf '#include <ucp/api/ucp.h>\n' >storage/ucx_transport.cpp
  printf '#include <cuda_runtime.h>\n' >gpu/cuda_handles.h
  printf '#include <cuda_bf16.h>\n' >gpu/kernels.cu
  printf '#include <spdlog/logger.h>\n' >actors/log.cpp
  if ! check; then
    echo "self-test: a right include was called wrong" >&2
    exit 1
  fi
  # One wrong include at a time: each must be found, with its place.
  local planted=(
    protocols/bad.h 'gpu/engine.h'          protocols/bad.h 'caf/all.hpp'      protocols/bad.h 'nlohmann/json.hpp'
    actors/policy/bad.cpp 'chrono'          actors/policy/bad.cpp 'gpu/engine.h'
    actors/policy/bad.cpp 'actors/node_actor.h'                                actors/policy/bad.cpp 'protocols/rt.h'
    actors/policy/bad.cpp 'actors/instance/instance_actor.h'
    gpu/bad.cpp 'storage/kv_tiers.h'        gpu/bad.cpp 'cuda_runtime.h'       gpu/cpu/bad.cpp 'protocols/actors.h'
    served/bad.cpp 'gpu/stop_rule.h'        served/bad.cpp 'protocols/rt.h'   served/bad.cpp 'boost/beast.hpp'
    storage/bad.cpp 'gpu/engine.h'          storage/bad.cpp 'rocksdb/db.h'     storage/rocksdb_bad.cpp 'ucp/api/ucp.h'
    actors/bad_actor.cpp 'caf/io/all.hpp'   actors/bad_actor.cpp 'cli/config.h'
    actors/bad_actor.cpp 'rocksdb/db.h'     actors/bad_actor.cpp 'cuda.h'
    cli/bad.cpp 'caf/all.hpp'               cli/bad.cpp 'toml++/toml.h'        tests/gpu/bad.cpp 'rocksdb/db.h'
    actors/policy/bad.cpp 'spdlog/spdlog.h' cli/bad.cpp 'spdlog/logger.h'      storage/bad.cpp 'spdlog/spdlog.h'
  )
  local i found
  for ((i = 0; i < ${#planted[@]}; i += 2)); do
    printf '// a line before\n  #  include <%s>  // planted\n' "${planted[i + 1]}" >"${planted[i]}"
    found=$(check || true)
    if [[ $found != "${planted[i]}:2: "*"${planted[i + 1]}"* ]]; then
      echo "self-test: ${planted[i]} includes ${planted[i + 1]}, and the check said: ${found:-nothing}" >&2
      exit 1
    fi
    rm "${planted[i]}"
  done
  echo 'caf::actor hidden;' >actors/bad_actor.cpp
  if [[ $(check || true) != 'actors/bad_actor.cpp:1: this layer may not name caf::'* ]]; then
    echo "self-test: a caf:: in an actor was not found" >&2
    exit 1
  fi
  echo "self-test: all $((${#planted[@]} / 2 + 1)) planted faults were found"
}

if [[ ${1:-} == --self-test ]]; then
  self_test
else
  cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
  check
  echo "layers: $(list_includes | wc -l) includes, all as the layers allow"
fi
