#!/usr/bin/env python3
"""Compares `seer serve --engines` over servers of different speed with round robin over the same servers, and what the router costs over
one process. All are real processes of `seer serve` on this machine. usage: bench_router.py SEER_PROGRAM [--pairs N] [--json FILE]

  heterogeneous   three servers with one thread each, which run 12, 12 and 3 % of the time, as with cpulimit, so that the machine's cores
                  are not what they share: total time and tail (from 90 % of the responses to the last) of the router's policies and of
                  round robin, which is what routers do that know no load
  overhead        one server, asked directly and through routers with small and with larger chunks: tokens per second, with as many requests
                  as the server runs at a time (8) and with six times as many, and the milliseconds that each chunk of 64 tokens adds to a
                  request that runs alone. "asked anew": each chunk is a request of its own (--engine-stream-tokens 0)
  replay          two servers of 8 rows: `seer rollout --engines` learns a profile from one rollout; `seer simulate` replays that one and
                  another with it: simulated total and tail over the real ones
"""
import argparse, concurrent.futures, json, os, random, signal, statistics, subprocess, sys, tempfile, threading, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../integration"))
arguments = sys.argv[1:]
sys.argv = sys.argv[:2]
from served import MODEL, ROOT, SEER, Served


class Slowed:
    """Lets a process run only a share of the time, as cpulimit does."""

    def __init__(self, process, share, period_s=0.05):
        self.over = threading.Event()

        def work():
            while not self.over.wait(period_s * share):
                process.send_signal(signal.SIGSTOP)
                self.over.wait(period_s * (1 - share))
                process.send_signal(signal.SIGCONT)
        self.thread = threading.Thread(target=work)
        self.thread.start()

    def stop(self):
        self.over.set()
        self.thread.join()


def work_of(groups, size, seed):
    """Requests of groups, with lengths that differ between groups: most short, some long."""
    draw = random.Random(seed)
    requests = []
    for g in range(groups):
        tokens = min(1400, int(draw.lognormvariate(4.6, 0.9)) + 8)
        prompt = [2 + draw.randrange(30) for _ in range(20)]
        for i in range(size):
            length = max(4, min(1500, int(tokens * draw.uniform(0.7, 1.3))))
            requests.append({"input_ids": prompt, "group_id": f"g{seed}-{g}", "group_size": size, "return_logprob": True,
                             "sampling_params": {"max_new_tokens": length, "ignore_eos": True, "sampling_seed": 1000 * g + i}})
    return requests


def run(requests, servers):
    """Sends request i to server i mod n, all at once. Returns total seconds, tail seconds, tokens."""
    began, ends, tokens = time.monotonic(), [], []

    def one(i):
        answer = servers[i % len(servers)].post("/generate", requests[i])
        ends.append(time.monotonic() - began)
        tokens.append(len(answer["output_ids"]))
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        list(pool.map(one, range(len(requests))))
    ends.sort()
    return ends[-1], ends[-1] - ends[int(0.9 * len(ends)) - 1], sum(tokens)


def router_over(servers, *options):
    engines = ",".join(f"seer=http://127.0.0.1:{server.port}" for server in servers)
    return Served("--engines", engines, *options)


def heterogeneous(pairs, shares):
    rows = {"round robin": [], "seer+": []}  # in turn, on the same work
    servers = [Served("--instances", "1", "--max-batch", "8", "--drafting", "off") for _ in range(3)]
    slowed = [Slowed(server.process, share) for server, share in zip(servers, shares)]
    routers = {policy: router_over(servers, "--policy", policy, "--chunk-tokens", "64") for policy in rows if policy != "round robin"}
    try:
        for pair in range(pairs):
            requests = work_of(24, 4, 100 + pair)
            for name in rows:
                rows[name].append(run(requests, servers if name == "round robin" else [routers[name]]))
                print(name, rows[name][-1], file=sys.stderr)
    finally:
        for router in routers.values():
            router.stop()
        for limit in slowed:
            limit.stop()
        for server in servers:
            server.stop()
    return {name: {"total_s": statistics.median(r[0] for r in runs), "tail_s": statistics.median(r[1] for r in runs), "runs": runs}
            for name, runs in rows.items()}


def overhead(pairs):
    server = Served("--instances", "1", "--max-batch", "8", "--drafting", "off")
    targets = {"direct": server, "chunks of 64, asked anew": router_over([server], "--chunk-tokens", "64", "--engine-stream-tokens", "0"),
               **{f"chunks of {n}": router_over([server], "--chunk-tokens", str(n)) for n in (64, 512, 2048)}}
    works = {"8 requests": (2, 16), "48 requests": (12, 3)}  # groups of four at a time, and how often: some seconds of work
    rates = {work: {name: [] for name in targets} for work in works}
    names = list(targets)
    try:
        for pair in range(pairs):
            for work, (groups, times) in works.items():
                for name in names[pair % len(names):] + names[:pair % len(names)]:  # each is first in turn
                    runs = [run(work_of(groups, 4, 200 + times * pair + i), [targets[name]]) for i in range(times)]
                    rates[work][name].append(sum(tokens for _, _, tokens in runs) / sum(total for total, _, _ in runs))
                    print(work, name, rates[work][name][-1], file=sys.stderr)
        alone = {"input_ids": [2, 3, 4], "sampling_params": {"max_new_tokens": 640, "ignore_eos": True, "sampling_seed": 3}}
        times = {name: [] for name in ("direct", "chunks of 64, asked anew", "chunks of 64")}
        for _ in range(3 * pairs):
            for name in times:
                began = time.monotonic()
                targets[name].post("/generate", alone)
                times[name].append(time.monotonic() - began)
    finally:
        for target in reversed(targets.values()):
            target.stop()
    per_chunk_ms = {name: 1000 * statistics.median(r - d for r, d in zip(of, times["direct"])) / 10 for name, of in times.items() if name != "direct"}

    def ratios(of):
        pairs_of = {name: [r / d for r, d in zip(of[name], of["direct"])] for name in of if name != "direct"}
        return {name: {"median": statistics.median(found), "least": min(found), "most": max(found)} for name, found in pairs_of.items()}
    return {"tokens_per_s": {work: {name: statistics.median(r) for name, r in of.items()} for work, of in rates.items()},
            "of_direct": {work: ratios(of) for work, of in rates.items()}, "ms_per_chunk": per_chunk_ms, "pairs": pairs}


def replay(pairs):
    servers = [Served("--instances", "1", "--max-batch", "8", "--drafting", "off") for _ in range(2)]
    engines = ",".join(f"seer=http://127.0.0.1:{server.port}" for server in servers)
    shape = ["--policy", "seer+", "--chunk-tokens", "128"]
    ratios = {"same work": [], "other work": []}

    def read(path):
        with open(path) as file:
            return json.load(file)

    def roll(folder, name, seed, *options):
        subprocess.run([SEER, "rollout", "--model", MODEL, "--prompts", f"{ROOT}/deploy/examples/scratchpad/prompts.jsonl", "--limit", "24", "--group-size", "16",
                        "--max-tokens", "1000", "--seed", str(seed), *shape, "--engines", engines, "--out", f"{folder}/{name}.jsonl", "--report",
                        f"{folder}/{name}.json", *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return read(f"{folder}/{name}.json")

    def simulate(folder, name):
        subprocess.run([SEER, "simulate", "--workload", f"{folder}/{name}.jsonl", "--profile", f"{folder}/profile.json", "--instances", "2", "--kv-tokens", "100000",
                        "--max-batch", "8", "--policies", "seer+", *shape[2:], "--seeds", "1", "--report", f"{folder}/sim.json"], check=True, stdout=subprocess.DEVNULL)
        return read(f"{folder}/sim.json")[0]
    try:
        for pair in range(pairs):
            with tempfile.TemporaryDirectory() as folder:
                real = {"same work": roll(folder, "same", 10 + 2 * pair, "--profile-out", f"{folder}/profile.json"), "other work": roll(folder, "other", 11 + 2 * pair)}
                for work, report in real.items():
                    simulated = simulate(folder, work.split()[0])
                    ratios[work].append((simulated["total_s"]["mean"] / report["wall_s"], simulated["tail_s"]["mean"] / report["tail_s"], report["wall_s"]))
                    print(work, ratios[work][-1], file=sys.stderr)
    finally:
        for server in servers:
            server.stop()
    return {work: {"total": statistics.median(r[0] for r in runs), "tail": statistics.median(r[1] for r in runs), "runs": runs} for work, runs in ratios.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs=3, default=[0.12, 0.12, 0.03], help="of the time that each server runs")
    parser.add_argument("--json")
    parser.add_argument("--only", choices=["overhead", "heterogeneous", "replay"])
    options = parser.parse_args(arguments[1:])
    parts = {"overhead": lambda: overhead(options.pairs), "heterogeneous": lambda: heterogeneous(options.pairs, options.shares), "replay": lambda: replay(options.pairs)}
    result = {name: measure() for name, measure in parts.items() if options.only in (None, name)}
    print(json.dumps(result, indent=1))
    if options.json:
        with open(options.json, "w") as out:
            json.dump(result, out)
