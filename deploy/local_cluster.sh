#!/usr/bin/env bash
# Runs a cluster on this machine: a controller and N-1 further `seer node` processes, on free ports of 127.0.0.1.
#   deploy/local_cluster.sh [--logs DIR] [--seer FILE] [--kv-nodes M] N [NODE OPTION...] [-- COMMAND [ARGUMENT...]]
# Prints a table of the processes once all are in the cluster, runs until Ctrl-C or SIGTERM, and stops all. With a COMMAND, it
# runs that with SEER_CLUSTER=HOST:PORT in the environment, then stops the cluster and exits with the COMMAND's code.
# NODE OPTIONs go to every process (`seer node --help` lists them). Without --config the model is the shipped one, and each
# process gets an even share of the cores, unless an option says otherwise. Each process has its own folder in --cold-dir.
#   --logs DIR    folder for the output of each process, DIR/node-NAME.log; default: a temporary one, removed at a clean end
#   --seer FILE   the program; default: bin/seer of the bundle that this script is in, else build/release/bin/seer
#   --kv-nodes M  the last M processes have the role kv alone: they keep KV for the others; default: 0
#   --via WORDS   words that start each process, split at spaces; {} in them and in --listen is the node's name. Those of
#                 node 0 start the COMMAND. deploy/netns_cluster.sh uses this to start each in its own network.
# Example, with OPTIONS as `seer rollout` needs them without a cluster:
#   deploy/local_cluster.sh 3 --instances 1 -- bash -c 'build/release/bin/seer rollout --cluster "$SEER_CLUSTER" OPTIONS'
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/cluster_nodes.sh
source "$root/deploy/cluster_nodes.sh"
# shellcheck source=deploy/usable_cpus.sh
source "$root/deploy/usable_cpus.sh"

own_options=([--logs]=DIR [--seer]=FILE [--kv-nodes]=M [--via]=WORDS)

check_arguments() {
  size=$first
  [[ -n $size ]] || fail "N is missing: expected how many processes the cluster has; --help explains" 2
  [[ $size =~ ^[1-9][0-9]{0,3}$ ]] && ((size <= nodes_max)) || fail "N is \"$size\": expected a number from 1 to $nodes_max" 2
  check_kv_nodes
  via=${given[--via]:-}
  seer=${given[--seer]:-}
  if [[ -z $seer ]]; then
    seer=$root/bin/seer
    [[ -x $seer ]] || seer=$root/build/release/bin/seer
  fi
  [[ -f $seer && -x $seer ]] ||
    fail "there is no program $seer: build it with deploy/build.sh release seer, or name it with --seer FILE"
}

# Default options: without them `seer node` needs a model, and each process takes all cores.
add_defaults() {
  if has --config; then return; fi
  has --model || node_options+=(--model "$root/deploy/models/scratchpad-1m8")
  if ! has --threads-per-instance; then
    local instances
    instances=$(value_of --instances) || instances=2
    if [[ $instances =~ ^[1-9][0-9]{0,3}$ ]]; then  # `seer node` reports any other value
      local threads=$(($(usable_cpus) / ((size - kv_nodes) * instances)))
      node_options+=(--threads-per-instance $((threads > 0 ? threads : 1)))
    fi
  fi
}

# Starts each with the words of --via, on a port that the system chooses, unless --listen names one for the controller.
set_launcher() {
  # shellcheck disable=SC2206
  launcher=(${via//\{\}/$1} "$seer" node)
}
listen_of() {
  local named=${listen//\{\}/$1}
  if (($1 > 0)); then named=${named%:*}:0; fi
  echo "$named"
}
where_title=pid
where_is() { echo "${pids[$1]}"; }

parse_arguments "$@"
check_arguments
add_defaults
make_logs
cold_dir=$(value_of --cold-dir) || cold_dir=""
if [[ -n $cold_dir ]]; then
  without --cold-dir
  mkdir -p "$cold_dir" || fail "--cold-dir $cold_dir: the folder cannot be made"
fi
listen=$(value_of --listen) || listen=127.0.0.1:0
without --listen
# shellcheck disable=SC2206
command_prefix=(${via//\{\}/0})
trap stop_all EXIT
run_cluster
