#!/usr/bin/python3
"""Trains the scratchpad model from nothing on worked sums that it makes up itself. CPU, torch only.

What keeps this cheap:
 * loss on the response only, and not on the slips that a demonstration contains;
 * rows of like length share a batch under a budget of tokens, so little is padding;
 * a long example is mostly cut to its prompt and a run of whole lines at their TRUE positions, so that the whole
   range of positions is trained at the price of short rows;
 * Muon for the matrices of the layers: the loss falls below 0.1 within 400 steps of at most 4 096 tokens;
 * one single-threaded process per core: torch's own threads gain little on matrices this small.

Everything depends on the step and never on the clock, so a seed and a number of workers give one model (on one kind
of CPU: other kernels round differently).
"""
import argparse
import math
import multiprocessing
import os
import random
import time

from model import Model  # before torch, see there
import torch
import torch.nn.functional as F

import task

HERE = os.path.dirname(os.path.abspath(__file__))


# ---- Rows ------------------------------------------------------------------------------------------------------

def blocks_of(lines, tokenizer):
    """Lines as (ids, mask), each check, ok or no joined to the sum before it: the next line looks back past it."""
    blocks = []
    for line in lines:
        ids, mask = [], []
        for text, learn in line:
            piece = tokenizer.encode(text)
            ids += piece
            mask += [int(learn)] * len(piece)
        if len(blocks) > 1 and line[0][0] in ("check\n", "ok\n", "no\n"):
            blocks[-1] = (blocks[-1][0] + ids, blocks[-1][1] + mask)
        else:
            blocks.append((ids, mask))
    blocks[-1] = (blocks[-1][0] + [tokenizer.eos], blocks[-1][1] + [1])
    return blocks


def make_row(rng, tokenizer, held_out, args, max_terms, drills, whole):
    """Returns (ids, positions, mask). drills: the share of list drills; whole: the share of long rows left uncut."""
    while True:
        terms = task.make_terms(rng, max_terms)
        if task.prompt_text(terms) not in held_out:
            break
    drill = rng.random() < drills
    prompt = tokenizer.encode(task.prompt_text(terms, "list" if drill else "sum"))
    blocks = blocks_of(task.list_drill(terms) if drill else task.demonstrate(rng, terms), tokenizer)
    row_tokens = len(prompt) + sum(len(ids) for ids, _ in blocks)
    start, end = 1, len(blocks)
    if row_tokens > args.window and rng.random() >= whole:
        # Keep the prompt, the plan and as many blocks as fit from a random start. The first kept block is context
        # only, unless it is the real first: what precedes it is missing.
        start = end = rng.randrange(1, len(blocks) - 1)
        used = len(prompt) + len(blocks[0][0])
        while end < len(blocks) and (end < start + 2 or used + len(blocks[end][0]) <= args.window):
            used += len(blocks[end][0])
            end += 1
    ids, mask = prompt + blocks[0][0], [0] * len(prompt) + blocks[0][1]
    positions = list(range(len(ids)))
    at = len(ids) + sum(len(skipped) for skipped, _ in blocks[1:start])
    for i in range(start, end):
        block, learn = blocks[i]
        ids = ids + block
        mask = mask + (learn if i > start or start == 1 else [0] * len(block))
        positions += range(at, at + len(block))
        at += len(block)
    return ids, positions, mask


def batches(rng, make, batch_tokens, pool_rows=256):
    """Pools of rows, sorted by length, cut into batches under the budget of tokens, in random order."""
    while True:
        pool = sorted((make() for _ in range(pool_rows)), key=lambda row: len(row[0]))
        cut = [[]]
        for row in pool:
            if cut[-1] and len(row[0]) * (len(cut[-1]) + 1) > batch_tokens:
                cut.append([])
            cut[-1].append(row)
        rng.shuffle(cut)
        yield from cut


def collate(rows, pad):
    longest = max(len(row[0]) for row in rows)

    def padded(k, filler):
        return torch.tensor([list(row[k]) + [filler] * (longest - len(row[k])) for row in rows])
    return padded(0, pad), padded(1, 0), padded(2, 0).bool()


# ---- Optimizer -------------------------------------------------------------------------------------------------

class Muon:
    """Momentum whose update is brought near the closest orthogonal matrix (https://kellerjordan.github.io/posts/muon).
    For the matrices inside the layers; embeddings and norm weights are AdamW's."""

    def __init__(self, parameters, weight_decay=0.01, momentum=0.95):
        self.parameters, self.weight_decay, self.momentum = list(parameters), weight_decay, momentum
        self.velocity = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, lr):
        for p, v in zip(self.parameters, self.velocity):
            v.lerp_(p.grad, 1 - self.momentum)
            update = orthogonal(p.grad.lerp(v, self.momentum))  # Nesterov's look ahead
            p.mul_(1 - lr * self.weight_decay)
            p.add_(update, alpha=-lr * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(m, steps=5):
    """Newton-Schulz with the usual quintic: singular values end near 1, which is near enough."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m.t() if m.shape[0] > m.shape[1] else m
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        g = x @ x.t()
        x = a * x + (b * g + c * (g @ g)) @ x
    return x.t() if m.shape[0] > m.shape[1] else x


# ---- Training --------------------------------------------------------------------------------------------------
# The workers share the parameters. In a step each computes the gradient of its own batch, writes it where all can
# read, waits, and then updates its own share of the parameters with the mean of all gradients.

def train(rank, args, model, shared_grads, barrier):
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rng, tokenizer = random.Random(f"{args.seed} {rank}"), task.Tokenizer()
    held_out = {p["prompt"] for p in task.read_prompts(args.held_out)}
    parameters = list(model.parameters())
    mine = list(range(rank, len(parameters), args.workers))
    embedding = model.embed_tokens.weight
    is_matrix = [p.dim() == 2 and p is not embedding for p in parameters]
    muon = Muon(parameters[i] for i in mine if is_matrix[i])
    plain = [parameters[i] for i in mine if not is_matrix[i]]
    adamw = torch.optim.AdamW(plain, lr=args.lr_adamw, betas=(0.9, 0.98), weight_decay=0.0)
    done = 0.0  # share of the steps

    def make():
        # The curriculum: the longest sum grows to its full size, and whole long rows come late, for they are dear.
        max_terms = 4 + int((task.MAX_TERMS - 4) * min(1.0, done / args.grow))
        drills = args.drills if done < 0.4 else 0.1 * args.drills
        return make_row(rng, tokenizer, held_out, args, max_terms, drills, args.whole * done)

    begun, seen_tokens, losses = time.time(), 0, []
    for step, rows in zip(range(args.steps), batches(rng, make, args.tokens)):
        done = step / args.steps
        ids, positions, mask = collate(rows, tokenizer.pad)
        want = mask[:, 1:]
        logits = model(ids[:, :-1], positions[:, :-1], select=want)
        loss = F.cross_entropy(logits, ids[:, 1:][want])
        for p in parameters:
            p.grad = None
        loss.backward()
        for p, grad in zip(parameters, shared_grads[rank]):
            grad.copy_(p.grad)
        barrier.wait()  # every gradient is written
        for i in mine:
            parameters[i].grad = torch.stack([grads[i] for grads in shared_grads]).mean(0)
        shape = min(1.0, (step + 1) / args.warmup, (1 - done) / args.cooldown)  # up, level, and down to 0
        muon.step(args.lr * shape)
        for group in adamw.param_groups:
            group["lr"] = args.lr_adamw * shape
        adamw.step()
        barrier.wait()  # every parameter is updated
        seen_tokens += ids.numel()
        losses.append(loss.item())
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {sum(losses) / len(losses):.4f} {time.time() - begun:.0f} s "
                  f"cpu {time.process_time():.0f} s {args.workers * seen_tokens / (time.time() - begun):.0f} tokens/s",
                  flush=True)
            losses = []
        if rank == 0 and (step + 1) % 200 == 0:
            model.save(args.out, tokenizer)
    if rank == 0:
        model.save(args.out, tokenizer)
        print(f"saved {args.out} after {args.steps} steps, about {args.workers * seen_tokens:,} tokens, "
              f"{time.time() - begun:.0f} s, {time.process_time():.0f} s of CPU time in each of {args.workers} workers")


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", default="scratchpad-model", help="folder for the model")
    ap.add_argument("--held-out", default=os.path.join(HERE, "prompts.jsonl"), help="prompts never trained on")
    ap.add_argument("--steps", type=int, default=700)
    ap.add_argument("--workers", type=int, default=2, help="processes, one per core")
    ap.add_argument("--tokens", type=int, default=2048, help="tokens per batch of one worker")
    ap.add_argument("--window", type=int, default=320, help="tokens that a longer row is cut to")
    ap.add_argument("--lr", type=float, default=0.02, help="of Muon")
    ap.add_argument("--lr-adamw", type=float, default=3e-3)
    ap.add_argument("--warmup", type=int, default=50, help="steps")
    ap.add_argument("--cooldown", type=float, default=0.5, help="share of the steps over which the rates fall")
    ap.add_argument("--grow", type=float, default=0.25, help="share of the steps over which sums grow")
    ap.add_argument("--drills", type=float, default=0.4, help="share of list drills at first")
    ap.add_argument("--whole", type=float, default=0.3, help="share of long rows left whole at the end")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    model = Model(task.Tokenizer().size).share_memory()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    shared_grads = [[torch.zeros_like(p).share_memory_() for p in model.parameters()] for _ in range(args.workers)]
    fork = multiprocessing.get_context("fork")  # children inherit the shared tensors as they are
    barrier = fork.Barrier(args.workers, timeout=600)
    others = [fork.Process(target=train, args=(rank, args, model, shared_grads, barrier), daemon=True)
              for rank in range(1, args.workers)]
    for other in others:
        other.start()
    train(0, args, model, shared_grads, barrier)
    for other in others:
        other.join()


if __name__ == "__main__":
    main()
