#!/usr/bin/env bash
# Runs a cluster on this machine: a controller and N-1 further `seer node` processes, on free ports of 127.0.0.1.
#   deploy/local_cluster.sh [--logs DIR] [--seer FILE] N [NODE OPTION...] [-- COMMAND [ARGUMENT...]]
# Prints what runs where once all are in the cluster, runs until Ctrl-C or SIGTERM, and stops all. Given a COMMAND, it runs
# that with SEER_CLUSTER=HOST:PORT in the environment, stops the cluster after it, and exits with its code.
# NODE OPTIONs go to every process (`seer node --help` lists them). Without --config the model is the shipped one, and the
# cores are shared out evenly, unless an option says otherwise. Each process has its own folder in --cold-dir.
#   --logs DIR    what each process prints goes to DIR/node-NAME.log; default: a temporary folder, removed at a clean end
#   --seer FILE   the program; default: bin/seer of the bundle that this script is in, else build/release/bin/seer
#   --via WORDS   each process is started by these words, split at spaces; {} in them and in --listen is the node's name. The
#                 COMMAND is started by those of node 0. deploy/netns_cluster.sh starts each in a network of its own so.
# Example, with OPTIONS as `seer rollout` needs them without a cluster:
#   deploy/local_cluster.sh 3 --instances 1 -- bash -c 'build/release/bin/seer rollout --cluster "$SEER_CLUSTER" OPTIONS'
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

nodes_max=64
stop_s=10  # a process that has not ended by then is killed
seer="" logs="" size="" cold_dir="" via=""
node_options=()
command=()
pids=()       # by name of the node
addresses=()  # by name of the node
command_pid=""
work=""
ended_clean=false
stopped_by=""

fail() {
  echo "local_cluster: $1" >&2
  exit "${2:-1}"
}

# value_of FLAG: what the node options say for it, as `FLAG VALUE` or `FLAG=VALUE`. Fails where they do not have it.
value_of() {
  local i
  for ((i = 0; i < ${#node_options[@]}; ++i)); do
    case ${node_options[i]} in
      "$1") echo "${node_options[i + 1]:-}" && return ;;
      "$1"=*) echo "${node_options[i]#*=}" && return ;;
    esac
  done
  return 1
}
has() { value_of "$1" >/dev/null; }

# without FLAG: takes it out of the node options.
without() {
  local i left=()
  for ((i = 0; i < ${#node_options[@]}; ++i)); do
    case ${node_options[i]} in
      "$1") i=$((i + 1)) ;;
      "$1"=*) ;;
      *) left+=("${node_options[i]}") ;;
    esac
  done
  node_options=("${left[@]}")
}

parse_arguments() {
  local asked_seer=""
  while (($# > 0)); do
    case $1 in
      --)
        shift
        (($# > 0)) || fail "no command after --: expected one, or no --" 2
        command=("$@")
        break
        ;;
      -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      --logs | --seer | --via)
        (($# > 1)) || fail "$1 has no value: expected ${1/--logs/--logs DIR}" 2
        case $1 in
          --logs) logs=$2 ;;
          --seer) asked_seer=$2 ;;
          --via) via=$2 ;;
        esac
        shift
        ;;
      --logs=*) logs=${1#*=} ;;
      --seer=*) asked_seer=${1#*=} ;;
      *) if [[ -z $size ]]; then size=$1; else node_options+=("$1"); fi ;;
    esac
    shift
  done
  [[ -n $size ]] || fail "N is missing: expected how many processes the cluster has; --help explains" 2
  [[ $size =~ ^[1-9][0-9]{0,3}$ ]] && ((size <= nodes_max)) || fail "N is \"$size\": expected a number from 1 to $nodes_max" 2
  local flag
  for flag in --name --join; do
    ! has "$flag" || fail "$flag cannot be given: this script gives each process its own" 2
  done
  ! has --log-file || fail "--log-file cannot be given: each process has a log of its own, in --logs DIR" 2

  seer=$asked_seer
  if [[ -z $seer ]]; then
    seer=$root/bin/seer
    [[ -x $seer ]] || seer=$root/build/release/bin/seer
  fi
  [[ -f $seer && -x $seer ]] ||
    fail "there is no program $seer: build it with deploy/build.sh release seer, or name it with --seer FILE"
}

# Without them `seer node` wants a model, and each process takes all cores.
add_defaults() {
  if has --config; then return; fi
  has --model || node_options+=(--model "$root/deploy/models/scratchpad-1m8")
  if ! has --threads-per-instance; then
    local instances
    instances=$(value_of --instances) || instances=2
    if [[ $instances =~ ^[1-9][0-9]{0,3}$ ]]; then  # what is wrong with another one, `seer node` says
      local threads=$(($(nproc) / (size * instances)))
      node_options+=(--threads-per-instance $((threads > 0 ? threads : 1)))
    fi
  fi
}

# start NAME OPTION...: in a session of its own, so that Ctrl-C comes to this script alone, which stops all in order. Should
# this script be killed, the kernel ends the process.
start() {
  local name=$1
  shift
  if [[ -n $cold_dir ]]; then set -- "$@" --cold-dir "$cold_dir/node-$name"; fi
  : >"$logs/node-$name.log"
  setpriv --pdeathsig TERM setsid ${via//\{\}/$name} "$seer" node --name "$name" "$@" "${node_options[@]}" >>"$logs/node-$name.log" 2>&1 </dev/null &
  pids[name]=$!
}

# wait_for NAME: until it is in the cluster. Where it ends instead, its words are shown.
wait_for() {
  local name=$1 said="" code=0
  local in_cluster="s/^node $name \(is the controller\|has joined\), with .* at \([^ ]*:[0-9]*\)\$/\2/p"
  while [[ -z $said ]]; do
    local is_running=true
    kill -0 "${pids[name]}" 2>/dev/null || is_running=false
    said=$(sed -n "$in_cluster" "$logs/node-$name.log")
    if [[ -z $said ]] && ! $is_running; then
      wait "${pids[name]}" || code=$?
      tail -n 20 "$logs/node-$name.log" >&2
      fail "node $name ended at the start, with exit code $code" $((code > 0 ? code : 1))
    fi
    if [[ -z $said ]]; then sleep 0.05; fi
  done
  addresses[name]=$said
}

# stop PID...: all at once; those that do not end are killed.
stop() {
  local pid left ticks
  kill -TERM "$@" 2>/dev/null || true
  for ((ticks = stop_s * 20; ticks >= 0; --ticks)); do
    left=()
    for pid in "$@"; do
      if kill -0 "$pid" 2>/dev/null; then left+=("$pid"); fi
    done
    if ((${#left[@]} == 0)); then break; fi
    if ((ticks == 0)); then
      echo "local_cluster: killing what did not end within $stop_s s: process ${left[*]}" >&2
      kill -KILL "${left[@]}" 2>/dev/null || true
    fi
    sleep 0.05
  done
  for pid in "$@"; do wait "$pid" 2>/dev/null || true; done
}

# The controller goes last: without it the others would end by themselves, with an error.
stop_all() {
  if [[ $BASHPID != "$$" ]]; then return; fi  # a process that was about to become a node
  trap '' INT TERM HUP
  if [[ -n $command_pid ]]; then stop "$command_pid"; fi
  if ((${#pids[@]} > 1)); then stop "${pids[@]:1}"; fi
  if ((${#pids[@]} > 0)); then stop "${pids[0]}"; fi
  if [[ -z $work ]]; then return; fi
  if $ended_clean; then
    rm -rf "$work"
  else
    echo "local_cluster: the logs are in $work" >&2
  fi
}

# end_of NAME: the sentence about a node that is gone.
end_of() {
  local code=0
  wait "${pids[$1]}" || code=$?
  echo "local_cluster: node $1 has ended, with exit code $code: $(tail -n 1 "$logs/node-$1.log")" >&2
}

print_cluster() {
  local name
  printf '%-6s %-8s %-21s %s\n' name pid address log
  for name in "${!pids[@]}"; do
    printf '%-6s %-8s %-21s %s\n' "$name" "${pids[name]}" "${addresses[name]}" "$logs/node-$name.log"
  done
  echo "node 0 is the controller: seer rollout --cluster ${addresses[0]} ..."
}

# A signal ends the wait for the command, which gets the signal too. Ctrl-C in a terminal has reached it already.
run_command() {
  local code=0
  env --default-signal=INT SEER_CLUSTER="${addresses[0]}" ${via//\{\}/0} "${command[@]}" <&0 &
  command_pid=$!
  while :; do
    code=0
    wait "$command_pid" || code=$?
    kill -0 "$command_pid" 2>/dev/null || break
    if [[ $stopped_by != INT || ! -t 0 ]]; then kill -TERM "$command_pid" 2>/dev/null || true; fi
  done
  command_pid=""
  local name
  for name in "${!pids[@]}"; do
    kill -0 "${pids[name]}" 2>/dev/null || end_of "$name"
  done
  if ((code == 0)); then ended_clean=true; fi
  exit "$code"
}

# Until a signal comes, or the controller ends. The cluster goes on without any of the others.
run_until_stopped() {
  local name known=" "
  while [[ -z $stopped_by ]]; do
    for name in "${!pids[@]}"; do
      if [[ $known == *" $name "* ]] || kill -0 "${pids[name]}" 2>/dev/null; then continue; fi
      end_of "$name"
      known+="$name "
      if ((name == 0)); then fail "the cluster is over, as its controller has ended"; fi
    done
    sleep 0.2 || true  # Ctrl-C in a terminal ends it
  done
  ended_clean=true
}

main() {
  parse_arguments "$@"
  add_defaults
  if [[ -z $logs ]]; then
    work=$(mktemp -d "${TMPDIR:-/tmp}/seer-cluster.XXXXXX")
    logs=$work
  else
    mkdir -p "$logs" || fail "--logs $logs: the folder cannot be made"
  fi
  cold_dir=$(value_of --cold-dir) || cold_dir=""
  if [[ -n $cold_dir ]]; then
    without --cold-dir
    mkdir -p "$cold_dir" || fail "--cold-dir $cold_dir: the folder cannot be made"
  fi
  local listen
  listen=$(value_of --listen) || listen=127.0.0.1:0
  without --listen

  trap stop_all EXIT
  trap 'stopped_by=INT; exit 130' INT
  trap 'stopped_by=TERM; exit 143' TERM
  trap 'stopped_by=HUP; exit 129' HUP
  start 0 --listen "${listen//\{\}/0}"
  wait_for 0
  local name
  for ((name = 1; name < size; ++name)); do
    local host=${listen%:*}
    start "$name" --join "${addresses[0]}" --listen "${host//\{\}/$name}:0"
  done
  for ((name = 1; name < size; ++name)); do wait_for "$name"; done

  trap 'stopped_by=INT' INT
  trap 'stopped_by=TERM' TERM
  trap 'stopped_by=HUP' HUP
  if ((${#command[@]} > 0)); then
    print_cluster >&2
    run_command
  fi
  print_cluster
  run_until_stopped
}

main "$@"
