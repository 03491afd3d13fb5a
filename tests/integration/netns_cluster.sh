#!/usr/bin/env bash
# deploy/netns_cluster.sh: a rollout on four machines with separate networks gives the bits of one within a process, moves its KV
# over TCP, and goes on through short and long cuts of a machine's link, on links with delay and loss (with Python), and through a cut of
# the route between a rollout and a machine. Nothing is left of the networks.
# Usage: netns_cluster.sh [<build folder>]    Exit: 0 passed, 1 failed, 77 skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
seer=${1:-$root/build/release}/bin/seer
if ((EUID != 0)); then echo "netns_cluster: skipped: needs root"; exit 77; fi
command -v ip >/dev/null || { echo "netns_cluster: skipped: ip is not installed (apt-get install iproute2)"; exit 77; }
if ! unshare --net ip link add bridge type bridge 2>/dev/null; then echo "netns_cluster: skipped: no network namespaces here"; exit 77; fi
work=$(mktemp -d)
cluster_pid=""
finish() {
  if [[ -n $cluster_pid ]]; then kill "$cluster_pid" && wait "$cluster_pid"; fi 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT
fail() { echo "netns_cluster: FAILED: $*"; exit 1; }

# A rollout.
source "$root/tests/integration/exact_part.sh"
nodes=(--instances 2 --threads-per-instance 1 --kv-bytes 4MiB --dram-bytes 32MiB)
prompts=$root/deploy/examples/scratchpad/prompts.jsonl
rollout=("$seer" rollout --model "$root/deploy/models/scratchpad-1m8" --prompts "$prompts"
         --limit 30 --group-size 8 --max-tokens 1200 --policy seer --chunk-tokens 256)
"${rollout[@]}" --instances 8 --threads-per-instance 1 --kv-bytes 4MiB --out "$work/alone.jsonl" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
[[ $(wc -l <"$work/alone.jsonl") == 240 ]] || fail "seer rollout wrote $(wc -l <"$work/alone.jsonl") responses, not 240"

# cluster SCRIPT: on four machines; the script finds the rollout in "$@".
cluster() {
  local script=$1
  SEER=$seer WORK=$work "$root/deploy/netns_cluster.sh" 4 --seer "$seer" "${nodes[@]}" -- bash -c "$script" bash "${rollout[@]}" --insecure \
    --out "$work/cluster.jsonl" --report "$work/report.json" >"$work/out" 2>"$work/err" &
  cluster_pid=$!
  code=0
  wait "$cluster_pid" || code=$?
  local script_pid=$cluster_pid
  cluster_pid=""
  ((code == 0)) || fail "exit code $code: $(cat "$work/out" "$work/err")"
  ! ip netns list | grep -q "^seer-$script_pid-" || fail "namespaces are left: $(ip netns list)"
  diff <(exact_part "$work/alone.jsonl") <(exact_part "$work/cluster.jsonl") >/dev/null || fail "responses differ from those within a process"
}
figure() { sed -n "s/^ *\"$1\": \([0-9]*\),\{0,1\}\$/\1/p" "$work/report.json"; }

cluster '"$@" --cluster "$SEER_CLUSTER" && "$SEER" status --insecure --cluster "$SEER_CLUSTER" --json >"$WORK/status.json"'
grep -q '"network (tcp): another host"\|: network (tcp): another host' "$work/status.json" || fail "no KV over TCP: $(cat "$work/status.json")"
! grep -q 'shared memory' "$work/status.json" || fail "these machines share memory: $(cat "$work/status.json")"
(($(figure fetched_bytes) > 1000000)) || fail "only $(figure fetched_bytes) bytes of KV were fetched"
[[ $(figure fetch_failures) == 0 ]] || fail "$(figure fetch_failures) fetches failed"

# seen PATTERN TIMES: waits, for a minute at most, until the log has so many lines like this.
seen() {
  for ((tries = 0; tries < 600; ++tries)); do
    (($(grep -c "$1" "$WORK/err") < $2)) || break
    sleep 0.1
  done
}
# until_over ARGUMENT...: the rollout. Its last prompt comes once the file "over" is there, or after two minutes.
until_over() {
  {
    head -n 29 "$PROMPTS"
    for ((tries = 0; tries < 1200; ++tries)); do
      [[ ! -e $WORK/over ]] || break
      sleep 0.1
    done
    sed -n 30p "$PROMPTS"
  } | "${@/#"$PROMPTS"/-}" --cluster "$SEER_CLUSTER" --log-level info
}
export -f seen until_over
export PROMPTS=$prompts
# cut SECONDS: machine 2 can be reached by nobody for so long, once the rollout has its instances. TCP repeats what it lost after twice
# the time it waited before, so a machine is heard again up to twice as late as it can be reached.
cut='rm -f "$WORK/over"; until_over "$@" & rollout=$!; seen " instance_up .* instance=2048 " 1; sleep 1
     ip -n "$SEER_NETNS-net" link set port2 down; sleep SECONDS
     ip -n "$SEER_NETNS-net" link set port2 up; touch "$WORK/over"; wait $rollout'
cluster "${cut/SECONDS/2}"
[[ $(figure instances_lost) == 0 ]] || fail "$(figure instances_lost) instances were lost in a cut of 2 s"
cluster "${cut/SECONDS/15}"
[[ $(figure instances_lost) == 2 ]] || fail "$(figure instances_lost) instances were lost in a cut of 15 s, expected those of one machine"

# Every link loses a tenth of its frames for 12 s, and delays the others by 50 ms: slow, but no machine counts as lost.
export LOSSY_LINKS=$root/tests/integration/lossy_links.py
if command -v python3 >/dev/null; then
  cluster 'rm -f "$WORK/over"; until_over "$@" & rollout=$!; seen " instance_up .* instance=2048 " 1; sleep 1
           ip netns exec "$SEER_NETNS-net" "$LOSSY_LINKS" --seconds 12 port{0..3} >"$WORK/lossy.json"; touch "$WORK/over"; wait $rollout'
  [[ $(figure instances_lost) == 0 ]] || fail "$(figure instances_lost) instances were lost on links with loss"
  lost=$(sed 's/.*"lost": \([0-9]*\)}/\1/' "$work/lossy.json")
  ((${lost:-0} > 50)) || fail "the links lost too little: $(cat "$work/lossy.json")"
else
  echo "netns_cluster: links with delay and loss are left out: no python3 here"
fi

# from_machine_3 PATTERN TIMES ARGUMENT...: the rollout, on machine 3. Its last prompt comes once the log has so many lines like this,
# or after a minute.
from_machine_3() {
  local pattern=$1 times=$2
  shift 2
  { head -n 29 "$PROMPTS"; seen "$pattern" "$times"; sed -n 30p "$PROMPTS"; } |
    ip netns exec "$SEER_NETNS-3" "${@/#"$PROMPTS"/-}" --cluster "$SEER_CLUSTER" --log-level info
}
export -f from_machine_3

# Machine 2 cannot be reached from there for a while; the controller reaches both.
cluster 'from_machine_3 " instance_up .* instance=2048 " 2 "$@" & rollout=$!
         seen " instance_up .* instance=2048 " 1
         ip -n "$SEER_NETNS-3" route add blackhole 10.77.0.12; seen " instance_lost .* instance=204[89] " 2
         ip -n "$SEER_NETNS-3" route del blackhole 10.77.0.12; wait $rollout'
[[ $(figure instances_lost) == 2 ]] || fail "$(figure instances_lost) instances were lost, expected those that could not be reached"
(($(grep -c ' info instance_up .* instance=2048 ' "$work/err") == 2)) || fail "machine 2 did not come back: $(cat "$work/err")"

# Nobody can reach the controller's machine for a while.
cluster 'from_machine_3 " instance_up .* instance=0 " 2 "$@" & rollout=$!
         seen " instance_up .* instance=0 " 1
         ip -n "$SEER_NETNS-net" link set port0 down; seen " instance_lost .* instance=[01] " 2; seen " warn controller_lost " 1
         ip -n "$SEER_NETNS-net" link set port0 up; wait $rollout
         for ((tries = 0; tries < 100; ++tries)); do
           "$SEER" status --insecure --cluster "$SEER_CLUSTER" --json >"$WORK/status.json"
           (($(grep -o "\"state\":\"up\"" "$WORK/status.json" | wc -l) < 4)) || break
           sleep 0.1
         done'
[[ $(figure instances_lost) == 2 ]] || fail "$(figure instances_lost) instances were lost with the controller, expected those of its machine"
grep -q ' info controller_returned ' "$work/err" || fail "the controller did not come back: $(cat "$work/err")"
(($(grep -o '"state":"up"' "$work/status.json" | wc -l) == 4)) || fail "machines are missing: $(cat "$work/status.json")"

# Ctrl-C ends all of it.
env --default-signal=INT setsid "$root/deploy/netns_cluster.sh" 2 --seer "$seer" "${nodes[@]}" >"$work/out" 2>"$work/err" &
cluster_pid=$!
until grep -q 'is the controller' "$work/out"; do kill -0 "$cluster_pid" || fail "$(cat "$work/err")"; done
script_pid=$cluster_pid
kill -INT "$script_pid"
wait "$cluster_pid"
code=$?
cluster_pid=""
[[ $code == 0 ]] || fail "exit code $code after SIGINT: $(cat "$work/err")"
! ip netns list | grep -q "^seer-$script_pid-" || fail "namespaces are left: $(ip netns list)"
echo "netns_cluster: passed"
