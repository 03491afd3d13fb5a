#!/usr/bin/env python3
"""Measures the gain of drafting in `seer rollout` over no drafting, by how many requests an instance runs at once.

Runs each way of drafting in turn with the same work, in rounds: a round is one run of each, another one first each
time, and a ratio compares two runs of one round. The interval is that of the median over rounds (order statistics, the tightest
with at least 95 %; of 9 rounds the 2nd to the 8th; with fewer than 6 rounds lowest to highest). Prints one JSON line per batch and
mode.

  tokens_per_s        median of all rounds
  ratio, low, high    tokens per second over those of the first mode in the same round: median, interval
  cpu_ratio, ...      the same for tokens per second of the process's CPU time: for machines that others use as well
  acceptance_length   tokens gained by a verify, bonus token included; _high, _low: of probes, of others
  drafted_per_verify  draft tokens of a verify
  tree_share          share of drafted tokens that were in trees
  draft_share         share of the instances' time spent making drafts
  drafting_share      share of tokens made while drafts were wanted
  time_ratio          time of those tokens / the time that the draft budget predicted for them (T_SD)

usage: bench_drafting.py SEER_PROGRAM [--batches 1,2,4,8,16,32,64] [--modes "off;own;grouped"] [--rounds 9] [--limit N]
       [--model DIR] [--prompts FILE | --prompt-seed N] [--instances 2] [--policy seer] [--max-tokens 3072]
--prompt-seed makes new prompts of the shipped model's task, none of which is shipped.
A mode is a value of --drafting, followed by further options of `seer rollout`: "off;grouped;grouped --draft-shape path".
"""
import argparse, json, math, os, random, statistics, subprocess, sys, tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
LIMITS = {1: 3, 2: 5, 4: 8, 8: 15, 16: 25, 32: 40}  # prompts: each batch is full for most of some seconds


def rollout(o, folder, batch, mode):
    report = os.path.join(folder, "report.json")
    drafting, *more = mode.split()
    done = subprocess.run([o.program, "rollout", "--model", o.model, "--prompts", o.prompts, "--limit",
                           str(o.limit or LIMITS.get(batch, 50)), "--instances", str(o.instances), "--max-tokens",
                           str(o.max_tokens), "--max-batch", str(batch), "--policy", o.policy, "--drafting", drafting, *more,
                           "--out", os.path.join(folder, "out.jsonl"), "--report", report],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.load(open(report))


def make_prompts(seed, count, path):
    """Writes prompts of the shipped model's task."""
    sys.path.insert(0, os.path.join(ROOT, "deploy/examples/scratchpad"))
    import task
    shipped = {line["prompt"] for line in task.read_prompts(os.path.join(ROOT, "deploy/examples/scratchpad/prompts.jsonl"))}
    rng, prompts = random.Random(seed), []
    while len(prompts) < count:
        prompt = task.prompt_text(task.make_terms(rng))
        if prompt not in shipped:
            prompts.append(prompt)
    with open(path, "w") as file:
        file.writelines(json.dumps({"id": f"new-{i}", "prompt": prompt}) + "\n" for i, prompt in enumerate(prompts))


def interval(values):
    """Median, and the order statistics around it that hold the true median with at least 95 %."""
    values, n = sorted(values), len(values)
    covered = lambda k: 1 - 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2 ** n
    k = max((k for k in range((n + 1) // 2) if covered(k) >= 0.95), default=0)
    return {"median": statistics.median(values), "low": values[k], "high": values[n - 1 - k]}


def figures(o, batch, mode, runs, base):
    per_s = lambda run: run["tokens_per_s"]
    per_cpu_s = lambda run: run["output_tokens"] / run["cpu_total_s"]
    mean = lambda get: statistics.fmean(get(run) for run in runs)
    ratio = interval([per_s(run) / per_s(other) for run, other in zip(runs, base)])
    cpu = interval([per_cpu_s(run) / per_cpu_s(other) for run, other in zip(runs, base)])
    row = {"batch": batch, "mode": mode, "rounds": len(runs), "tokens_per_s": statistics.median(map(per_s, runs)),
           "ratio": ratio["median"], "low": ratio["low"], "high": ratio["high"],
           "cpu_ratio": cpu["median"], "cpu_low": cpu["low"], "cpu_high": cpu["high"]}
    if mode.split()[0] == "off":
        return row
    total = lambda *names: sum(drill(run, names) for run in runs)
    drafted, verifies = total("drafted_tokens"), total("verifies")
    on, off = total("drafting", "drafting_steps", "tokens"), total("drafting", "plain_steps", "tokens")
    predicted = total("drafting", "drafting_steps", "predicted_s")
    length = lambda *names: 1 + total(*names, "accepted_tokens") / max(1, total(*names, "verifies"))
    return row | {"acceptance_length": length(), "acceptance_length_high": length("drafting", "high"),
                  "acceptance_length_low": length("drafting", "low"), "drafted_per_verify": drafted / max(1, verifies),
                  "tree_share": total("drafting", "tree", "drafted_tokens") / max(1, drafted),
                  "draft_share": mean(lambda run: run["drafting"]["draft_share"]), "drafting_share": on / max(1, on + off),
                  "time_ratio": total("drafting", "drafting_steps", "s") / predicted if predicted > 0 else None}


def drill(run, names):
    for name in names:
        run = run[name]
    return run


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("--batches", default="1,2,4,8,16,32,64", type=lambda text: [int(b) for b in text.split(",")])
    p.add_argument("--modes", default="off;own;grouped", type=lambda text: text.split(";"))
    p.add_argument("--rounds", default=9, type=int)
    p.add_argument("--limit", default=0, type=int)
    p.add_argument("--model", default=os.path.join(ROOT, "deploy/models/scratchpad-1m8"))
    p.add_argument("--prompts", default=os.path.join(ROOT, "deploy/examples/scratchpad/prompts.jsonl"))
    p.add_argument("--prompt-seed", default=0, type=int)
    p.add_argument("--instances", default=2, type=int)
    p.add_argument("--policy", default="seer")
    p.add_argument("--max-tokens", default=3072, type=int)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if o.prompt_seed:
            o.prompts = os.path.join(folder, "prompts.jsonl")
            make_prompts(o.prompt_seed, 200, o.prompts)
        for batch in o.batches:
            runs = {mode: [] for mode in o.modes}
            for i in range(o.rounds):
                first = i % len(o.modes)
                for mode in o.modes[first:] + o.modes[:first]:
                    runs[mode].append(rollout(o, folder, batch, mode))
            for mode in o.modes:
                row = figures(o, batch, mode, runs[mode], runs[o.modes[0]])
                print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)


if __name__ == "__main__":
    main()
