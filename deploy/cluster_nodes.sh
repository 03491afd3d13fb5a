# shellcheck shell=bash disable=SC2034,SC2154
# Shared by the scripts that run a cluster until it ends (local_cluster.sh, ssh_cluster.sh): parses their arguments, and starts,
# watches and ends the nodes as processes of this machine. Sourced, not run. A script
#   sets own_options (below) and calls parse_arguments "$@";
#   sets size, and calls check_kv_nodes and make_logs;
#   defines set_launcher NAME: sets launcher, the words that start a node's process, to which `--name NAME OPTION...` is added;
#           listen_of NAME: prints its --listen;
#           where_is NAME, and where_title: the second column of the table, and its title;
#   sets the EXIT trap to stop_all, and calls run_cluster.
set -euo pipefail
self=$(basename "$0" .sh)

nodes_max=64
start_s=600  # a node that is not in the cluster by then has failed: its model may come from a slow disk
stop_s=10    # a process that has not ended by then is killed
declare -A own_options=()  # option of the script -> name of its value, as [--logs]=DIR. All others go to the nodes
declare -A given=()        # its values
kv_nodes=0                 # the last ones of all nodes: they have the role kv alone
first=""                   # first argument that is no option of the script
node_options=()
command=()
command_prefix=()  # words that start the command
cold_dir=""        # each node has its own folder in it
work=""       # temporary folder, removed at a clean end
pids=()       # by name of the node
addresses=()  # by name of the node
launcher=()
command_target=""  # what signals for the command go to
ended_clean=false
stopped_by=""

fail() {
  echo "$self: $1" >&2
  exit "${2:-1}"
}

# value_of FLAG: its value in the node options, which have `FLAG VALUE` or `FLAG=VALUE`. Fails if they do not have it.
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

# without FLAG: removes it from the node options.
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

# The usage of a script is the comment at its head.
print_help() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0"; }

parse_arguments() {
  while (($# > 0)); do
    if [[ $1 == -- ]]; then
      shift
      (($# > 0)) || fail "no command after --: expected one, or no --" 2
      command=("$@")
      break
    elif [[ $1 == -h || $1 == --help ]]; then
      print_help
      exit 0
    elif [[ $1 == --* && -n ${own_options[${1%%=*}]:-} ]]; then
      if [[ $1 != *=* ]]; then
        (($# > 1)) || fail "$1 has no value: expected $1 ${own_options[$1]}" 2
        given[$1]=$2
        shift
      else
        given[${1%%=*}]=${1#*=}
      fi
    elif [[ -z $first ]]; then
      first=$1
    else
      node_options+=("$1")
    fi
    shift
  done
  local flag
  for flag in --name --join; do
    ! has "$flag" || fail "$flag cannot be given: this script gives each process its own" 2
  done
  ! has --log-file || fail "--log-file cannot be given: each process has a log of its own, in --logs DIR" 2
}

# Sets kv_nodes: --kv-nodes, which leaves at least one node to run requests.
check_kv_nodes() {
  kv_nodes=${given[--kv-nodes]:-0}
  [[ $kv_nodes =~ ^(0|[1-9][0-9]{0,3})$ ]] && ((kv_nodes < size)) ||
    fail "--kv-nodes is \"$kv_nodes\": expected a number from 0 to $((size - 1)), because one of the $size nodes must have instances" 2
}

# Sets logs, the folder for the output of each process: --logs, or a temporary one.
make_logs() {
  logs=${given[--logs]:-}
  if [[ -z $logs ]]; then
    work=$(mktemp -d "${TMPDIR:-/tmp}/seer-cluster.XXXXXX")
    logs=$work
  else
    mkdir -p "$logs" || fail "--logs $logs: the folder cannot be made"
  fi
}

# start NAME OPTION...: starts a node in a new process group, so that Ctrl-C reaches only the script, which stops all in order. A new
# session would do that too, but the kernel shares the cores by session: a message to a node would then wait for the engines of others.
# If the script is killed, the kernel ends the process.
start() {
  local name=$1
  shift
  if [[ -n $cold_dir ]]; then set -- "$@" --cold-dir "$cold_dir/node-$name"; fi
  : >"$logs/node-$name.log"
  set_launcher "$name"
  set -m
  setpriv --pdeathsig TERM "${launcher[@]}" --name "$name" "$@" "${node_options[@]}" >>"$logs/node-$name.log" 2>&1 </dev/null &
  pids[name]=$!
  set +m
}

# wait_for NAME: waits until it is in the cluster. If it ends instead, shows its output.
wait_for() {
  local name=$1 said="" code=0 begin=$SECONDS
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
    ((SECONDS - begin < start_s)) || fail "node $name is not in the cluster after $start_s s: $(tail -n 1 "$logs/node-$name.log")"
    if [[ -z $said ]]; then sleep 0.05; fi
  done
  addresses[name]=$said
}

# stop PID...: stops all at once (-PID: a process group), and kills those that do not end.
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
      echo "$self: killing what did not end within $stop_s s: process ${left[*]}" >&2
      kill -KILL "${left[@]}" 2>/dev/null || true
    fi
    sleep 0.05
  done
  for pid in "$@"; do wait "$pid" 2>/dev/null || true; done
}

# Stops the controller last: without it the others would end by themselves, with an error.
stop_all() {
  if [[ $BASHPID != "$$" ]]; then return 0; fi  # a process that was about to become a node
  trap '' INT TERM HUP
  if [[ -n $command_target ]]; then stop "$command_target"; fi
  if ((${#pids[@]} > 1)); then stop "${pids[@]:1}"; fi
  if ((${#pids[@]} > 0)); then stop "${pids[0]}"; fi
  if [[ -z $work ]]; then return 0; fi  # not the status of the last command before the trap
  if $ended_clean; then
    rm -rf "$work"
  else
    echo "$self: the logs are in $work" >&2
  fi
}

# end_of NAME: the sentence about a node that is gone.
end_of() {
  local code=0
  wait "${pids[$1]}" || code=$?
  echo "$self: node $1 has ended, with exit code $code: $(tail -n 1 "$logs/node-$1.log")" >&2
}

print_cluster() {
  local name where width=8
  for name in "${!pids[@]}"; do
    where=$(where_is "$name")
    if ((${#where} > width)); then width=${#where}; fi
  done
  printf '%-6s %-*s %-21s %s\n' name "$width" "$where_title" address log
  for name in "${!pids[@]}"; do
    printf '%-6s %-*s %-21s %s\n' "$name" "$width" "$(where_is "$name")" "${addresses[name]}" "$logs/node-$name.log"
  done
  echo "node 0 is the controller: seer rollout --cluster ${addresses[0]}${SEER_TLS:+ $SEER_TLS} ..."
}

# Runs the command. A signal is passed on to it and to what it started; Ctrl-C in a terminal has reached them already.
run_command() {
  local code=0 pid
  [[ -t 0 ]] || set -m  # a process group of its own; one that reads a terminal must stay in the terminal's
  env --default-signal=INT SEER_CLUSTER="${addresses[0]}" "${command_prefix[@]}" "${command[@]}" <&0 &
  pid=$!
  set +m
  command_target=$pid
  [[ -t 0 ]] || command_target=-$pid
  while :; do
    code=0
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null || break
    if [[ $stopped_by != INT || ! -t 0 ]]; then kill -TERM "$command_target" 2>/dev/null || true; fi
  done
  if [[ -n $stopped_by ]]; then stop "$command_target"; fi
  command_target=""
  local name
  for name in "${!pids[@]}"; do
    kill -0 "${pids[name]}" 2>/dev/null || end_of "$name"
  done
  if ((code == 0)); then ended_clean=true; fi
  exit "$code"
}

# Waits for a signal or the end of the controller. The cluster goes on if another node ends.
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

# Until all nodes are in the cluster a signal ends the script at once, later in order.
end_at_signals() {
  trap 'stopped_by=INT; exit 130' INT
  trap 'stopped_by=TERM; exit 143' TERM
  trap 'stopped_by=HUP; exit 129' HUP
}
run_cluster() {
  end_at_signals
  local name
  start 0 --listen "$(listen_of 0)"
  wait_for 0
  for ((name = 1; name < size; ++name)); do
    local roles=()
    if ((name >= size - kv_nodes)); then roles=(--roles kv); fi
    start "$name" --join "${addresses[0]}" --listen "$(listen_of "$name")" "${roles[@]}"
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
