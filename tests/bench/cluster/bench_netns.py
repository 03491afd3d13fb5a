#!/usr/bin/env python3
"""A rollout on four machines in network namespaces (deploy/netns_cluster.sh), two instances each, beside one within a process with
the same eight instances, in turn: tokens/s, control traffic, and chunks that computed KV again. Prints JSON. Needs root.

Control traffic is what the machines sent over their links, less the KV that was fetched: headers of TCP and UCX are in it, and what
the rollout and the controller say to each other, which are on one machine.

usage: bench_netns.py [SEER_PROGRAM] [--rounds 3] [OPTION of seer rollout...]
"""
import json, os, subprocess, sys, tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
MACHINES, INSTANCES = 4, 2
NODE = ["--threads-per-instance", "1", "--kv-bytes", "4MiB", "--dram-bytes", "64MiB"]
WORK = {"--model": f"{ROOT}/deploy/models/scratchpad-1m8", "--prompts": f"{ROOT}/deploy/examples/scratchpad/prompts.jsonl",
        "--group-size": "8", "--max-tokens": "1200", "--policy": "seer", "--chunk-tokens": "256", "--log-level": "error"}
# Within the namespace of machine 0, after the rollout.
SENT = ("cat /sys/class/net/lo/statistics/tx_bytes; for i in $(seq 0 %d); do "
        "ip netns exec $SEER_NETNS-$i cat /sys/class/net/eth0/statistics/tx_bytes; done" % (MACHINES - 1))


def responses(path):
    """What no machine may change of them."""
    kept = ("group", "sample", "output_ids", "logprobs", "finish_reason", "weight_version")
    return {(r["group"], r["sample"]): [r[k] for k in kept] for r in map(json.loads, open(path))}


def main():
    args = sys.argv[1:]
    seer = args.pop(0) if args and not args[0].startswith("-") else f"{ROOT}/build/release/bin/seer"
    rounds = 3
    if args[:1] == ["--rounds"]:
        rounds, args = int(args[1]), args[2:]
    one, many, sent = [], [], []
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        work = [word for flag, value in WORK.items() if flag not in args for word in (flag, value)]
        rollout = [seer, "rollout", *work, *args, "--out", f"{folder}/out.jsonl", "--report", f"{folder}/report.json"]
        report = lambda: json.load(open(f"{folder}/report.json"))
        for _ in range(rounds):
            subprocess.run(rollout + ["--instances", str(MACHINES * INSTANCES), "--nodes", str(MACHINES), *NODE],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            one.append(report())
            right = responses(f"{folder}/out.jsonl")
            command = f'"$@" --insecure --cluster "$SEER_CLUSTER" >&2 && {SENT}'
            run = subprocess.run([f"{ROOT}/deploy/netns_cluster.sh", str(MACHINES), "--seer", seer, "--instances", str(INSTANCES), *NODE,
                                  "--", "bash", "-c", command, "bash", *rollout], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            many.append(report())
            sent.append(sum(map(int, run.stdout.split())))
            found = responses(f"{folder}/out.jsonl")
            differences += sum(found.get(key) != value for key, value in right.items()) + len(found.keys() - right.keys())
    middle = lambda values: sorted(values)[len(values) // 2]
    resumed = [r["chunks"] - r["requests"] for r in many]
    print(json.dumps({
        "bench": "netns", "machines": MACHINES, "instances": MACHINES * INSTANCES, "rounds": rounds,
        "responses": many[0]["requests"], "differences": differences,
        "tokens_per_s": {"one_process": middle([r["tokens_per_s"] for r in one]), "cluster": middle([r["tokens_per_s"] for r in many]),
                         "ratios": [round(b["tokens_per_s"] / a["tokens_per_s"], 3) for a, b in zip(one, many)]},
        "control_bytes_per_token": middle([(s - r["fetched_bytes"]) / r["output_tokens"] for s, r in zip(sent, many)]),
        "kv_bytes_per_token": middle([r["fetched_bytes"] / r["output_tokens"] for r in many]),
        "resumed_chunks": resumed, "migrations": [r["migrations"] for r in many],
        "resumed_without_reprefill": middle([1 - r["reprefilled_chunks"] / n for r, n in zip(many, resumed)]),
        "fetch_failures": [r["fetch_failures"] for r in many]}))


if __name__ == "__main__":
    main()
