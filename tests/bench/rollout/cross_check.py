#!/usr/bin/env python3
"""`seer simulate` beside `seer rollout`: the shipped prompts run for real on two CPU instances, and are replayed in simulation
with the lengths of the run and with profiles of such an instance, taken while the other instance does the same steps.

The speed of a machine drifts: each run stands between two profiles, and counts as replayed in the mean of what the two say. A
profile has the time of the engine alone; what passes between two steps is taken from the run before, not from the one that is
replayed. Printed per policy: seconds of the runs, simulated over real (total and tail, the last 10 % of the requests), and preemptions.

usage: cross_check.py SEER_PROGRAM --rounds 3 --out cross_check.json
"""
import argparse, json, os, subprocess, sys, tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
POLICIES = ["divided", "seer", "seer+", "verl"]
CHUNK_TOKENS, KV_MIB, KV_TOKENS = 512, 96, 49152  # of an instance; 2 KiB of KV per token of the shipped model


def seer(program, *arguments):
    done = subprocess.run([program, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"cross_check: {' '.join(map(str, arguments))}: {done.stderr}")


def profile(program, model, path):
    seer(program, "profile", "--model", model, "--instances", 2, "--quick", "--rows-max", 256, "--context-max", 4096, "--out", path)


def run(program, model, prompts, group_size, policy, folder):
    out, report = os.path.join(folder, "responses.jsonl"), os.path.join(folder, "report.json")
    seer(program, "rollout", "--model", model, "--prompts", prompts, "--instances", 2, "--policy", policy, "--group-size", group_size,
         "--kv-bytes", f"{KV_MIB}MiB", "--chunk-tokens", CHUNK_TOKENS, "--max-batch", 256, "--out", out, "--report", report)
    found = json.load(open(report))
    gap_us = min(round(1e6 * i["idle_s"] / i["steps"]) for i in found["instances"])  # the other one may have waited for its end
    return out, {"total_s": found["wall_s"], "tail_s": found["tail_s"], "preemptions": found["preemptions"]}, gap_us


def replay(program, responses, profile_path, policy, gap_us, folder):
    report = os.path.join(folder, "simulated.json")
    seer(program, "simulate", "--workload", responses, "--profile", profile_path, "--instances", 2, "--kv-tokens", KV_TOKENS,
         "--chunk-tokens", CHUNK_TOKENS, "--policies", policy, "--step-gap-us", gap_us, "--report", report)
    (row,) = json.load(open(report))
    return {key: row[key]["mean"] for key in ("total_s", "tail_s", "preemptions")}


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--group-size", type=int, default=8, help="responses to each of the 200 prompts")
    p.add_argument("--policies", default=",".join(POLICIES))
    p.add_argument("--out", help="FILE.json for all runs")
    o = p.parse_args()
    model = os.path.join(ROOT, "deploy/models/scratchpad-1m8")
    prompts = os.path.join(ROOT, "deploy/examples/scratchpad/prompts.jsonl")
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        before, after = os.path.join(folder, "before.json"), os.path.join(folder, "after.json")
        profile(o.program, model, after)
        _, _, gap_us = run(o.program, model, prompts, o.group_size, o.policies.split(",")[0], folder)
        for number in range(o.rounds):
            for policy in o.policies.split(","):
                os.replace(after, before)
                responses, real, next_gap_us = run(o.program, model, prompts, o.group_size, policy, folder)
                profile(o.program, model, after)
                simulated = [replay(o.program, responses, path, policy, gap_us, folder) for path in (before, after)]
                mean = {key: sum(s[key] for s in simulated) / len(simulated) for key in real}
                runs.append({"round": number, "policy": policy, "gap_us": gap_us, "real": real, "simulated": mean, "by_profile": simulated})
                gap_us = next_gap_us
                print(f"  {policy}: {real['total_s']:.1f} s, simulated {simulated[0]['total_s']:.1f} and {simulated[1]['total_s']:.1f}",
                      file=sys.stderr, flush=True)
    print(f"{'policy':<10}{'real total, s':>24}{'simulated over real':>24}{'median':>8}{'real tail, s':>20}{'simulated over real':>24}"
          f"{'median':>8}  preemptions, real | simulated")
    for policy in o.policies.split(","):
        found = [r for r in runs if r["policy"] == policy]
        line = f"{policy:<10}"
        for key, digits, width in (("total_s", 1, 24), ("tail_s", 2, 20)):
            ratios = [r["simulated"][key] / r["real"][key] for r in found]
            real = ", ".join(f"{r['real'][key]:.{digits}f}" for r in found)
            line += f"{real:>{width}}{', '.join(f'{x:.2f}' for x in ratios):>24}{median(ratios):>8.2f}"
        print(line + "  " + ", ".join(f"{r['real']['preemptions']} | {r['simulated']['preemptions']:.0f}" for r in found))
    if o.out:
        json.dump(runs, open(o.out, "w"), indent=1)


main()
