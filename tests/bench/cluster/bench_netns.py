#!/usr/bin/env python3
"""A rollout on four machines in network namespaces (deploy/netns_cluster.sh), two instances each, beside one within a process with
the same eight instances, in turn: tokens/s, control traffic, and chunks that computed KV again. Prints JSON. Needs root.

"apart" is the control: four independent processes of two instances each, with a quarter of the prompts each. Their loss against one
process is the cost of four processes on one host's cores and caches; the cluster's loss against them is its own.

Control traffic is all that the machines sent over their links, minus fetched KV. It includes headers of TCP and UCX, and messages
between the rollout and the controller, which are on one machine.

The 60 requests of an instance have 30 000 tokens when they end. Its KV holds 16 384 at 32 MiB, and 2 048 with --kv-bytes 4MiB.

usage: bench_netns.py [SEER_PROGRAM] [--rounds 3] [OPTION of seer rollout or of a node...]
"""
import json, os, resource, subprocess, sys, tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
MACHINES, INSTANCES = 4, 2
NODE = {"--threads-per-instance": "1", "--kv-bytes": "32MiB", "--dram-bytes": "64MiB", "--drafting": "off"}
WORK = {"--model": f"{ROOT}/deploy/models/scratchpad-1m8", "--prompts": f"{ROOT}/deploy/examples/scratchpad/prompts.jsonl",
        "--limit": "0", "--group-size": "8", "--max-tokens": "1200", "--policy": "seer", "--chunk-tokens": "256",
        "--log-level": "error"}
# Within the namespace of machine 0, after the rollout.
SENT = ("cat /sys/class/net/lo/statistics/tx_bytes; for i in $(seq 0 %d); do "
        "ip netns exec $SEER_NETNS-$i cat /sys/class/net/eth0/statistics/tx_bytes; done" % (MACHINES - 1))


def responses(path):
    """What no machine may change of them."""
    kept = ("group", "sample", "output_ids", "logprobs", "finish_reason", "weight_version")
    return {(r["group"], r["sample"]): [r[k] for k in kept] for r in map(json.loads, open(path))}


def cpu_s():
    """Of all children that have ended, with their start and the loading of the model."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def share_out(work, folder):
    """The options of each process that runs apart."""
    lines = open(work["--prompts"]).readlines()[:int(work["--limit"]) or None]
    for i in range(MACHINES):
        with open(f"{folder}/prompts{i}.jsonl", "w") as file:
            file.writelines(lines[i::MACHINES])
    return [{**work, "--limit": "0", "--prompts": f"{folder}/prompts{i}.jsonl"} for i in range(MACHINES)]


def main():
    args = sys.argv[1:]
    seer = args.pop(0) if args and not args[0].startswith("-") else f"{ROOT}/build/release/bin/seer"
    rounds = 3
    if args[:1] == ["--rounds"]:
        rounds, args = int(args[1]), args[2:]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    one, apart, many = [], [], []  # of each round: tokens/s, and CPU microseconds per token, in all and of engines
    reports, sent = [], []
    differences = 0
    with tempfile.TemporaryDirectory() as folder:
        work = dict(WORK)
        node = dict(NODE)
        while args and args[0] in work | node:
            (node if args[0] in node else work)[args[0]], args = args[1], args[2:]
        words = lambda options: [word for option in options.items() for word in option]

        def rollout(work, name=""):
            return [seer, "rollout", *words(work), *args, "--out", f"{folder}/out{name}.jsonl",
                    "--report", f"{folder}/report{name}.json"]

        report = lambda name="": json.load(open(f"{folder}/report{name}.json"))

        def figures(reports, cpu):
            tokens = sum(r["output_tokens"] for r in reports)
            per_token = [1e6 * s / tokens for s in (cpu_s() - cpu, sum(r["cpu_engine_s"] for r in reports))]
            return tokens / max(r["wall_s"] for r in reports), *per_token

        for _ in range(rounds):
            cpu = cpu_s()
            subprocess.run(rollout(work) + ["--instances", str(MACHINES * INSTANCES), "--nodes", str(MACHINES), *words(node)],
                           check=True, **quiet)
            one.append(figures([report()], cpu))
            right = responses(f"{folder}/out.jsonl")

            cpu = cpu_s()
            runs = [subprocess.Popen(rollout(share, i) + ["--instances", str(INSTANCES), *words(node)], **quiet)
                    for i, share in enumerate(share_out(work, folder))]
            if any([run.wait() for run in runs]):
                sys.exit("a rollout that ran apart failed")
            apart.append(figures([report(i) for i in range(MACHINES)], cpu))

            cpu = cpu_s()
            command = f'"$@" --insecure --cluster "$SEER_CLUSTER" >&2 && {SENT}'
            run = subprocess.run([f"{ROOT}/deploy/netns_cluster.sh", str(MACHINES), "--seer", seer,
                                  "--instances", str(INSTANCES), *words(node), "--", "bash", "-c", command, "bash", *rollout(work)],
                                 check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            reports.append(report())
            many.append(figures([report()], cpu))
            sent.append(sum(map(int, run.stdout.split())))
            found = responses(f"{folder}/out.jsonl")
            differences += sum(found.get(key) != value for key, value in right.items()) + len(found.keys() - right.keys())
    middle = lambda values: sorted(values)[len(values) // 2]
    resumed = [r["chunks"] - r["requests"] for r in reports]
    arms = {"one_process": one, "apart": apart, "cluster": many}
    print(json.dumps({
        "bench": "netns", "work": work | node, "machines": MACHINES, "instances": MACHINES * INSTANCES, "rounds": rounds,
        "responses": reports[0]["requests"], "differences": differences,
        "tokens_per_s": {name: round(middle([rate for rate, _, _ in arm])) for name, arm in arms.items()},
        "cpu_us_per_token": {name: round(middle([cost for _, cost, _ in arm]), 1) for name, arm in arms.items()},
        "engine_cpu_us_per_token": {name: round(middle([cost for _, _, cost in arm]), 1) for name, arm in arms.items()},
        "cluster_to_one_process": [round(b[0] / a[0], 3) for a, b in zip(one, many)],
        "cluster_to_apart": [round(b[0] / a[0], 3) for a, b in zip(apart, many)],
        "control_bytes_per_token": middle([(s - r["fetched_bytes"] - r["moved_bytes"]) / r["output_tokens"] for s, r in zip(sent, reports)]),
        "kv_bytes_per_token": middle([(r["fetched_bytes"] + r["moved_bytes"]) / r["output_tokens"] for r in reports]),
        "resumed_chunks": resumed, "migrations": [r["migrations"] for r in reports],
        "resumed_without_reprefill": middle([1 - r["reprefilled_chunks"] / max(1, n) for r, n in zip(reports, resumed)]),
        "fetch_failures": [r["fetch_failures"] for r in reports]}))


if __name__ == "__main__":
    main()
