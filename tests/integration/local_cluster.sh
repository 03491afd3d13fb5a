#!/usr/bin/env bash
# deploy/local_cluster.sh: a rollout on three processes gives the bits of one within a process, and however the script ends, it
# leaves nothing behind. Usage: local_cluster.sh [<build folder>]    Exit: 0 passed, 1 failed.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
seer=${1:-$root/build/release}/bin/seer
prompts=$root/deploy/examples/scratchpad/prompts.jsonl
work=$(mktemp -d)
script_pid=""
finish() {
  local file
  if [[ -n $script_pid ]]; then kill "$script_pid" && wait "$script_pid"; fi 2>/dev/null
  for file in $(processes); do kill "$(basename "$(dirname "$file")")"; done
  rm -rf "$work"
}
trap finish EXIT
fail() { echo "local_cluster: FAILED: $*"; exit 1; }

mkdir "$work/tmp"
touch "$work/begin"
export TMPDIR=$work/tmp
mark=$(($$ + 7000000))  # an argument of all processes of this test, and of no others
nodes=(--instances 1 --kv-bytes 2MiB --dram-bytes 16MiB --weight-version "$mark")
cluster() { "$root/deploy/local_cluster.sh" --seer "$seer" "$@"; }

# Files of processes that have the mark as an argument; grep itself has it in another form.
processes() { grep -lzx -- "[${mark:0:1}]${mark:1}" /proc/[0-9]*/cmdline 2>/dev/null; }

# Segments say which process made them.
segments_of() { ipcs -m -p | awk '{print $3}' | grep -qx "$1"; }

nothing_left() {
  local pid named i
  for pid in $(awk '$1 ~ /^[0-9]+$/ {print $2}' "$work/out" "$work/err"); do
    # A process that is being killed has no arguments any more while the kernel still takes its memory down.
    for ((i = 0; i < 40; ++i)); do
      segments_of "$pid" || break
      sleep 0.05
    done
    ! segments_of "$pid" || fail "process $pid has left shared memory: $(ipcs -m -p)"
  done
  ! processes || fail "these processes are left"
  named=$(find /dev/shm -name 'ucx_*' -newer "$work/begin")  # they have a name only for a moment
  if [[ -n $named ]]; then
    sleep 1
    ! ls $named 2>/dev/null || fail "shared memory is left"
  fi
  [[ -z $(ls -A "$TMPDIR") ]] || fail "left in the temporary folder: $(find "$TMPDIR")"
}

# ended WHAT CODE: the script is over with that code, and nothing is left of it.
ended() { [[ $code == $2 ]] || fail "$1: exit code $code, expected $2: $(cat "$work/out" "$work/err")"; nothing_left; }
said() { grep -qE -- "$1" "$work/err" || fail "no word of \"$1\": $(cat "$work/err")"; }

# A rollout.
source "$root/tests/integration/exact_part.sh"
rollout=("$seer" rollout --model "$root/deploy/models/scratchpad-1m8" --prompts "$prompts" --limit 2 --group-size 2 --max-tokens 64
         --weight-version "$mark" --log-level error)
"${rollout[@]}" --instances 1 --out "$work/alone.jsonl" >"$work/log" 2>&1 || fail "seer rollout: $(cat "$work/log")"
[[ $(wc -l <"$work/alone.jsonl") == 4 ]] || fail "seer rollout wrote $(wc -l <"$work/alone.jsonl") responses, not 4"
cluster 3 "${nodes[@]}" -- bash -c 'echo here; "$@" --cluster "$SEER_CLUSTER" >&2 && cat' bash "${rollout[@]}" \
  --report "$work/report.json" --out "$work/cluster.jsonl" >"$work/out" 2>"$work/err" <<<"and its stdin"
code=$?
ended "a rollout" 0
[[ $(awk '$1 ~ /^[0-2]$/ && $2 ~ /^[0-9]+$/ && $3 ~ /^127.0.0.1:[0-9]+$/' "$work/err" | wc -l) == 3 ]] || fail "no table: $(cat "$work/err")"
[[ $(cat "$work/out") == $'here\nand its stdin' ]] || fail "the command's stdin and stdout: $(cat "$work/out")"
[[ $(grep -c '"busy_s"' "$work/report.json") == 3 ]] || fail "not on three instances: $(cat "$work/report.json")"
diff <(exact_part "$work/alone.jsonl") <(exact_part "$work/cluster.jsonl") || fail "responses within a process (<) and on the cluster (>)"

cluster --logs "$work/logs" 2 "${nodes[@]}" -- bash -c 'exit 7' >"$work/out" 2>"$work/err"
code=$?
ended "a command that fails" 7
[[ -s $work/logs/node-0.log && -s $work/logs/node-1.log ]] || fail "no logs: $(ls -l "$work/logs")"

# run SIZE OPTION...: in the background, until it has said what runs where.
run() {
  : >"$work/out"
  "$root/deploy/local_cluster.sh" --seer "$seer" "$@" "${nodes[@]}" >"$work/out" 2>"$work/err" &
  script_pid=$!
  until grep -q 'is the controller' "$work/out"; do
    kill -0 "$script_pid" 2>/dev/null || fail "the cluster did not start: $(cat "$work/err")"
    sleep 0.05
  done
}
pid_of() { awk -v name="$1" '$1 == name {print $2}' "$work/out"; }
wait_for_script() {
  local i
  for ((i = 0; i < 1200; ++i)); do
    kill -0 "$script_pid" 2>/dev/null || break
    sleep 0.05
  done
  ! kill -0 "$script_pid" 2>/dev/null || fail "the script does not end: $(cat "$work/out" "$work/err")"
  code=0
  wait "$script_pid" 2>/dev/null || code=$?
  script_pid=""
}

run 3
kill -KILL "$(pid_of 1)"
until grep -q 'node 1 has ended, with exit code 137' "$work/err"; do
  kill -0 "$script_pid" 2>/dev/null || fail "the script is over: $(cat "$work/err")"
  sleep 0.05
done
kill "$script_pid"
wait_for_script
ended "SIGTERM" 0

"$root/deploy/local_cluster.sh" --seer "$seer" --logs "$work/logs" 2 "${nodes[@]}" \
  -- bash -c 'echo begun; sleep "$1"; echo ended' bash "$mark" >"$work/out" 2>"$work/err" &
script_pid=$!
until grep -q begun "$work/out"; do
  kill -0 "$script_pid" 2>/dev/null || fail "the cluster did not start: $(cat "$work/err")"
  sleep 0.05
done
kill "$script_pid"
wait_for_script
ended "SIGTERM while a command runs others" 143
[[ $(cat "$work/out") == begun ]] || fail "the command went on: $(cat "$work/out")"

run 2 --logs "$work/logs"
kill -KILL "$(pid_of 0)"
wait_for_script
ended "a dead controller" 1
said 'node 0 has ended, with exit code 137'

run 2 --logs "$work/logs"
kill -KILL "$script_pid"
wait_for_script
for ((i = 0; i < 600; ++i)); do
  processes >"$work/left" || break
  sleep 0.05
done
ended "SIGKILL" 137

# refused CODE SENTENCE ARGUMENT...
refused() {
  local expected=$1 sentence=$2
  shift 2
  cluster --logs "$work/logs" "$@" >"$work/out" 2>"$work/err"
  code=$?
  ended "$*" "$expected"
  said "$sentence"
}
refused 2 '^seer: --block-tokens 17: expected a multiple of 16$' 3 --block-tokens 17 "${nodes[@]}"
said '^local_cluster: node 0 ended at the start, with exit code 2$'
mkdir "$work/cold"
touch "$work/cold/node-2"
refused '[12]' '^local_cluster: node [02] ended at the start' 3 --cold-dir "$work/cold" "${nodes[@]}"
[[ -d $work/cold/node-0 && -d $work/cold/node-1 ]] || said 'needs RocksDB'
refused 2 'N is missing'
refused 2 'N is "0": expected a number from 1 to 64' 0
refused 2 'N is "--instances"' --instances 1
refused 2 '--join cannot be given' 2 --join 127.0.0.1:7000
refused 2 '--name cannot be given' 2 --name=3
refused 2 '--log-file cannot be given' 2 --log-file x
refused 2 'no command after --' 2 --
echo "local_cluster: passed"
