#!/usr/bin/env bash
# deploy/slurm/seer.sbatch on a real Slurm with only this machine: munged, slurmctld and slurmd run from a temporary folder, on
# free ports, and take a job whose responses must be those of a rollout within one process.
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
ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*[port.getsockname()[1] for port in ports])'
}
read -r controller_port daemon_port seer_port < <(free_ports)
host=$(hostname -s)
dd if=/dev/urandom of="$work/munge.key" bs=1024 count=1 status=none
chmod 600 "$work/munge.key"
mkdir "$work/state" "$work/spool"
cat >"$work/slurm.conf" <<EOF_CONF
ClusterName=seer
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$daemon_port
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
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
EOF_CONF
export SLURM_CONF=$work/slurm.conf
munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
  --log-file="$work/munged.log" --seed-file="$work/munge.seed" >"$work/munged.out.log" 2>&1 &
daemons+=($!)
slurmctld -D >"$work/slurmctld.out.log" 2>&1 &
daemons=($! "${daemons[@]}")
slurmd -D -N "$host" >"$work/slurmd.out.log" 2>&1 &
daemons=($! "${daemons[@]}")
for ((i = 0; i < 600; ++i)); do
  [[ $(sinfo -h -o %t 2>/dev/null) == idle ]] && break
  sleep 0.1
done
[[ $(sinfo -h -o %t) == idle ]] || fail "Slurm did not start"

rollout=(--model "$root/deploy/models/scratchpad-1m8" --prompts "$root/deploy/examples/scratchpad/prompts.jsonl" --limit 4
         --group-size 4 --max-tokens 128)
source "$root/tests/integration/exact_part.sh"
"$seer" rollout "${rollout[@]}" --instances 1 --out "$work/alone.jsonl" >"$work/alone.log" 2>&1 || fail "seer rollout"
export SEER=$seer SEER_PORT=$seer_port SEER_NODE_OPTIONS="--instances 1 --threads-per-instance 1 --dram-bytes 16MiB" SEER_LOGS=$work/logs
job() { timeout 300 sbatch --wait --quiet --ntasks=3 --output="$work/job-%j" "$root/deploy/slurm/seer.sbatch" "$@"; }
job "${rollout[@]}" --out "$work/cluster.jsonl" --report "$work/report.json" || fail "the job: exit code $?"
diff <(exact_part "$work/alone.jsonl") <(exact_part "$work/cluster.jsonl") || fail "responses within a process (<) and of the job (>)"
[[ $(grep -l ' has joined, with 1 instances' "$work"/logs/node-*.log | wc -l) == 2 ]] || fail "not two further nodes"

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
