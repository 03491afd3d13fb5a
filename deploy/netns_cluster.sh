#!/usr/bin/env bash
# Runs a cluster whose machines are network namespaces of this host. Each has its own address on a bridge between them, and memory
# that the others cannot map, so that KV moves over TCP as between hosts. Needs root.
#   deploy/netns_cluster.sh [--netem SPEC] N [OPTION...] [-- COMMAND [ARGUMENT...]]
# OPTIONs and COMMAND are those of deploy/local_cluster.sh, which runs the nodes. Node I is in namespace seer-PID-I with address
# 10.77.0.1I. PID is that of this script; the COMMAND finds it in SEER_NETNS=seer-PID. COMMAND runs in the namespace of node 0. The
# namespaces are removed at the end.
#   --netem SPEC  sends the traffic of each machine through `tc qdisc netem SPEC`, if the kernel has it: --netem "delay 50ms loss 10%"
# To cut off a machine, use `ip -n seer-PID-net link set portI down`; `up` connects it again.
# Example:
#   deploy/netns_cluster.sh 4 -- bash -c 'build/release/bin/seer status --insecure --cluster "$SEER_CLUSTER"'
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/netns_network.sh
source "$root/deploy/netns_network.sh"

nodes_max=16
cluster_pid=""

fail() {
  echo "netns_cluster: $1" >&2
  exit "${2:-1}"
}

netem=""
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 0
fi
if [[ ${1:-} == --netem ]]; then
  (($# > 1)) || fail "--netem has no value: expected what follows \`tc qdisc ... netem\`" 2
  netem=$2
  shift 2
fi
[[ ${1:-} =~ ^[1-9][0-9]?$ ]] && (($1 <= nodes_max)) || fail "N is \"${1:-}\": expected a number from 1 to $nodes_max, before the other options" 2
size=$1
shift
((EUID == 0)) || fail "only root can make network namespaces" 2

clean_up() {
  trap '' INT TERM HUP
  remove_network
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP
make_network || fail "this kernel does not let us make network namespaces"
for ((name = 0; name < size; ++name)); do
  add_machine "$name" "10.77.0.1$name"
  if [[ -n $netem ]]; then
    # shellcheck disable=SC2086
    tc -n "$network-$name" qdisc add dev eth0 root netem $netem || fail "--netem \"$netem\": this kernel does not do it"
  fi
done

# Nobody else can reach these networks, so they need no certificates.
access=(--insecure)
for argument in "$@"; do
  if [[ $argument == --tls-cert* ]]; then access=(); fi
  if [[ $argument == -- ]]; then break; fi
done
export SEER_NETNS=$network
trap 'kill -INT "$cluster_pid"' INT
trap 'kill -TERM "$cluster_pid"' TERM HUP
env --default-signal=INT "$root/deploy/local_cluster.sh" --via "ip netns exec $network-{} unshare --ipc" \
  "$size" --listen "10.77.0.1{}:0" "${access[@]}" "$@" <&0 &
cluster_pid=$!
code=0
while kill -0 "$cluster_pid" 2>/dev/null; do
  code=0
  wait "$cluster_pid" || code=$?
done
exit "$code"
