#!/usr/bin/env bash
# Checks that every module has a test: one named after it, or one that this table names.
#   tests/check_tests.sh [ROOT]         checks the tree at ROOT (this repository by default)
#   tests/check_tests.sh --self-test    plants modules without a test in a tree of its own and expects each to be found
set -euo pipefail

# Modules (a regular expression on the path without its ending), then the test that covers them.
covered_by=(
  '^protocols/(actors|rt_net)$'                                   tests/actors/messages_test.cpp
  '^gpu/slot_table$'                                              tests/gpu/slot_engine_test.cpp
  '^gpu/cuda/(cuda_runtime|no_cuda)_device$'                      tests/gpu/cuda/cuda_device_test.cpp
  '^gpu/cuda/(cuda_forward|device.*)$'                            tests/gpu/cuda/cuda_engine_test.cpp
  '^gpu/cuda/(cuda_kernels|kernel_args|kernels/.*)$'              tests/gpu/cuda/kernels_test.cpp
  '^gpu/engine$'                                                  tests/gpu/slot_engine_test.cpp
  '^gpu/text/(jinja_.*|python_text)$'                             tests/gpu/text/chat_template_test.cpp
  '^gpu/cpu/(kernels.*|lanes_.*|.*_body|row_softmax_.*|exp_lanes|float_bits|denormals|weight_prefetch|aligned_array)$' tests/gpu/cpu/cpu_kernels_test.cpp
  '^gpu/cpu/w8a8.*$'                                              tests/gpu/cpu/linear_test.cpp
  '^storage/(kv_transport|ucx_.*)$'                               tests/storage/ucx_transport_test.cpp
  '^storage/kv_tiers_room$'                                       tests/storage/kv_tiers_test.cpp
  '^storage/(cold_store|rocksdb_status)$'                          tests/storage/rocksdb_store_test.cpp
  '^storage/(response_history|rollout_journal|rocksdb_journal_db)$' tests/storage/rocksdb_rollout_journal_test.cpp
  '^storage/rocksdb_silent_logger$'                               tests/integration/bad_input_test.cpp
  '^storage/served_journal$'                                      tests/storage/rocksdb_served_journal_test.cpp
  '^cli/(option_(tables|checks)|help_texts)$'                       tests/cli/config_test.cpp
  '^cli/cluster_(net|dial|machines|commands)$'                    tests/integration/cluster_test.cpp
  '^cli/steady_time$'                                             tests/integration/cluster_test.cpp
  '^cli/(node_command|kv_size)$'                                  tests/integration/cluster_test.cpp
  '^cli/(seer|rollout_command|rollout_work)$'                     tests/integration/bad_input_test.cpp
  '^cli/rollout_(machines|run)$'                                  tests/integration/exactness_test.cpp
  '^cli/serve/(front|serve_command|sglang_dialect)$'              tests/integration/serve.py
  '^cli/serve/http_(session|head)$'                               tests/cli/serve/http_server_test.cpp
  '^cli/serve/openai_dialect$'                                    tests/integration/openai.py
  '^cli/serve/native_dialect$'                                    tests/integration/native.py
  '^cli/serve/rollouts_journal$'                                  tests/cli/serve/served_rollouts_test.cpp
  '^cli/serve/weight_uploads$'                                    tests/integration/weights.py
  '^cli/serve/(weights_receiver|group_calls)$'                    tests/integration/weights_group.py
  '^actors/weight_source_actor$'                                  tests/actors/node_actor_test.cpp
  '^actors/instance/chunk_sinks$'                                 tests/actors/instance/instance_actor_test.cpp
  '^actors/(handover|kv_owners)$'                                 tests/actors/kv_node_actor_test.cpp
  '^actors/kv_fetches$'                                           tests/actors/kv_pulls_test.cpp
  '^cli/(server_fleet|serve/routed_.*)$'                          tests/integration/router.py
  '^cli/serve/router_dialect$'                                    tests/integration/router_weights.py
  '^actors/(server_node_actor|instance/served_instance_actor)$'   tests/served/served_servers_test.cpp
  '^served/.*$'                                                   tests/served/server_dialect_test.cpp
  '^actors/policy/schedule/starved_queue$'                        tests/policy/schedule/divided_scheduler_test.cpp
  '^protocols/unique_fd$'                                         tests/cli/cluster_gate_test.cpp
  '^gpu/cuda/(.*communicator|cuda_rank|peers)$'                   tests/gpu/cuda/tensor_parallel_test.cpp
  '^gpu/model/engine_weights$'                                    tests/gpu/cpu/new_weights_test.cpp
)

modules() {
  find actors cli gpu protocols served storage -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' |
    sed -E 's/\.[^.]*$//' | LC_ALL=C sort -u
}

check() {
  local module i test broken=0 own
  own=$(find tests -name '*_test.cpp' -printf '%f\n')
  while read -r module; do
    if grep -qxF "${module##*/}_test.cpp" <<<"$own"; then continue; fi
    test=
    for ((i = 0; i < ${#covered_by[@]}; i += 2)); do
      if [[ $module =~ ${covered_by[i]} ]]; then test=${covered_by[i + 1]}; break; fi
    done
    if [[ -z $test ]]; then
      echo "$module: no ${module##*/}_test.cpp in tests/, and no line of tests/check_tests.sh names a test of it"
      broken=1
    elif [[ ! -f $test ]]; then
      echo "$module: tests/check_tests.sh names $test, which is not there"
      broken=1
    fi
  done < <(modules)
  return $broken
}

self_test() {
  local tree found
  tree=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder's name is known now, and is what must go
  trap "rm -rf '$tree'" EXIT
  cd "$tree"
  mkdir -p actors cli gpu protocols served storage tests/actors
  touch actors/one_actor.h actors/one_actor.cpp tests/actors/one_actor_test.cpp
  if ! check; then
    echo "self-test: a module with a test was called wrong" >&2
    exit 1
  fi
  touch cli/two.cpp gpu/engine.h
  found=$(check || true)
  if [[ $found != "cli/two: no two_test.cpp"*$'\n'"gpu/engine: "*"slot_engine_test.cpp, which is not there" ]]; then
    echo "self-test: two modules without a test, and the check said: ${found:-nothing}" >&2
    exit 1
  fi
  echo "self-test: both planted faults were found"
}

if [[ ${1:-} == --self-test ]]; then
  self_test
else
  cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"
  check
  echo "tests: $(modules | wc -l) modules, each with a test"
fi
