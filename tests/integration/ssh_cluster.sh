#!/usr/bin/env bash
# deploy/ssh_cluster.sh on machines with separate networks, processes, shared memory and home folders, each with a real sshd: a
# rollout gives the bits of one within a process; the program is copied once; however the script ends, nothing is left on any machine;
# bad input gets a sentence. Needs apt-get install openssh-server.
# Usage: ssh_cluster.sh [<build folder>]    Exit: 0 passed, 1 failed, 77 skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=deploy/netns_network.sh
source "$root/deploy/netns_network.sh"
seer=${1:-$root/build/release}/bin/seer
PATH=$PATH:/usr/sbin:/sbin
skip() { echo "ssh_cluster: skipped: $*"; exit 77; }
((EUID == 0)) || skip "needs root"
for program in sshd ssh ssh-keygen openssl; do
  command -v $program >/dev/null || skip "$program is not installed (apt-get install openssh-server openssh-client openssl)"
done
unshare --mount --pid --net --ipc --uts --fork ip link add bridge type bridge 2>/dev/null || skip "no namespaces here"
work=$(mktemp -d)
script_pid=""
machine_pids=()
finish() {
  if [[ -n $script_pid ]]; then kill "$script_pid" && wait "$script_pid"; fi 2>/dev/null
  if ((${#machine_pids[@]} > 0)); then kill -KILL "${machine_pids[@]}" && wait "${machine_pids[@]}"; fi 2>/dev/null
  remove_network
  rm -rf --one-file-system "$work"
}
trap finish EXIT
fail() { echo "ssh_cluster: FAILED: $*"; exit 1; }
# until_true SECONDS WHAT COMMAND...: fails when it took longer.
until_true() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    ((SECONDS <= end)) || fail "$what: $(tail -n 20 "$work"/*/sshd.log "$work/out" "$work/err" 2>/dev/null)"
    sleep 0.05
  done
}

# ---- Machines a, b, c and old, which has no AVX2; and this test's own end of their network.
ssh-keygen -q -t ed25519 -N "" -f "$work/key"
ssh-keygen -q -t ed25519 -N "" -f "$work/other_key"
make_network || skip "no network namespaces here"
ip -n "$network-net" address add 10.78.0.1/24 dev bridge
ip -n "$network-net" link set lo up
# What is in the folder of a machine is its /root and /tmp; the repository is not there.
start_machine() {
  local name=$1 address=$2 files=$work/$1
  mkdir -p "$files/root" "$files/tmp" "$files/sshd"
  chmod 700 "$files/root"
  ssh-keygen -q -t ed25519 -N "" -f "$files/sshd/host_key"
  cp "$work/key.pub" "$files/sshd/authorized_keys"
  printf '%s\n' "HostKey $files/sshd/host_key" "AuthorizedKeysFile $files/sshd/authorized_keys" "Port 2222" "ListenAddress $address" "PidFile none" \
    "UsePAM no" "StrictModes no" "PermitRootLogin prohibit-password" "PasswordAuthentication no" >"$files/sshd/config"
  sed '/^flags/s/ avx[^ ]*//g' /proc/cpuinfo >"$files/cpuinfo"
  add_machine "$name" "$address"
  # sshd is the first process of the machine: when it ends, all of them do.
  # shellcheck disable=SC2016
  setpriv --pdeathsig KILL ip netns exec "$network-$name" unshare --mount --pid --ipc --uts --fork --kill-child --mount-proc bash -euc '
    files=$1 name=$2 root=$3
    hostname "$name"
    mount -t tmpfs tmpfs /run && mkdir /run/sshd
    if [[ $name == old ]]; then mount --bind "$files/cpuinfo" /proc/cpuinfo; fi
    sshd=$(command -v sshd)
    mkdir /run/files && mount --bind "$files" /run/files
    sed -i "s,$files,/run/files,g" "$files/sshd/config"
    mount --bind "$files/root" /root
    mount --bind "$files/tmp" /tmp
    if [[ -d $root/deploy ]]; then mount -t tmpfs tmpfs "$root"; fi
    cd /
    exec "$sshd" -D -e -f /run/files/sshd/config' bash "$files" "$name" "$root" >"$files/sshd.log" 2>&1 &
  machine_pids+=($!)
  echo "$address $(cut -d' ' -f1,2 "$files/sshd/host_key.pub")" | sed "s,^[^ ]*,[$address]:2222," >>"$work/known_hosts"
}
names=(a b c)
start_machine a 10.78.0.2
start_machine b 10.78.0.3
start_machine c 10.78.0.4
start_machine old 10.78.0.5
cat >"$work/ssh_config" <<EOF_CONFIG
Host a
  HostName 10.78.0.2
Host b
  HostName 10.78.0.3
Host c
  HostName 10.78.0.4
Host old
  HostName 10.78.0.5
Host refusing
  HostName 10.78.0.2
  IdentityFile $work/other_key
Host * !refusing
  IdentityFile $work/key
Host *
  User root
  Port 2222
  IdentitiesOnly yes
  UserKnownHostsFile $work/known_hosts
  GlobalKnownHostsFile /dev/null
EOF_CONFIG
here() { ip netns exec "$network-net" "$@"; }
for name in "${names[@]}" old; do until_true 60 "sshd of $name" here ssh -F "$work/ssh_config" "$name" true 2>/dev/null; done

mkdir "$work/tmp"
export TMPDIR=$work/tmp
cluster() { here "$root/deploy/ssh_cluster.sh" --ssh "ssh -F $work/ssh_config" "$@"; }
on() { here ssh -F "$work/ssh_config" "$1" "${@:2}"; }

# Processes of a machine beside sshd, its sessions, and those of this look.
busy() { on "$1" 'for pid in /proc/[0-9]*; do
    read -r name <$pid/comm 2>/dev/null || continue
    case $name in sshd | bash | sh | cat) ;; *) echo "$name" ;; esac
    if grep -qz "^run_node" $pid/environ 2>/dev/null; then echo run_node; fi
  done; ls -d /tmp/seer-node.* 2>/dev/null; ipcs -m | grep ^0x'; }
idle() { [[ -z $(busy "$1") ]]; }
nothing_left() {
  local name
  for name in "${names[@]}"; do until_true 60 "left on $name: $(busy "$name")" idle "$name"; done
  [[ -z $(ls -A "$TMPDIR") ]] || fail "left in the temporary folder: $(find "$TMPDIR")"
}

# ---- A rollout
source "$root/tests/integration/exact_part.sh"
nodes=(--instances 1 --threads-per-instance 1 --kv-bytes 4MiB --dram-bytes 32MiB)
rollout=("$seer" rollout --model "$root/deploy/models/scratchpad-1m8" --prompts "$root/deploy/examples/scratchpad/prompts.jsonl"
         --limit 24 --group-size 8 --max-tokens 800 --policy seer --chunk-tokens 256)
"${rollout[@]}" --instances 3 --threads-per-instance 1 --kv-bytes 4MiB --out "$work/alone.jsonl" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
[[ $(wc -l <"$work/alone.jsonl") == 192 ]] || fail "seer rollout wrote $(wc -l <"$work/alone.jsonl") responses, not 192"

printf '%s\n' "# three hosts" "a" "ssh://root@b:2222   # as a URL" "c 10.78.0.4" >"$work/hosts"
# shellcheck disable=SC2016
cluster --seer "$seer" "$work/hosts" "${nodes[@]}" -- bash -c 'echo here; "$@" --cluster "$SEER_CLUSTER" $SEER_TLS >&2 && cat' bash "${rollout[@]}" \
  --out "$work/cluster.jsonl" --report "$work/report.json" >"$work/out" 2>"$work/err" <<<"and its stdin" || fail "exit code $?: $(cat "$work/err")"
[[ $(cat "$work/out") == $'here\nand its stdin' ]] || fail "the command's stdin and stdout: $(cat "$work/out")"
diff <(exact_part "$work/alone.jsonl") <(exact_part "$work/cluster.jsonl") >/dev/null || fail "responses differ from those within a process"
[[ $(grep -c '"busy_s"' "$work/report.json") == 3 ]] || fail "not on three instances: $(cat "$work/report.json")"
(($(sed -n 's/^ *"fetched_bytes": \([0-9]*\),\{0,1\}$/\1/p' "$work/report.json") > 0)) || fail "no KV moved"
grep -q '3 of 3 hosts lack the bundle' "$work/err" || fail "the bundle was not copied: $(cat "$work/err")"
for line in '^0 +a +10\.78\.0\.2:[0-9]+ ' '^1 +ssh://root@b:2222 +10\.78\.0\.3:[0-9]+ ' '^2 +c +10\.78\.0\.4:[0-9]+ '; do
  grep -qE "$line" "$work/err" || fail "no line \"$line\" of what runs where: $(cat "$work/err")"
done
nothing_left

# ---- Whatever ends it
# start OPTION...: in the background, until it has said what runs where.
start() {
  : >"$work/out"
  # exec: its pid is that of the script
  (exec ip netns exec "$network-net" env --default-signal=INT "$root/deploy/ssh_cluster.sh" --ssh "ssh -F $work/ssh_config" --seer "$seer" "$@" "${nodes[@]}") \
    >"$work/out" 2>"$work/err" &
  script_pid=$!
  until_true 60 "the cluster did not start" eval "grep -q 'is the controller' '$work/out' || ! kill -0 $script_pid 2>/dev/null"
  kill -0 "$script_pid" 2>/dev/null || fail "the cluster did not start: $(cat "$work/err")"
}
is_over() { ! kill -0 "$script_pid" 2>/dev/null; }
# ended CODE
ended() {
  local code=0
  until_true 60 "the script does not end" is_over
  wait "$script_pid" 2>/dev/null || code=$?
  script_pid=""
  [[ $code == "$1" ]] || fail "exit code $code, expected $1: $(cat "$work/out" "$work/err")"
}
said() { grep -qE -- "$1" "$work/err" || fail "no word of \"$1\": $(cat "$work/err")"; }

start "$work/hosts"
said '0 of 3 hosts lack the bundle'
kill -INT "$script_pid"
ended 0
nothing_left

start "$work/hosts"
kill -TERM "$script_pid"
ended 0
nothing_left

start "$work/hosts" --logs "$work/logs"
kill -KILL "$script_pid"
ended 137
for name in "${names[@]}"; do until_true 60 "left on $name after SIGKILL" idle "$name"; done
rm -r "${TMPDIR:?}"/*

# Another terminal ends it.
start "$work/hosts" --logs "$work/logs"
cluster stop "$work/hosts" >"$work/stopped" 2>&1 || fail "stop: $(cat "$work/stopped")"
# The script that started them sees the controller end, and may stop others before this does.
[[ $(grep -c 'stopped [01] nodes' "$work/stopped") == 3 ]] || fail "stop: $(cat "$work/stopped")"
grep -q '^a: stopped 1 nodes' "$work/stopped" || fail "stop: $(cat "$work/stopped")"
ended 1
said 'node 0 has ended'
nothing_left

# A machine that is cut off for long is reported, and ends its node by itself.
start "$work/hosts" --logs "$work/logs"
ip -n "$network-net" link set portc down
until_true 60 "no word of the machine that is cut off" grep -q 'node 2 has ended, with exit code 255' "$work/err"
kill -TERM "$script_pid"
ended 0
ip -n "$network-net" link set portc up
nothing_left

# ---- The program is copied again when it differs, and only then.
cp "$seer" "$work/seer"
touch -d 2020-01-01 "$work/seer"
cluster --seer "$work/seer" "$work/hosts" "${nodes[@]}" -- true >"$work/out" 2>"$work/err" || fail "$(cat "$work/err")"
said '3 of 3 hosts lack the bundle'
"$root/deploy/bundle.sh" --seer "$seer" "$work/seer.tar.gz" >"$work/log" 2>&1 || fail "$(cat "$work/log")"
cluster --bundle "$work/seer.tar.gz" --logs "$work/logs" "$work/hosts" "${nodes[@]}" -- bash -c 'exit 7' >"$work/out" 2>"$work/err"
[[ $? == 7 ]] || fail "the command's exit code: $(cat "$work/err")"
said '0 of 3 hosts lack the bundle'
nothing_left
mkdir "$work/unpacked" && tar -xzf "$work/seer.tar.gz" --strip-components=1 -C "$work/unpacked"
here "$work/unpacked/deploy/ssh_cluster.sh" --ssh "ssh -F $work/ssh_config" "$work/hosts" "${nodes[@]}" -- true >"$work/out" 2>"$work/err" ||
  fail "a bundle that starts a cluster: $(cat "$work/err")"

# ---- Bad input: a sentence that names file and line, and no cluster.
# refused CODE SENTENCE LINES [ARGUMENT...]: for a file of these lines
refused() {
  local code=0 expected=$1 sentence=$2
  printf '%b' "$3" >"$work/bad"
  shift 3
  cluster --bundle "$work/seer.tar.gz" --logs "$work/logs" "$work/bad" "$@" >"$work/out" 2>"$work/err" || code=$?
  [[ $code == "$expected" ]] || fail "exit code $code, not $expected, for $(cat "$work/bad") $*: $(cat "$work/err")"
  said "^ssh_cluster: $sentence"
  [[ -z $(ls -A "$TMPDIR") ]] || fail "left in the temporary folder: $(find "$TMPDIR")"
}
bad=$work/bad
refused 2 "$bad: it has no host: expected one on each line" ""
refused 2 "$bad: it has no host: expected one on each line" "# nothing\n\n"
refused 2 "$bad:3: a is in line 1 already: expected each host once" "a\nb\na\n"
refused 1 "$bad:2: root@a: its address 10.78.0.2 is that of line 1: expected each host once" "a\nroot@a"
refused 2 "$bad:2: \"-oProxyCommand=x\" is no host: expected HOST, USER@HOST" "a\n-oProxyCommand=x\n"
refused 2 "$bad:1: \"a 10.78.0.2 x\" has 3 words: expected a host, and at most its address" "a 10.78.0.2 x\r\n"
refused 2 "$bad:1: \"10.78.0.2:7000\" is no address: expected an IPv4 address or a name, without port" "a 10.78.0.2:7000"
refused 1 "$bad:2: nowhere.invalid: Could not resolve hostname nowhere.invalid: .*: expected a host that ssh finds" "a\nnowhere.invalid\n"
refused 1 "$bad:2: refusing: .*: Permission denied \(publickey.*\): expected a key that it accepts" "a\nrefusing\n"
refused 1 "$bad:1: 10.78.0.1: connect to host 10.78.0.1 port 2222: Connection refused: expected a host that answers ssh" "10.78.0.1\n"
refused 1 "$bad:3: old: its processor, .*, has no AVX2: expected one that has" "a\nb\nold"
said '^ssh_cluster: 1 of 3 hosts cannot take part'
refused 2 "node 0 ended at the start, with exit code 2" "a\n" --block-tokens 17
said '^seer: --block-tokens 17: expected a multiple of 16'
refused 2 "--join cannot be given" "a\n" --join 10.0.0.1:7000
refused 2 "--listen cannot be given" "a\n" --listen 10.0.0.1:7000
refused 2 "--insecure cannot be given" "a\n" --insecure
sed -i 's/^\[10\.78\.0\.3\].*//' "$work/known_hosts"
refused 1 "$bad:2: b: Host key verification failed: expected its host key to be known" "a\nb\n"
rm "$bad"
cluster "$bad" >"$work/out" 2>"$work/err"
[[ $? == 2 ]] || fail "a file that is not there: $(cat "$work/err")"
said "^ssh_cluster: $bad: there is no such file: expected one with a host on each line"
cluster --bundle "$work/hosts" "$work/hosts" >"$work/out" 2>"$work/err"
[[ $? == 1 ]] || fail "an archive that is none: $(cat "$work/err")"
said "^ssh_cluster: --bundle $work/hosts: it has no bin/seer"
here "$root/deploy/ssh_cluster.sh" --ssh "no-such-ssh -v" "$work/hosts" >"$work/out" 2>"$work/err"
said '^ssh_cluster: there is no program no-such-ssh'

# ---- The program is removed when asked.
echo a >"$work/hosts"
cluster remove "$work/hosts" >"$work/out" 2>"$work/err" || fail "remove: $(cat "$work/err")"
[[ -z $(find "$work/a/root" "$work/a/tmp" -name 'bundle-*') ]] || fail "the program is left: $(find "$work/a/root" "$work/a/tmp")"
echo "ssh_cluster: passed"
