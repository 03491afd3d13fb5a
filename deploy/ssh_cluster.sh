#!/usr/bin/env bash
# Runs a cluster on other hosts, over ssh: the controller on the first host of a file, a further node on each other one.
#   deploy/ssh_cluster.sh [--bundle FILE | --seer FILE] [--kv-nodes M] [--logs DIR] [--ssh WORDS] HOSTS [NODE OPTION...] [-- COMMAND [ARGUMENT...]]
#   deploy/ssh_cluster.sh [--ssh WORDS] stop HOSTS      ends all nodes on these hosts that this user started with this script
#   deploy/ssh_cluster.sh [--ssh WORDS] remove HOSTS    does the same, and removes the program there
# HOSTS is a file with a host on each line, written as for ssh. If the other hosts reach it at another address than ssh does, that
# address follows it. # starts a comment.
#   gpu1
#   me@gpu2  10.0.0.2
# Each host gets the bundle of deploy/bundle.sh, unless it has it already, and its own certificate for this run. It needs only bash
# and tar. Prints a table of the nodes once all are in the cluster, runs until Ctrl-C or SIGTERM, and stops all. With a COMMAND, it
# runs that here with SEER_CLUSTER=HOST:PORT and SEER_TLS, the flags of its certificate, in the environment, then stops the cluster
# and exits with the COMMAND's code. If this machine dies, each host ends its node within 40 s.
# NODE OPTIONs go to every node (`seer node --help` lists them). Paths in them are those of the hosts; relative ones begin in the
# bundle. Without --config the model is the shipped one, which the bundle has. Each node has its own folder in --cold-dir.
#   --bundle FILE  an archive of deploy/bundle.sh; default: the bundle that this script is in, else it packs --seer
#   --seer FILE    the program; default: build/release/bin/seer
#   --kv-nodes M   the last M hosts have the role kv alone: they keep KV for the others; default: 0
#   --logs DIR     folder here for the output of each node, DIR/node-NAME.log; default: a temporary one, removed at a clean end
#   --ssh WORDS    the ssh to use, split at spaces: "ssh -F FILE"; default: ssh. It is never asked for a password
# Example, with OPTIONS as `seer rollout` needs them without a cluster:
#   deploy/ssh_cluster.sh hosts.txt -- bash -c 'build/release/bin/seer rollout --cluster "$SEER_CLUSTER" $SEER_TLS OPTIONS'
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=deploy/cluster_nodes.sh
source "$root/deploy/cluster_nodes.sh"

own_options=([--bundle]=FILE [--seer]=FILE [--kv-nodes]=M [--logs]=DIR [--ssh]=WORDS)
stop_s=30  # a host that answers ends its node within 10 s; ssh gives up a silent one after 25 s
hosts=()   # by name of the node, as these
at_line=()
at=()      # "FILE:LINE: HOST", to begin sentences about it
listen_addresses=()
hash=""     # of the archive; names the bundle's folder on the hosts
archive=""
own=""      # temporary folder: answers of hosts, certificates
calls=()    # processes of on_hosts that run
answers=()  # of on_hosts

# Gives up a host that does not answer, and never asks the user anything.
ssh_options=(-T -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=4 -o LogLevel=ERROR
             -o ClearAllForwardings=yes)

check_arguments() {
  ask=run
  if [[ $first == stop || $first == remove ]]; then
    ask=$first
    ((${#node_options[@]} < 2 && ${#command[@]} == 0)) || fail "$ask takes only the file of hosts: ${node_options[*]:1} ${command[*]}" 2
    first=${node_options[0]:-}
  fi
  [[ -n $first ]] || fail "HOSTS is missing: expected a file with a host on each line; --help explains" 2
  local flag
  for flag in --listen --tls-cert --tls-key --tls-ca; do
    ! has "$flag" || fail "$flag cannot be given: this script gives each host its own" 2
  done
  ! has --insecure || fail "--insecure cannot be given: each host gets a certificate" 2
  # The COMMAND splits SEER_TLS, which names files there, at spaces.
  [[ $ask != run || ! ${TMPDIR:-} =~ [[:space:]] ]] || fail "TMPDIR is \"$TMPDIR\": expected a folder without spaces in its name" 2
  # shellcheck disable=SC2206
  ssh=(${given[--ssh]:-ssh})
  command -v "${ssh[0]}" >/dev/null || fail "there is no program ${ssh[0]}: apt-get install openssh-client, or name another with --ssh"
  ssh+=("${ssh_options[@]}")
}

# read_hosts FILE: sets hosts, at and listen_addresses.
read_hosts() {
  local file=$1 line number=0 words name
  [[ -e $file ]] || fail "$file: there is no such file: expected one with a host on each line" 2
  [[ -f $file && -r $file ]] || fail "$file: it cannot be read: expected a file with a host on each line" 2
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    line=${line%$'\r'}
    read -r -a words <<<"${line%%#*}"
    if ((${#words[@]} == 0)); then continue; fi
    ((${#words[@]} <= 2)) || fail "$file:$number: \"$line\" has ${#words[@]} words: expected a host, and at most its address" 2
    [[ ${words[0]} =~ ^[][A-Za-z0-9@._:/%~+-]+$ && ${words[0]} != -* ]] ||
      fail "$file:$number: \"${words[0]}\" is no host: expected HOST, USER@HOST or ssh://USER@HOST:PORT" 2
    [[ ${words[1]:-a} =~ ^[A-Za-z0-9][A-Za-z0-9.-]*$ ]] ||
      fail "$file:$number: \"${words[1]}\" is no address: expected an IPv4 address or a name, without port" 2
    for name in "${!hosts[@]}"; do
      [[ ${hosts[name]} != "${words[0]}" ]] ||
        fail "$file:$number: ${words[0]} is in line ${at_line[name]} already: expected each host once" 2
    done
    ((${#hosts[@]} < nodes_max)) || fail "$file:$number: one host too many: expected at most $nodes_max" 2
    at_line+=("$number")
    hosts+=("${words[0]}")
    listen_addresses+=("${words[1]:-}")
  done <"$file"
  ((${#hosts[@]} > 0)) || fail "$file: it has no host: expected one on each line" 2
  for name in "${!hosts[@]}"; do at[name]="$file:${at_line[name]}: ${hosts[name]}"; done
}

# call_on NAME CALL [FILE]: calls a function of ssh_host.sh on that host, with FILE as its stdin.
call_on() {
  exec "${ssh[@]}" "${hosts[$1]}" bash -s < <(cat "$root/deploy/ssh_host.sh" && echo "$2" && if [[ -n ${3:-} ]]; then cat "$3"; fi)
}

# on_hosts CALL FILE NAME...: does call_on for all of them at once; sets answers. Fails with a sentence for each host that failed.
on_hosts() {
  local call=$1 file=$2 name code said failed=0
  shift 2
  for name in "$@"; do
    call_on "$name" "$call" "$file" >"$own/$name.out" 2>"$own/$name.err" &
    calls[name]=$!
  done
  for name in "$@"; do
    code=0
    wait "${calls[name]}" || code=$?
    unset "calls[name]"
    answers[name]=$(sed -n 's/^seer-host: //p' "$own/$name.out" | tail -n 1)
    if ((code == 0)) && [[ -n ${answers[name]} ]]; then continue; fi
    failed=$((failed + 1))
    said=$(tr -d '\r' <"$own/$name.err" | grep . | tail -n 1) || said="bash -s ended there with exit code $code"
    said=${said#ssh: }
    case ${answers[name]}:$said in
      refused*) said=${answers[name]#refused } ;;
      *'Permission denied ('*) said="${said%.}: expected a key that it accepts (ssh-copy-id), and that nobody has to unlock (ssh-add)" ;;
      *'Host key verification failed'*) said="${said%.}: expected its host key to be known: ssh ${hosts[name]}, by hand, shows it and asks" ;;
      *'Could not resolve'*) said+=": expected a host that ssh finds" ;;
      *) if ((code == 255)); then said+=": expected a host that answers ssh"; fi ;;
    esac
    echo "$self: ${at[name]}: $said" >&2
  done
  ((failed == 0)) || fail "$failed of $# hosts cannot take part"
}

# Sets archive and hash.
pack_bundle() {
  archive=${given[--bundle]:-}
  if [[ -n $archive ]]; then
    [[ -f $archive && -r $archive ]] || fail "--bundle $archive: it cannot be read: expected what deploy/bundle.sh packs"
    local program
    program=$(tar -tzf "$archive" 2>/dev/null | grep -c '^[^/]*/bin/seer$') || true
    [[ $program == 1 ]] || fail "--bundle $archive: it has no bin/seer: expected what deploy/bundle.sh packs"
  elif [[ -z ${given[--seer]:-} && -x $root/bin/seer ]]; then
    archive=$own/seer.tar.gz
    tar -C "$root" --transform 's,^,seer/,' --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go=rX -cf - bin lib deploy |
      gzip -n >"$archive" || fail "the bundle in $root cannot be packed"
  else
    archive=$own/seer.tar.gz
    "$root/deploy/bundle.sh" ${given[--seer]:+--seer "${given[--seer]}"} "$archive" >"$own/log" 2>&1 ||
      fail "$(sed -n 's/^bundle: //;$p' "$own/log")"
  fi
  hash=$(sha256sum "$archive" | cut -c1-16)
}

# Checks all hosts, and copies the bundle to those that do not have it.
prepare_hosts() {
  local name other address has_bundle lacking=()
  on_hosts "look $hash" "" "${!hosts[@]}"
  for name in "${!hosts[@]}"; do
    read -r _ address has_bundle <<<"${answers[name]}"
    if [[ -z ${listen_addresses[name]} ]]; then
      [[ $address =~ ^[0-9.]+$ ]] || fail "${at[name]}: ssh reaches it at $address: expected an IPv4 address or a name of it, after a space"
      listen_addresses[name]=$address
    fi
    for ((other = 0; other < name; ++other)); do
      [[ ${listen_addresses[name]} != "${listen_addresses[other]}" ]] ||
        fail "${at[name]}: its address ${listen_addresses[name]} is that of line ${at_line[other]}: expected each host once"
    done
    if [[ $has_bundle == no ]]; then lacking+=("$name"); fi
  done
  echo "$self: ${#lacking[@]} of ${#hosts[@]} hosts lack the bundle ($(du -h "$archive" | cut -f1))" >&2
  if ((${#lacking[@]} > 0)); then on_hosts "unpack $hash" "$archive" "${lacking[@]}"; fi
}

make_certificates() {
  "$root/deploy/make_certs.sh" "$own/certs" 365 "${!hosts[@]}" here >"$own/log" 2>&1 || fail "$(tail -n 1 "$own/log")"
  rm "$own/certs/ca.key"  # so that no other certificate can be made
  export SEER_TLS="--tls-cert $own/certs/here.pem --tls-key $own/certs/here.key --tls-ca $own/certs/ca.pem"
}

# A node's process on this machine: an ssh that gets a line every few seconds. The host runs the node while lines come (run_node
# of ssh_host.sh). SIGTERM closes its stdin: the host ends the node, then ssh ends. The end of this process has the same effect.
#   session HOST SCRIPT CALL_FILE SSH... -- OPTION...
beat() {
  local code=142
  while ((code > 128)); do  # nothing came, so the process that holds the other end is alive
    echo
    code=0
    read -r -t 5 _ || code=$?
  done
}
session() {
  local host=$1 script=$2 call=$3 words=() code pid
  shift 3
  while [[ $1 != -- ]]; do
    words+=("$1")
    shift
  done
  shift
  exec 4>&1
  coproc HELD {
    exec 3<&0
    exec setpriv --pdeathsig TERM "${words[@]}" "$host" bash -s \
      < <(cat "$script" "$call" && printf ' %q' "$@" && echo && beat <&3) >&4 3<&- 4>&-
  }
  pid=$HELD_PID
  # shellcheck disable=SC2034
  held=${HELD[1]}
  trap 'exec {held}>&-' TERM
  while :; do
    code=0
    wait "$pid" || code=$?
    kill -0 "$pid" 2>/dev/null || exit "$code"
  done
}

set_launcher() {
  local certs=$own/certs
  # In a file, because all users of this machine can see the arguments of processes.
  printf 'run_node %q %q %q %q' "$hash" "$(<"$certs/$1.pem")" "$(<"$certs/$1.key")" "$(<"$certs/ca.pem")" >"$certs/$1.call"
  launcher=(bash -c "$(declare -f beat session); session \"\$@\"" session "${hosts[$1]}" "$root/deploy/ssh_host.sh" "$certs/$1.call" "${ssh[@]}" --)
}
listen_of() { echo "${listen_addresses[$1]}:0"; }
where_title=host
where_is() { echo "${hosts[$1]}"; }

finish() {
  if [[ $BASHPID != "$$" ]]; then return 0; fi
  if ((${#calls[@]} > 0)); then kill "${calls[@]}" 2>/dev/null || true; fi
  stop_all
  rm -rf "$own"
}

main() {
  parse_arguments "$@"
  check_arguments
  read_hosts "$first"
  size=${#hosts[@]}
  check_kv_nodes
  own=$(mktemp -d "${TMPDIR:-/tmp}/seer-ssh.XXXXXX")
  trap finish EXIT
  end_at_signals
  case $ask in
    stop) on_hosts stop_nodes "" "${!hosts[@]}" ;;
    remove) on_hosts remove_all "" "${!hosts[@]}" ;;
  esac
  if [[ $ask != run ]]; then
    local name
    for name in "${!hosts[@]}"; do echo "${hosts[name]}: ${answers[name]} nodes"; done
    return
  fi
  pack_bundle
  prepare_hosts
  make_certificates
  make_logs
  has --config || has --model || node_options+=(--model deploy/models/scratchpad-1m8)
  cold_dir=$(value_of --cold-dir) || cold_dir=""
  without --cold-dir
  run_cluster
}

main "$@"
