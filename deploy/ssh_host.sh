# shellcheck shell=bash
# The part of deploy/ssh_cluster.sh that runs on a host. ssh passes this text to `bash -s` there, followed by a call of one of the
# functions; the rest is the function's stdin. Answers are lines that begin with "seer-host: ", because a login may print other lines.
# A user has on a host:
#   ~/.cache/seer/bundle-HASH/   the bundle of deploy/bundle.sh. Kept for the next cluster; removed after 30 days without use
#   /tmp/seer-node.XXXXXX/       for a running node: its certificate and key, and the pid of the shell that started it
set -uo pipefail
bundles=${XDG_CACHE_HOME:-$HOME/.cache}/seer
nodes_in=$(readlink -f "${TMPDIR:-/tmp}")
lease_s=30  # a node ends after this time without a line: the machine of ssh_cluster.sh died, or cannot be reached
end_s=10    # a node that has not ended by then is killed

answer() { echo "seer-host: $*"; }
refuse() {
  answer "refused $*"
  exit 1
}
runs() { "$1/bin/seer" --version >/dev/null 2>&1; }

# look HASH: answers `ready ADDRESS HAS_BUNDLE`, with the address at which ssh reached this host, or - if sshd does not say.
look() {
  local bundle=$bundles/bundle-$1 has_bundle=no address
  [[ $(uname -sm) == "Linux x86_64" ]] || refuse "it is $(uname -sm): expected Linux x86_64"
  grep -qw avx2 /proc/cpuinfo ||
    refuse "its processor,$(sed -n '/^model name/{s/.*://p;q}' /proc/cpuinfo), has no AVX2: expected one that has it," \
      "as a slow host holds up the others"
  read -r _ _ address _ <<<"${SSH_CONNECTION:-}"
  if runs "$bundle"; then
    has_bundle=yes
    touch "$bundle"
  fi
  answer "ready ${address:--} $has_bundle"
}

# unpack HASH: unpacks the archive from stdin. Others may unpack it into the same folder at the same time: hosts may share homes.
unpack() {
  local bundle=$bundles/bundle-$1 said
  mkdir -p "$bundles" || refuse "$bundles cannot be made"
  partial=$(mktemp -d "$bundles/partial.XXXXXX") || refuse "nothing can be written to $bundles"
  trap 'rm -rf "$partial"' EXIT
  said=$(tar -xz --strip-components=1 -C "$partial" 2>&1) || refuse "the bundle cannot be unpacked in $bundles: $(tail -n 1 <<<"$said")"
  said=$("$partial/bin/seer" --version 2>&1) || refuse "the bundle's program does not run: $(tail -n 1 <<<"$said")"
  if ! runs "$bundle"; then rm -rf "$bundle"; fi
  mv -T "$partial" "$bundle" 2>/dev/null || runs "$bundle" || refuse "$bundle cannot be made"
  find "$bundles" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +
  answer unpacked
}

# end_node PID: ends it with SIGTERM, or else SIGKILL.
end_node() {
  local ticks
  kill -TERM "$1" 2>/dev/null
  for ((ticks = 0; ticks < end_s * 20; ++ticks)); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.05
  done
  kill -KILL "$1" 2>/dev/null
}
# end_with_lease PID: ends the node when no more lines come from stdin.
end_with_lease() {
  while read -r -t "$lease_s" _; do :; done
  end_node "$1"
}

# run_node HASH CERTIFICATE KEY CA OPTION...: runs `seer node` until its lease ends, and returns its exit code. Paths in the OPTIONs
# are relative to the bundle.
run_node() {
  local bundle=$bundles/bundle-$1 certificate=$2 key=$3 ca=$4 node lease code
  shift 4
  work=$(mktemp -d "$nodes_in/seer-node.XXXXXX") || exit 1
  trap 'rm -rf "$work"' EXIT
  cd "$work" || exit 1  # so that stop_nodes can check that this process belongs to the folder
  echo $$ >pid
  echo "$certificate" >node.pem
  echo "$key" >node.key
  echo "$ca" >ca.pem
  # If this shell is killed, the kernel ends the node.
  (cd "$bundle" && exec setpriv --pdeathsig TERM bin/seer node "$@" --tls-cert "$work/node.pem" --tls-key "$work/node.key" --tls-ca "$work/ca.pem") \
    </dev/null &
  node=$!
  trap 'end_node "$node"' TERM INT HUP
  end_with_lease "$node" <&0 &
  lease=$!
  while :; do
    code=0
    wait "$node" || code=$?
    kill -0 "$node" 2>/dev/null || break
  done
  kill "$lease" 2>/dev/null
  exit "$code"
}

# stop_nodes: ends all nodes of this user that run_node started, and removes the leftovers of nodes that were killed.
stop_nodes() {
  local work pid ticks count=0 left=()
  for work in "$nodes_in"/seer-node.*; do
    [[ -d $work && -O $work ]] || continue
    pid=$(cat "$work/pid" 2>/dev/null)
    if [[ -n $pid && $(readlink "/proc/$pid/cwd") == "$work" ]]; then
      kill -TERM "$pid"
      left+=("$pid")
      count=$((count + 1))
    else
      rm -rf "$work"
    fi
  done
  for ((ticks = 0; ticks < (end_s + 5) * 20 && ${#left[@]} > 0; ++ticks)); do
    mapfile -t left < <(for pid in "${left[@]}"; do if kill -0 "$pid" 2>/dev/null; then echo "$pid"; fi; done)
    sleep 0.05
  done
  ((${#left[@]} == 0)) || refuse "these processes do not end: ${left[*]}"
  answer "stopped $count"
}

# remove_all: does stop_nodes, and removes the bundles.
remove_all() {
  stop_nodes
  rm -rf "$bundles"/bundle-* "$bundles"/partial.*
  rmdir "$bundles" 2>/dev/null
  exit 0
}
