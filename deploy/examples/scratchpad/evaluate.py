#!/usr/bin/python3
"""Samples a group of responses per prompt from a model folder, or reads what `seer rollout` wrote, and reports accuracy
and lengths.

length_icc is the share of the variance of log length that lies between prompts: one-way random effects over groups
of equal size, var_between / (var_between + var_within). Near 1, a sibling's length foretells a response's own.
"""
import argparse
import json
import math
import multiprocessing
import os
import statistics
import time

import task
from reward import reward

HERE = os.path.dirname(os.path.abspath(__file__))


def length_icc(groups):
    """groups: lists of lengths, all of one size of at least 2."""
    logs = [[math.log(length) for length in lengths] for lengths in groups]
    if len(logs) < 2 or min(map(len, logs)) < 2:
        return math.nan, math.nan, math.nan
    within = statistics.mean(statistics.variance(g) for g in logs)
    between = max(0.0, statistics.variance([statistics.mean(g) for g in logs]) - within / len(logs[0]))
    return (between / (between + within) if between + within > 0 else math.nan), between, within


def quantiles(values):
    values = sorted(values)
    return " ".join(f"p{round(100 * q)} {values[min(len(values) - 1, int(q * len(values)))]:.0f}"
                    for q in (0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1))


def sample_groups(prompts, tokenizer, args):
    """Returns lists of response ids, in the order of the prompts. Prompts of like size share a batch, and each batch
    has its own generator: the number of workers does not change what is sampled."""
    from model import Model, generate  # torch is needed for sampling only; before torch, see there
    import torch
    model = Model.load(args.model)
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]["prompt"]))
    per_batch = max(1, args.batch // args.group)
    parts = [order[start:start + per_batch] for start in range(0, len(order), per_batch)]

    def work(rank, queue):
        torch.set_num_threads(1)
        for number in range(rank, len(parts), args.workers):
            ids = [tokenizer.encode(prompts[i]["prompt"]) for i in parts[number] for _ in range(args.group)]
            rng = torch.Generator().manual_seed(1000 * args.seed + number)
            queue.put((number, generate(model, ids, args.max_new, tokenizer.eos, rng, args.temperature)))

    fork = multiprocessing.get_context("fork")  # children inherit the model and the prompts as they are
    queue = fork.Queue()
    for rank in range(args.workers):
        fork.Process(target=work, args=(rank, queue), daemon=True).start()
    groups, begun, made = {}, time.time(), 0
    for _ in parts:
        number, responses = queue.get(timeout=3600)
        for k, i in enumerate(parts[number]):
            groups[i] = responses[k * args.group:(k + 1) * args.group]
        made += sum(map(len, responses))
        print(f"{len(groups)}/{len(order)} prompts, {made} tokens, {made / (time.time() - begun):.0f} tokens/s",
              flush=True)
    return [groups[i] for i in range(len(prompts))]


def read_groups(path, count):
    """Groups of the first `count` prompts from the JSON lines of `seer rollout --out`."""
    groups = [{} for _ in range(count)]
    for number, line in enumerate(open(path, encoding="utf-8"), 1):
        response = json.loads(line)
        if not {"group", "sample", "output_ids"} <= response.keys():
            raise SystemExit(f"{path}:{number}: expected a line that `seer rollout --out` wrote, with group, sample and output_ids")
        if response["group"] < count and response["output_ids"]:
            groups[response["group"]][response["sample"]] = response["output_ids"]
    return [[group[k] for k in sorted(group)] for group in groups]


def report(prompts, groups, tokenizer):
    rewards = [[reward(tokenizer.decode(r), p["answer"]) for r in g] for p, g in zip(prompts, groups)]
    lengths = [[len(r) for r in g] for g in groups]
    flat = [(g[0], w, n) for group, ws, ns in zip(groups, rewards, lengths) for g, w, n in zip(group, ws, ns)]
    means = [statistics.mean(ws) for ws in rewards]
    print(f"right: {statistics.mean(means):.3f} of {len(flat)} responses; groups all right "
          f"{statistics.mean(m == 1 for m in means):.3f}, all wrong {statistics.mean(m == 0 for m in means):.3f}")
    for low, high in ((2, 3), (4, 7), (8, 13), (14, 20)):
        some = [m for m, p in zip(means, prompts) if low <= p["terms"] <= high]
        if some:
            print(f"  {low}-{high} terms: {statistics.mean(some):.3f} ({len(some)} prompts)")
    for plan in task.PLANS:
        some = [(w, n) for first, w, n in flat if first == tokenizer.vocab[plan]]
        if some:
            print(f"  {plan}: {statistics.mean(w for w, _ in some):.3f} right, share {len(some) / len(flat):.3f}, "
                  f"mean length {statistics.mean(n for _, n in some):.0f}")
    print("mean length over prompts: " + quantiles([statistics.mean(ns) for ns in lengths]))
    print("length over responses:    " + quantiles([n for _, _, n in flat]) +
          f" mean {statistics.mean(n for _, _, n in flat):.0f}")
    print(f"cut off: {sum(r[-1] != tokenizer.eos for g in groups for r in g)}")
    icc, between, within = length_icc(lengths)
    print(f"length_icc: {icc:.3f} (standard deviation of log length: {between ** 0.5:.2f} between prompts, "
          f"{within ** 0.5:.2f} within)")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--model", default=os.path.join(HERE, "../../models/scratchpad-1m8"))
    ap.add_argument("--prompts", default=os.path.join(HERE, "prompts.jsonl"))
    ap.add_argument("--first", type=int, help="only so many prompts, from the first on")
    ap.add_argument("--group", type=int, default=8, help="responses per prompt, at least 2")
    ap.add_argument("--batch", type=int, default=96, help="responses decoded together")
    ap.add_argument("--max-new", type=int, default=3072)
    ap.add_argument("--temperature", type=float, default=1.0)
    ap.add_argument("--workers", type=int, default=2, help="processes, one per core")
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--responses", help="JSON lines of `seer rollout --out` to judge; nothing is sampled then")
    ap.add_argument("--dump", help="write the responses there, as JSON lines that reward.py reads")
    args = ap.parse_args()
    prompts, tokenizer = task.read_prompts(args.prompts)[:args.first], task.Tokenizer()
    if args.responses:
        groups = read_groups(args.responses, len(prompts))
        some = [i for i, group in enumerate(groups) if group]  # a rollout may have had fewer prompts
        if not some:
            raise SystemExit(f"{args.responses} has no response to any of the {len(prompts)} prompts")
        return report([prompts[i] for i in some], [groups[i] for i in some], tokenizer)
    groups = sample_groups(prompts, tokenizer, args)
    report(prompts, groups, tokenizer)
    if args.dump:
        with open(args.dump, "w", encoding="utf-8") as f:
            for i, (prompt, group) in enumerate(zip(prompts, groups)):
                for k, response in enumerate(group):
                    f.write(json.dumps({"group": i, "sample": k, "text": tokenizer.decode(response), **prompt}) + "\n")


if __name__ == "__main__":
    main()
