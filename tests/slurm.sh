#!/usr/bin/env bash
# deploy/slurm/seer.sbatch on a real Slurm with only this machine: munged, slurmctld and a slurmd for each of two hosts run from a
# temporary folder, on free ports, and take jobs whose responses must be those of a rollout within one process.
# Needs apt-get install slurm-wlm. Usage: slurm.sh [<build folder>]    Exit: 0 passed, 1 failed, 77 skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
seer=${1:-$root/build/release}/bin/seer
PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd sbatch; do
  command -v $program >/dev/null || { echo "slurm: skipped: $program is not installed (apt-get install slurm-wlm)"; exit 77; }
done
work=$(mktemp -d)
chmod 755 "$work"
daemons=()
finish() {
  local pid
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null && wait "$pid"; done 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT
fail() {
  echo "slurm: FAILED: $*"
  tail -n 20 "$work"/*.log "$work"/logs/* "$work"/job-* 2>/dev/null
  exit 1
}

free_ports() {
  python3 -c 'import socket
ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*[port.getsockname()[1] for port in ports])'
}
read -r controller_port first_port second_port seer_port < <(free_ports)
host=$(hostname -s)
dd if=/dev/urandom of="$work/munge.key" bs=1024 count=1 status=none
chmod 600 "$work/munge.key"
mkdir "$work/state" "$work/spool-first" "$work/spool-second"
cat >"$work/slurm.conf" <<EOF_CONF
ClusterName=seer
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
KillWait=5
NodeName=first,second NodeHostname=$host NodeAddr=127.0.0.1 Port=$first_port,$second_port CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=first,second Default=YES MaxTime=INFINITE State=UP
EOF_CONF
export SLURM_CONF=$work/slurm.conf
munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
  --log-file="$work/munged.log" --seed-file="$work/munge.seed" >"$work/munged.out.log" 2>&1 &
daemons+=($!)
slurmctld -D >"$work/slurmctld.out.log" 2>&1 &
daemons=($! "${daemons[@]}")
for name in first second; do
  slurmd -D -N $name >"$work/slurmd-$name.out.log" 2>&1 &
  daemons=($! "${daemons[@]}")
done
for ((i = 0; i < 600; ++i)); do
  [[ $(sinfo -h -o "%t %D" 2>/dev/null) == "idle 2" ]] && break
  sleep 0.1
done
[[ $(sinfo -h -o "%t %D") == "idle 2" ]] || fail "Slurm did not start"

rollout=(--model "$root/deploy/models/scratchpad-1m8" --prompts "$root/deploy/examples/scratchpad/prompts.jsonl" --limit 4
         --group-size 4 --max-tokens 128 --weight-version 7)
source "$root/tests/integration/exact_part.sh"
"$seer" rollout "${rollout[@]}" --instances 1 --out "$work/alone.jsonl" >"$work/alone.log" 2>&1 || fail "seer rollout"
export SEER=$seer SEER_PORT=$seer_port SEER_NODE_OPTIONS="--instances 1 --threads-per-instance 1 --dram-bytes 16MiB" SEER_LOGS=$work/logs
job_on() { timeout 300 sbatch --wait --quiet --nodes="$1" --ntasks="$2" --output="$work/job-%j" "$root/deploy/slurm/seer.sbatch" "${@:3}"; }
job() { job_on 1 3 "$@"; }
job "${rollout[@]}" --out "$work/cluster.jsonl" --report "$work/report.json" || fail "the job: exit code $?"
[[ $(grep -c '"weight_version":7,' "$work/cluster.jsonl") == 16 ]] || fail "not 16 responses of weight version 7"
! grep 'warning: --weight-version' "$work"/job-* "$work"/logs/node-*.log || fail "--weight-version goes where it has no effect"
diff <(exact_part "$work/alone.jsonl") <(exact_part "$work/cluster.jsonl") || fail "responses within a process (<) and of the job (>)"
[[ $(grep -l ' has joined, with 1 instances' "$work"/logs/node-*.log | wc -l) == 2 ]] || fail "not two further nodes"
# rows: how many nodes a job's table shows, each with host, address and a log that exists.
rows() { awk '/^name +host +address +log$/ {is_table = 1; next} is_table && NF == 4 && $3 ~ /^127\.[0-9.]+:[0-9]+$/ && system("test -s " $4) == 0 {++rows} END {print rows + 0}'; }
[[ $(cat "$work"/job-* | rows) == 3 ]] || fail "no table of three nodes"

# On two hosts, with a secret. Their names have the same address here.
(umask 077; openssl rand -hex 32 >"$work/secret")
rm -rf "$work"/job-* "$work/logs"
SEER_ADDRESS=own SEER_NODE_OPTIONS="$SEER_NODE_OPTIONS --insecure --secret-file $work/secret" \
  job_on 2 2 "${rollout[@]}" --out "$work/hosts.jsonl" --insecure --secret-file "$work/secret" || fail "the job on two hosts: exit code $?"
diff <(exact_part "$work/alone.jsonl") <(exact_part "$work/hosts.jsonl") || fail "responses within a process (<) and of two hosts (>)"
[[ $(sed -n 's/^node [01] starts on //p' "$work"/logs/node-*.log | sort | tr '\n' ' ') == "first second " ]] || fail "not on two hosts"

job_on 2 2 "${rollout[@]}" --out "$work/x.jsonl" && fail "a job passes whose hosts cannot reach each other"
cat "$work"/job-* | grep -q '^seer.sbatch: the job has 2 hosts, but its tasks would listen at 127.0.0.1: expected SEER_ADDRESS=own$' ||
  fail "no word of SEER_ADDRESS"

# A rollout that fails fails the job; the nodes end with it.
job "${rollout[@]}" --out "$work/nowhere/x.jsonl"
code=$?
[[ $code == [12] ]] || fail "exit code $code of a job whose rollout fails"
job --prompts x && fail "a job without --model passes"
grep -q '^seer.sbatch: --model is missing' "$work"/job-* || fail "no word of --model"
SEER_NODE_OPTIONS="--block-tokens 17" job "${rollout[@]}" --out "$work/x.jsonl" && fail "a job of wrong nodes passes"
cat "$work"/job-* | grep -q '^seer: --block-tokens 17: expected a multiple of 16$' || fail "no word of --block-tokens"
# The port is an argument of every node; grep itself has it in another form.
! grep -lzx -- "127.0.0.1:[${SEER_PORT:0:1}]${SEER_PORT:1}" /proc/[0-9]*/cmdline 2>/dev/null || fail "these processes are left"
echo "slurm: passed"
