#!/usr/bin/python3
"""GRPO on the scratchpad model, with rollouts from `seer serve`: a whole training loop in one file, for CPUs.

Each step asks the server for a group of responses per prompt, rewards each response as it comes while the others are still
generated, takes one or more clipped policy-gradient updates, writes the weights to a folder (or sends them: --weights memory), and
has the server load them as the next version. With several policies there is a server for each; all roll out the same requests, and every token and
log-probability must be the same.

What is checked in every step, and ends the run if it is not so:
 * each response was made with the weight version of the step;
 * the server's log-probabilities are within --logprob-diff of the trainer's own: the two round differently;
 * all policies give the same responses, bit by bit.
"""
import argparse
import asyncio
import concurrent.futures
import contextlib
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "../../.."))
sys.path[:0] = [os.path.join(HERE, "../scratchpad"), os.path.join(ROOT, "deploy/client")]

try:
    from model import Model  # before torch, see there
    import torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    sys.exit("grpo: no torch for " + sys.executable + ": install it (Debian, Ubuntu: apt-get install python3-torch libopenblas0-pthread) "
             "and use the Python that has it (/usr/bin/python3)")
import task  # noqa: E402
from reward import reward  # noqa: E402
from seer_client import AsyncClient, SeerError  # noqa: E402
from train_sft import collate  # noqa: E402

SLOW_GFLOPS = 15  # the reference BLAS reaches about 6 on a core, OpenBLAS 40 to 150
PARTS = 2  # shares of a step's work, for so many threads; their sums are added in one order, whatever the threads


def fail(sentence):
    sys.exit(f"grpo: {sentence}")


# ---- The server ------------------------------------------------------------------------------------------------

class Server:
    """A `seer serve` with one policy: one that this script starts and stops, or one that runs at `url`."""

    def __init__(self, args, policy):
        self.policy, self.process, self.address = policy, None, args.url

    def start(self, args):
        """stop() is needed after it, whether it fails or not."""
        command = [args.seer, "serve", "--model", args.model, "--listen", "127.0.0.1:0", "--policy", self.policy, "--seed", str(args.seed),
                   *shlex.split(args.server_options)]
        log_path = os.path.join(args.out, f"server-{self.policy}.log")
        with open(log_path, "w", encoding="utf-8") as log:
            try:
                self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            except OSError as error:
                fail(f"cannot start {args.seer}: {error.strerror}: expected the program seer; build it, or name it with --seer")
        line = self.process.stdout.readline()
        ready = re.match(r"seer serves .* at http://(\S+)$", line)
        if not ready:
            self.stop()
            with open(log_path, encoding="utf-8") as log:
                fail(f"seer serve did not start: {log.read().strip() or line!r}")
        self.address = ready[1]

    async def connect(self):
        self.client = AsyncClient(self.address)
        self.version = int(await self.client.weight_version())

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=90)  # the server waits up to 60 s for requests that run
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


# ---- Rollout and reward ----------------------------------------------------------------------------------------

def make_prompts(rng, args):
    """New sums for each step: what is measured in training was never trained on."""
    prompts = []
    for _ in range(args.groups):
        count, digits = rng.randint(*args.terms), rng.randint(1, 3)
        terms = [rng.randint(10 ** (digits - 1), 10 ** digits - 1) for _ in range(count)]
        prompts.append(dict(prompt=task.prompt_text(terms), answer=sum(terms)))
    return prompts


async def roll_out(client, prompts, group_size, sampling, first_seed, tokenizer):
    """Returns ([group][index] of (response, reward), times). All groups are sent at once; a response is rewarded when it comes."""
    begun = time.perf_counter()
    groups = [client.generate_group(input_ids=tokenizer.encode(p["prompt"]), n=group_size,
                                    sampling={**sampling, "sampling_seed": first_seed + g * group_size})
              for g, p in enumerate(prompts)]
    found = [[None] * group_size for _ in prompts]
    arrivals, reward_s = [], []

    async def take(g):
        async for response in groups[g]:
            came = time.perf_counter()
            found[g][response.index] = (response, reward(tokenizer.decode(response.tokens), prompts[g]["answer"]))
            arrivals.append(came)
            reward_s.append(time.perf_counter() - came)
    try:
        await asyncio.gather(*map(take, range(len(prompts))))
    finally:
        for group in groups:
            await group.close()
    last = max(arrivals)
    return found, dict(rollout_s=last - begun, reward_s=sum(reward_s), reward_after_rollout_s=time.perf_counter() - last,
                       rewarded_during_rollout=sum(came + took < last for came, took in zip(arrivals, reward_s)))


def digest_of(found):
    """The exact part of a rollout: tokens, log-probabilities and seeds, in the order of the requests."""
    exact = [[(r.seed, r.tokens, r.logprobs, r.finish_reason) for r, _ in group] for group in found]
    return hashlib.sha256(json.dumps(exact).encode()).hexdigest()[:16]


# ---- Training --------------------------------------------------------------------------------------------------

def advantages(rewards):
    """Of a group: rewards, less their mean, in units of their standard deviation; 0 where all are equal."""
    mean, deviation = statistics.mean(rewards), statistics.pstdev(rewards)
    return [(r - mean) / (deviation + 1e-6) for r in rewards]


def cut_batches(rows, tokens_max):
    """Rows of like length share a batch of at most so many tokens with padding (a longer row has one of its own)."""
    batches = []
    for row in sorted(rows, key=lambda row: -len(row["ids"])):
        if not batches or len(batches[-1][0]["ids"]) * (len(batches[-1]) + 1) > tokens_max:
            batches.append([])
        batches[-1].append(row)
    return batches


def say_if_torch_is_slow():
    """Debian's torch takes whatever BLAS is installed. With the reference one a step trains for minutes instead of seconds."""
    matrix = torch.ones(512, 512)
    begin = time.monotonic()
    matrix @ matrix
    gflops = 2 * 512**3 / (time.monotonic() - begin) / 1e9
    if gflops < SLOW_GFLOPS:
        print(f"grpo: torch multiplies matrices at only {gflops:.1f} GFLOP/s: is an optimised BLAS installed (Debian, Ubuntu: apt-get install "
              "libopenblas0-pthread)?", file=sys.stderr)


def prepare_thread():
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # probabilities near 0 are many, and denormal numbers are slow


class Trainer:
    """Weights in fp32 for the optimizer, and rounded to bf16 for all that is computed: the server has the rounded ones.

    The gradient at the rounded weights is applied to the fp32 ones. Each part of the work has a copy of the model, which shares the
    rounded weights and has gradients of its own.
    """

    def __init__(self, args, tokenizer):
        self.args, self.tokenizer = args, tokenizer
        self.model = Model.load(args.model)
        self.master = [p.detach().clone().requires_grad_() for p in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(self.master, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.parts = [self.model] + [Model(tokenizer.size, self.model.config) for _ in range(PARTS - 1)]
        for part in self.parts[1:]:
            for p, shared in zip(part.parameters(), self.model.parameters()):
                p.data = shared.data
        self.threads = concurrent.futures.ThreadPoolExecutor(args.threads, initializer=prepare_thread)

    def logprobs_of(self, part, batch):
        """The model's log-probabilities of the response tokens of all rows, one after the other."""
        ids, positions, mask = collate([(r["ids"], range(len(r["ids"])), r["mask"]) for r in batch], self.tokenizer.pad)
        want = mask[:, 1:]
        logits = part(ids[:, :-1], positions[:, :-1], select=want)
        return logits.log_softmax(-1).gather(-1, ids[:, 1:][want][:, None])[:, 0]

    def loss_of(self, part, batch, tokens):
        """GRPO's clipped objective, per token, as this batch's share of a mean over `tokens`; how many tokens were clipped; and how
        far the server's log-probabilities are from these."""
        logprobs = self.logprobs_of(part, batch)
        old = old_logprobs(batch)
        advantage = torch.cat([torch.full((len(r["logprobs"]),), r["advantage"]) for r in batch])
        ratio = (logprobs - old).exp()
        clipped = ratio.clamp(1 - self.args.clip, 1 + self.args.clip)
        count = ((ratio * advantage) > (clipped * advantage)).sum().item()
        return -torch.minimum(ratio * advantage, clipped * advantage).sum() / tokens, count, (logprobs.detach() - old).abs()

    def run(self, rows, work):
        """Calls work(part, batch) for all batches, those of one part one after the other."""
        batches = cut_batches(rows, self.args.batch_tokens)

        def share(k):
            return [work(self.parts[k], batch) for batch in batches[k::PARTS]]
        return [result for results in self.threads.map(share, range(PARTS)) for result in results]

    def update(self, rows):
        """One step of the optimizer. Rows whose advantage is 0 have no gradient, but are counted in the mean and compared. Returns
        its figures, and the differences between the server's log-probabilities and those before the step, for all tokens."""
        tokens = sum(len(r["logprobs"]) for r in rows)
        silent = [r for r in rows if r["advantage"] == 0]
        for part in self.parts:
            part.zero_grad(set_to_none=True)

        def learn(part, batch):
            loss, clipped, differences = self.loss_of(part, batch, tokens)
            loss.backward()
            return loss.item(), clipped, differences

        def compare(part, batch):
            with torch.no_grad():  # which holds for one thread only
                return (self.logprobs_of(part, batch) - old_logprobs(batch)).abs()
        learned = self.run([r for r in rows if r["advantage"] != 0], learn)
        differences = torch.cat([found for _, _, found in learned] + self.run(silent, compare))
        stats = dict(loss=sum(loss for loss, _, _ in learned), clip_share=sum(clipped for _, clipped, _ in learned) / tokens,
                     gradient_norm=0.0)
        if learned:
            for p, *grads in zip(self.master, *([p.grad for p in part.parameters()] for part in self.parts)):
                grads = [g for g in grads if g is not None]
                p.grad = torch.stack(grads).sum(0)
            stats["gradient_norm"] = torch.nn.utils.clip_grad_norm_(self.master, self.args.gradient_norm).item()
            self.optimizer.step()
            with torch.no_grad():
                for p, rounded in zip(self.master, self.model.parameters()):
                    rounded.copy_(p.bfloat16())
        return stats, differences

    def save(self, folder):
        self.model.save(folder, self.tokenizer)

    def digest(self):
        state = b"".join(p.detach().numpy().tobytes() for p in self.master)
        return hashlib.sha256(state).hexdigest()[:16]


def old_logprobs(batch):
    """The server's: those of the policy that sampled."""
    return torch.cat([torch.tensor(r["logprobs"]) for r in batch])


def rows_of(prompts, found, tokenizer):
    rows = []
    for prompt, group in zip(prompts, found):
        ids = tokenizer.encode(prompt["prompt"])
        for (response, _), advantage in zip(group, advantages([value for _, value in group])):
            rows.append(dict(ids=ids + response.tokens, mask=[0] * len(ids) + [1] * len(response.tokens), logprobs=response.logprobs,
                             advantage=advantage))
    return rows


# ---- The loop --------------------------------------------------------------------------------------------------

async def roll_out_everywhere(servers, step, prompts, sampling, first_seed, args, tokenizer):
    """The same requests at each server, one server after the other, starting with another one in each step."""
    order = servers[step % len(servers):] + servers[:step % len(servers)]
    by_policy = {}
    for server in order:
        found, times = await roll_out(server.client, prompts, args.group_size, sampling, first_seed, tokenizer)
        for g, group in enumerate(found):
            for response, _ in group:
                if response.is_aborted:
                    fail(f"step {step}: policy {server.policy}: response {response.index} of group {g} was aborted by someone else")
                if response.weight_version != str(server.version):
                    fail(f"step {step}: policy {server.policy}: response {response.index} of group {g} has weight version "
                         f"{response.weight_version}: expected {server.version}")
        by_policy[server.policy] = (found, times, digest_of(found))
    first = by_policy[servers[0].policy]
    for server in servers[1:]:
        if by_policy[server.policy][2] != first[2]:
            fail(f"step {step}: the responses of policy {server.policy} have digest {by_policy[server.policy][2]}: expected "
                 f"{first[2]}, as with policy {servers[0].policy}")
    return first[0], first[2], {policy: times for policy, (_, times, _) in by_policy.items()}


async def measure_held_out(servers, args, tokenizer):
    """Mean reward on the first prompts of prompts.jsonl, which nothing is trained on; the same seeds each time."""
    prompts = task.read_prompts(os.path.join(HERE, "../scratchpad/prompts.jsonl"))[:args.held_out]
    if not prompts:
        return None
    found, _ = await roll_out(servers[-1].client, prompts, 2, args.sampling, 10 ** 9, tokenizer)
    return statistics.mean(value for group in found for _, value in group)


async def load_weights(servers, folder=None, tensors=None):
    """Those in a folder, or those that tensors() gives."""
    began = time.perf_counter()
    for server in servers:
        wanted = server.version + 1
        if tensors is None:
            server.version = int(await server.client.update_weights(folder, version=wanted))
        else:
            server.version = int(await server.client.update_weights_from_tensors(tensors(), version=wanted))
        if server.version != wanted:
            fail(f"policy {server.policy}: weight version {server.version} after an update: expected {wanted}")
    return time.perf_counter() - began


async def one_step(step, servers, trainer, args, tokenizer):
    """Returns the line of the step."""
    began = time.perf_counter()
    prompts = make_prompts(random.Random(f"{args.seed} {step}"), args)
    first_seed = args.seed * 10 ** 7 + step * args.groups * args.group_size
    found, digest, times = await roll_out_everywhere(servers, step, prompts, args.sampling, first_seed, args, tokenizer)
    rewards = [[value for _, value in group] for group in found]
    rows = rows_of(prompts, found, tokenizer)

    train_began = time.perf_counter()
    updates = [trainer.update(rows) for _ in range(args.updates)]
    differences = updates[0][1]  # the later updates have other weights than the server had
    diff_max, diff_mean = differences.max().item(), differences.mean().item()
    if not diff_max <= args.logprob_diff:
        fail(f"step {step}: a log-probability of the server differs by {diff_max:.4g} from the trainer's: expected at most {args.logprob_diff}")
    trained = time.perf_counter()

    used_version = servers[0].version
    if args.weights == "memory":
        load_s = await load_weights(servers, tensors=trainer.model.tensors)
    else:
        folder = os.path.join(args.out, "weights", f"step-{step + 1}")
        trainer.save(folder)
        load_s = await load_weights(servers, folder)
        shutil.rmtree(os.path.join(args.out, "weights", f"step-{step}"), ignore_errors=True)
    lengths = [len(r.tokens) for group in found for r, _ in group]
    return dict(
        step=step, weight_version=used_version, reward_mean=statistics.mean(map(statistics.mean, rewards)),
        groups_all_right=sum(min(g) == 1 for g in rewards), groups_all_wrong=sum(max(g) == 0 for g in rewards),
        responses=len(lengths), tokens=sum(lengths), tokens_mean=statistics.mean(lengths), cut_off=sum(
            r.finish_reason == "length" for group in found for r, _ in group),
        logprob_diff_max=diff_max, logprob_diff_mean=diff_mean, **updates[-1][0], rollout_digest=digest,
        rollout_s={policy: t["rollout_s"] for policy, t in times.items()},
        reward_s={policy: t["reward_s"] for policy, t in times.items()},
        reward_after_rollout_s={policy: t["reward_after_rollout_s"] for policy, t in times.items()},
        rewarded_during_rollout={policy: t["rewarded_during_rollout"] for policy, t in times.items()},
        train_s=trained - train_began, weights_s=time.perf_counter() - trained, weights_load_s=load_s,
        step_s=time.perf_counter() - began)


def summarize(lines, held_out, servers, trainer, wall_s):
    """Means over the first and the last fifth of the steps say whether it learned; one step alone is noisy."""
    fifth = max(1, len(lines) // 5)

    def mean(key, some):
        return statistics.mean(line[key] for line in some)
    policies = [server.policy for server in servers]
    totals = {policy: sum(line["rollout_s"][policy] for line in lines) for policy in policies}
    return dict(
        steps=len(lines), wall_s=wall_s, policies=policies, reward_first_fifth=mean("reward_mean", lines[:fifth]),
        reward_last_fifth=mean("reward_mean", lines[-fifth:]), held_out_before=held_out[0], held_out_after=held_out[1],
        responses=sum(line["responses"] for line in lines), tokens=sum(line["tokens"] for line in lines),
        logprob_diff_max=max(line["logprob_diff_max"] for line in lines), logprob_diff_mean=mean("logprob_diff_mean", lines),
        rollout_s=totals, rollout_s_of_first={policy: s / totals[policies[0]] for policy, s in totals.items()},
        steps_faster_than_first={policy: sum(line["rollout_s"][policy] < line["rollout_s"][policies[0]] for line in lines)
                                 for policy in policies[1:]},
        reward_s=sum(sum(line["reward_s"].values()) for line in lines),
        reward_after_rollout_s=sum(sum(line["reward_after_rollout_s"].values()) for line in lines),
        **{key: sum(line[key] for line in lines) for key in ("train_s", "weights_s")}, weights_digest=trainer.digest())


def plot(lines, path):
    """The reward curve, with matplotlib if there is one; otherwise a curve of text beside it. Returns the file written."""
    rewards = [line["reward_mean"] for line in lines]
    smooth = [statistics.mean(rewards[max(0, i - 2):i + 3]) for i in range(len(rewards))]
    try:
        import matplotlib
    except ModuleNotFoundError:
        path = os.path.splitext(path)[0] + ".txt"
        with open(path, "w", encoding="utf-8") as f:
            for line, value in zip(lines, rewards):
                f.write(f"{line['step']:4d} {value:.3f} {'#' * round(60 * value)}\n")
        print("grpo: no matplotlib (Debian, Ubuntu: python3-matplotlib): the curve is text")
        return path
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (top, bottom) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 5.5), height_ratios=(2, 1))
    steps = [line["step"] for line in lines]
    top.plot(steps, rewards, "o", markersize=3, color="tab:blue", label="mean reward of the step")
    top.plot(steps, smooth, color="tab:blue", label="mean of 5 steps")
    top.set(ylabel="reward", ylim=(0, 1))
    top.legend(loc="lower right")
    for policy in lines[0]["rollout_s"]:
        bottom.plot(steps, [line["rollout_s"][policy] for line in lines], label=f"rollout, --policy {policy}")
    bottom.set(xlabel="step", ylabel="seconds")
    bottom.set_ylim(bottom=0)
    bottom.legend(loc="lower right")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    return path


async def train(args, servers):
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    tokenizer = task.Tokenizer()
    trainer = Trainer(args, tokenizer)
    for server in servers:
        await server.connect()
    if args.url:
        await load_weights(servers, os.path.abspath(args.model))  # the server may hold other weights
    began, lines = time.perf_counter(), []
    held_out = [await measure_held_out(servers, args, tokenizer)]
    with open(os.path.join(args.out, "steps.jsonl"), "w", encoding="utf-8") as out:
        for step in range(args.steps):
            line = await one_step(step, servers, trainer, args, tokenizer)
            lines.append(line)
            out.write(json.dumps(line) + "\n")
            out.flush()
            times = " ".join(f"{policy} {s:.2f} s" for policy, s in line["rollout_s"].items())
            print(f"step {step} version {line['weight_version']} reward {line['reward_mean']:.3f} tokens {line['tokens']} rollout {times} "
                  f"train {line['train_s']:.1f} s weights {line['weights_s']:.2f} s logprob difference "
                  f"{line['logprob_diff_max']:.4f}", flush=True)
    if args.weights == "memory":
        trainer.save(os.path.join(args.out, "weights", f"step-{args.steps}"))
    held_out.append(await measure_held_out(servers, args, tokenizer))
    summary = summarize(lines, held_out, servers, trainer, time.perf_counter() - began)
    with open(os.path.join(args.out, "summary.json"), "w", encoding="utf-8") as out:
        json.dump(summary, out, indent=1)
        out.write("\n")
    print(json.dumps(summary, indent=1))
    print("wrote", plot(lines, os.path.join(args.out, "reward.png")))
    for server in servers:
        await server.client.close()


def terms_range(text):
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit() and 2 <= int(low) <= int(high) <= task.MAX_TERMS):
        raise argparse.ArgumentTypeError(f"{text!r}: expected LOW-HIGH within 2-{task.MAX_TERMS}")
    return int(low), int(high)


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return int(text)


def not_negative(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 0")
    return int(text)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--out", default="grpo-out", help="folder for steps.jsonl, summary.json, reward.png and weights")
    ap.add_argument("--steps", type=positive, default=32)
    ap.add_argument("--groups", type=positive, default=8, help="prompts per step")
    ap.add_argument("--group-size", type=positive, default=8, help="responses per prompt, at least 2")
    ap.add_argument("--terms", type=terms_range, default=(11, 14), help="terms per sum, LOW-HIGH [11-14]")
    ap.add_argument("--max-new", type=positive, default=2048, help="tokens of a response")
    ap.add_argument("--lr", type=float, default=2e-4, help="of AdamW")
    ap.add_argument("--updates", type=positive, default=1, help="optimizer steps per rollout; after the first the ratio is not 1")
    ap.add_argument("--clip", type=float, default=0.2, help="how far the ratio may leave 1 before its gradient ends")
    ap.add_argument("--gradient-norm", type=float, default=1.0, help="gradients are scaled down to it")
    ap.add_argument("--batch-tokens", type=positive, default=2048, help="tokens of a training batch with padding")
    ap.add_argument("--threads", type=positive, default=2, help="of the trainer; more than 2 have nothing to do")
    ap.add_argument("--held-out", type=not_negative, default=64, help="prompts of prompts.jsonl measured before and after; 0: none")
    ap.add_argument("--logprob-diff", type=float, default=0.5, help="a larger difference between log-probabilities ends the run")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--policy", default="verl,seer", help="of the server; several with commas: a server each, compared [verl,seer]")
    ap.add_argument("--model", default=os.path.join(ROOT, "deploy/models/scratchpad-1m8"))
    ap.add_argument("--seer", default=os.path.join(ROOT, "build/release/bin/seer"), help="the program")
    ap.add_argument("--weights", choices=["folder", "memory"], default="folder",
                    help="how the server gets them: from a folder, or sent over HTTP without a file [folder]")
    ap.add_argument("--server-options", default="--instances 2 --threads-per-instance 1 --kv-bytes 24MiB", help="more options of seer serve")
    ap.add_argument("--url", help="HOST:PORT of a seer serve that runs, with its own policy and a view of the same files; none is started then")
    args = ap.parse_args()
    if args.group_size < 2:
        ap.error("--group-size is 1: expected at least 2, as advantages compare the responses of a group")
    args.out, args.model = os.path.abspath(args.out), os.path.abspath(args.model)
    args.sampling = dict(max_new_tokens=args.max_new, temperature=1.0)
    os.makedirs(args.out, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by way of stop()
    say_if_torch_is_slow()
    with contextlib.ExitStack() as stack:
        servers = [Server(args, policy) for policy in ([args.url] if args.url else args.policy.split(","))]
        for server in servers:
            if not args.url:
                stack.callback(server.stop)
                server.start(args)
        try:
            asyncio.run(train(args, servers))
        except SeerError as error:
            fail(error)


if __name__ == "__main__":
    main()
