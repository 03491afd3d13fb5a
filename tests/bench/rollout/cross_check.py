#!/usr/bin/env python3
"""Compares `seer simulate` with `seer rollout`: the shipped prompts run for real on two CPU instances, and are replayed in simulation
with the lengths of the run and with profiles of an instance, taken while the other instance does the same steps.

KV is scarce, so that policies differ. The speed of a machine drifts, so a profile is taken before and after each run, and the run is
compared with the mean of the replays under both; every second round has the policies in reverse order. A profile has only the time of
the engine; the time between two steps is taken from the previous run. All runs must give the same tokens.

Prints per policy the seconds of the runs, simulated over real (total and tail, the last 10 % of the requests), and preemptions. Then,
for two policies, which one is faster in how many rounds and under how many of all profiles. They count as different if all agree and
the medians differ by more than 5 %; less is within the drift. `auto` is run, but not replayed: it chooses by what it measures.

usage: cross_check.py SEER_PROGRAM [--rounds 3] [--policies ...] [--out cross_check.json]
"""
import argparse, itertools, json, os, subprocess, sys, tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
MODEL = os.path.join(ROOT, "deploy/models/scratchpad-1m8")
PROMPTS = os.path.join(ROOT, "deploy/examples/scratchpad/prompts.jsonl")
AUTO = "auto"
POLICIES = ["divided-rr", "seer", "seer+", AUTO, "verl"]
CHUNK_TOKENS, MAX_BATCH, KV_MIB, KV_TOKENS = 256, 64, 12, 6144  # of an instance; 2 KiB of KV per token of the shipped model
FIGURES = ["total_s", "tail_s"]
APART = 0.05  # relative


def seer(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"cross_check: {' '.join(map(str, arguments))}: {done.stderr}")


def profile(program, path):
    seer(program, "profile", "--model", MODEL, "--instances", 2, "--quick", "--rows-max", 256, "--context-max", 4096, "--out", path)
    return path


def run(program, group_size, policy, out):
    report = out + ".report"
    seer(program, "rollout", "--model", MODEL, "--prompts", PROMPTS, "--instances", 2, "--policy", policy, "--group-size", group_size,
         "--kv-bytes", f"{KV_MIB}MiB", "--chunk-tokens", CHUNK_TOKENS, "--max-batch", MAX_BATCH, "--drafting", "off", "--out", out, "--report", report)
    found = json.load(open(report))
    gap_us = min(round(1e6 * i["idle_s"] / i["steps"]) for i in found["instances"])  # the other one may have waited for its end
    return {"total_s": found["wall_s"], "tail_s": found["tail_s"], "preemptions": found["preemptions"]}, found["reserve"], gap_us


def tokens_of(responses):
    return {(r["group"], r["sample"]): r["output_ids"] for r in map(json.loads, open(responses))}


def replay(program, responses, profile_path, policy, reserve, gap_us):
    report = responses + ".simulated"
    seer(program, "simulate", "--workload", responses, "--profile", profile_path, "--instances", 2, "--kv-tokens", KV_TOKENS,
         "--chunk-tokens", CHUNK_TOKENS, "--max-batch", MAX_BATCH, "--policies", policy, "--reserve", reserve, "--step-gap-us", gap_us, "--report", report)
    (row,) = json.load(open(report))
    return {key: row[key]["mean"] for key in [*FIGURES, "preemptions"]}


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def measure(program, rounds, group_size, policies):
    """Runs as they come, each with its replays under all profiles; run i stands between the profiles i and i + 1."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        responses = os.path.join(folder, "responses.jsonl")
        profiles = [profile(program, os.path.join(folder, "0.json"))]
        _, _, gap_us = run(program, group_size, policies[0], responses)
        tokens = tokens_of(responses)
        for number in range(rounds):
            for policy in policies if number % 2 == 0 else reversed(policies):
                real, reserve, next_gap_us = run(program, group_size, policy, responses)
                if tokens_of(responses) != tokens:
                    sys.exit(f"cross_check: round {number}, {policy}: other tokens than {policies[0]} gave first")
                runs.append({"round": number, "policy": policy, "reserve": reserve, "gap_us": gap_us, "real": real})
                gap_us = next_gap_us
                profiles.append(profile(program, os.path.join(folder, f"{len(runs)}.json")))
                print(f"  round {number}, {policy}, reserve {reserve}: {real['total_s']:.1f} s", file=sys.stderr, flush=True)
        for i, r in enumerate(runs):
            if r["policy"] == AUTO:
                continue
            r["by_profile"] = [replay(program, responses, path, r["policy"], r["reserve"], r["gap_us"]) for path in profiles]
            beside = r["by_profile"][i : i + 2]
            r["simulated"] = {key: sum(s[key] for s in beside) / 2 for key in r["real"]}
    return runs


def print_ratios(runs, policies):
    print(f"{'policy':<10}{'real total, s':>32}{'simulated over real':>32}{'median':>8}{'real tail, s':>32}{'simulated over real':>32}"
          f"{'median':>8}  preemptions, real | simulated")
    for policy in policies:
        found = [r for r in runs if r["policy"] == policy]
        line = f"{policy:<10}"
        for key, digits, width in (("total_s", 1, 32), ("tail_s", 2, 32)):
            ratios = [r["simulated"][key] / r["real"][key] for r in found]
            real = ", ".join(f"{r['real'][key]:.{digits}f}" for r in found)
            line += f"{real:>{width}}{', '.join(f'{x:.2f}' for x in ratios):>32}{median(ratios):>8.2f}"
        print(line + "  " + ", ".join(f"{r['real']['preemptions']} | {r['simulated']['preemptions']:.0f}" for r in found))


def first_of(a, b):
    """In how many of these pairs of seconds a is first, how many there are, by how much b is later in the median, and which of both is
    told apart as the first: 1, -1 or 0."""
    firsts = sum(x < y for x, y in zip(a, b))
    later = median(b) / median(a) - 1
    apart = 1 if firsts == len(a) and later > APART else -1 if firsts == 0 and 1 / (1 + later) - 1 > APART else 0
    return firsts, len(a), later, apart


def print_ranking(runs, policies):
    rounds = sorted({r["round"] for r in runs})
    by = {(r["round"], r["policy"]): r for r in runs}
    for key in FIGURES:
        print(f"\n{'first by ' + key:<22}{'real: in rounds, later by':>28}{'simulated: under profiles, later by':>38}")
        told, same = 0, 0
        for a, b in itertools.combinations(policies, 2):
            real = first_of(*([by[n, policy]["real"][key] for n in rounds] for policy in (a, b)))
            simulated = first_of(*([s[key] for n in rounds for s in by[n, policy]["by_profile"]] for policy in (a, b)))
            line = f"{a + ' before ' + b:<22}"
            for (firsts, count, later, apart), width in ((real, 28), (simulated, 38)):
                line += f"{f'{firsts} of {count}, {later:+.1%}' + ('  apart' if apart else '       '):>{width}}"
            told += real[3] != 0
            same += real[3] != 0 and real[3] == simulated[3]
            print(line + ("  DIFFERS" if real[3] * simulated[3] < 0 else ""))
        print(f"told apart in the runs: {told} pairs, of them in the same order in simulation: {same}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--group-size", type=int, default=8, help="responses to each of the 200 prompts")
    p.add_argument("--policies", default=",".join(POLICIES))
    p.add_argument("--out", help="FILE.json for all runs")
    o = p.parse_args()
    policies = o.policies.split(",")
    runs = measure(o.program, o.rounds, o.group_size, policies)
    replayed = [policy for policy in policies if policy != AUTO]
    print_ratios(runs, replayed)
    for r in runs:
        if r["policy"] == AUTO:
            print(f"{AUTO}, round {r['round']}: total {r['real']['total_s']:.1f} s, tail {r['real']['tail_s']:.2f} s")
    print_ranking(runs, replayed)
    if o.out:
        json.dump(runs, open(o.out, "w"), indent=1)


main()
