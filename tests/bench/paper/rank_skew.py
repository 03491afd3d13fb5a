#!/usr/bin/env python3
"""How uneven are the data-parallel ranks of an instance: the sequences and KV of the busiest rank over their mean.

An instance of Kimi-K2 has 32 ranks, which share no KV. A request is bound to a rank: for good under policies with whole groups,
and for a chunk under the others, which then give it the emptiest rank. Requests have the lengths of the workload; every
sequence gains a token per step; a rank that is full preempts its latest sequence. Averages over the steps with two sequences
per rank at least. The two numbers are `verl-rank-skew` and `rank-skew` of deploy/sim/kimi-k2.toml.

usage: rank_skew.py [--seeds 6]
"""
import argparse, math, random

RANKS, RANK_KV_TOKENS, REQUESTS, GROUP_SIZE, PROMPT_TOKENS = 32, 580_000, 800, 8, 512
MEAN_TOKENS, MAX_TOKENS, SIGMA, ICC, CHUNK_TOKENS = 38959, 98304, 0.85, 0.5, 8192
STEP_TOKENS = 256  # done at once


def draw(rng, mu):
    tokens = []
    for _ in range(REQUESTS // GROUP_SIZE):
        group = rng.gauss(mu, SIGMA * math.sqrt(ICC))
        tokens += [int(min(MAX_TOKENS, max(64, math.exp(group + rng.gauss(0, SIGMA * math.sqrt(1 - ICC)))))) for _ in range(GROUP_SIZE)]
    return tokens


def lengths(seed):
    """Of all requests, with mu such that their mean is right."""
    low, high = 5.0, 14.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(draw(random.Random(seed), middle)) < MEAN_TOKENS * REQUESTS else (low, middle)
    return draw(random.Random(seed), low)


def skew(bound, seed):
    length, done, chunk = lengths(seed), [0] * REQUESTS, [0] * REQUESTS
    running = [[] for _ in range(RANKS)]
    waiting = [[i for i in range(REQUESTS) if i % RANKS == rank] for rank in range(RANKS)] if bound else [list(range(REQUESTS))]
    skews, left = [], REQUESTS
    while left:
        used = [sum(PROMPT_TOKENS + done[i] for i in rank) for rank in running]
        blocked = [False] * len(waiting)
        while not all(blocked):
            for w, queue in enumerate(waiting):
                rank = w if bound else min(range(RANKS), key=used.__getitem__)
                room = STEP_TOKENS if bound else CHUNK_TOKENS
                blocked[w] = not queue or used[rank] + PROMPT_TOKENS + done[queue[0]] + room > RANK_KV_TOKENS
                if not blocked[w]:
                    running[rank].append(queue[0])
                    used[rank] += PROMPT_TOKENS + done[queue[0]]
                    chunk[queue.pop(0)] = 0
        counts = [len(rank) for rank in running]
        if sum(counts) >= 2 * RANKS:
            skews.append((max(used) * RANKS / sum(used), max(counts) * RANKS / sum(counts)))
        for r, rank in enumerate(running):
            goes_on = []
            for i in rank:
                done[i], chunk[i] = min(done[i] + STEP_TOKENS, length[i]), chunk[i] + STEP_TOKENS
                if done[i] == length[i]:
                    left -= 1
                elif not bound and chunk[i] >= CHUNK_TOKENS:
                    waiting[0].insert(0, i)
                else:
                    goes_on.append(i)
            while sum(PROMPT_TOKENS + done[i] for i in goes_on) > RANK_KV_TOKENS:
                waiting[r if bound else 0].insert(0, goes_on.pop())
            running[r] = goes_on
    return [sum(of) / len(skews) for of in zip(*skews)]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seeds", type=int, default=6)
    o = p.parse_args()
    for bound in (True, False):
        found = [skew(bound, seed) for seed in range(o.seeds)]
        kv, count = (sum(f[i] for f in found) / o.seeds for i in range(2))
        print(f"{'bound for good' if bound else 'bound for a chunk':20} KV {kv:.2f}, sequences {count:.2f}")


main()
