#!/usr/bin/env python3
"""Times decode, verify and prefill of PyTorch on this GPU at the shape of Qwen2.5-7B with random weights: static KV cache, CUDA graph,
scaled_dot_product_attention. One JSON line per point, beside those of bench_cuda_engine.

    bench_torch.py [--rounds N] [--beside SEER.json]

Also measured: a copy within the GPU's memory (bytes read and written) and an 8192 x 8192 x 8192 product in bf16. With the lines of
bench_cuda_engine in SEER.json, a line for each of its points says what it reaches of them, and how much faster than PyTorch it is.

To be as fast as PyTorch can be without other libraries: bf16, qkv and gate_up as one matrix each, attention over exactly the context
(no mask) with grouped heads by flash attention. Sampling is greedy, which costs less than drawing.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, DIM, VOCAB, EPS = 3584, 18944, 28, 28, 4, 128, 152064, 1e-6


def matrix(rows, columns):
    return torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda").uniform_(-1 / 32, 1 / 32)


class Layer:
    def __init__(self):
        self.qkv = matrix((HEADS + 2 * KV_HEADS) * DIM, HIDDEN)
        self.qkv_bias = torch.full(((HEADS + 2 * KV_HEADS) * DIM,), 0.125, dtype=torch.bfloat16, device="cuda")
        self.output = matrix(HIDDEN, HEADS * DIM)
        self.gate_up = matrix(2 * INNER, HIDDEN)
        self.down = matrix(HIDDEN, INNER)
        self.input_norm = torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda")
        self.post_norm = torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda")


def rotate(x, cos, sin):
    half = DIM // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Model:
    def __init__(self):
        self.layers = [Layer() for _ in range(LAYERS)]
        self.embedding, self.head = matrix(VOCAB, HIDDEN), matrix(VOCAB, HIDDEN)
        self.norm = torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda")
        angles = torch.outer(torch.arange(8192, device="cuda").float(), 1e6 ** (-torch.arange(0, DIM, 2, device="cuda").float() / DIM))
        angles = torch.cat((angles, angles), dim=-1)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def step(self, tokens, positions, caches, context, causal, sampled):
        """tokens [batch, rows]; writes KV at `positions` (the same for all sequences) and attends to [0, context)."""
        batch, rows = tokens.shape
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.cos[positions][:, None, :], self.sin[positions][:, None, :]
        for layer, (keys, values) in zip(self.layers, caches):
            qkv = F.linear(F.rms_norm(x, (HIDDEN,), layer.input_norm, EPS), layer.qkv, layer.qkv_bias)
            q, k, v = qkv.view(batch, rows, -1, DIM).split((HEADS, KV_HEADS, KV_HEADS), dim=2)
            keys.index_copy_(2, positions, rotate(k, cos, sin).transpose(1, 2))
            values.index_copy_(2, positions, v.transpose(1, 2))
            mixed = F.scaled_dot_product_attention(rotate(q, cos, sin).transpose(1, 2), keys[:, :, :context], values[:, :, :context],
                                                   is_causal=causal, enable_gqa=True)
            x = x + F.linear(mixed.transpose(1, 2).reshape(batch, rows, -1), layer.output)
            gate, up = F.linear(F.rms_norm(x, (HIDDEN,), layer.post_norm, EPS), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        logits = F.linear(F.rms_norm(x[:, -sampled:], (HIDDEN,), self.norm, EPS), self.head)
        return logits.argmax(dim=-1)


def seconds_of(run, rounds):
    run()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(rounds):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / rounds


def ceilings():
    """Of this GPU: bytes per second of a copy, operations per second of a product."""
    a = torch.empty(1 << 31, dtype=torch.uint8, device="cuda").random_()
    b = torch.empty_like(a)
    copy = 2 * a.numel() / seconds_of(lambda: b.copy_(a), 20)
    del a, b
    x, y = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return copy, 2 * 8192**3 / seconds_of(lambda: x @ y, 20)


def compare(seer, torch_us, copy, product):
    at = (seer["phase"], seer["batch"], seer["context"], int(seer["rows"]))
    line = {"bench": "compare", "phase": at[0], "batch": at[1], "context": at[2], "rows": at[3]}
    line["of_copy_bandwidth"] = round(seer["gb_s"] * 1e9 / copy, 3)
    line["of_product_rate"] = round(seer["tflop_s"] * 1e12 / product, 3)
    if at in torch_us:
        line["times_torch"] = round(torch_us[at] / seer["step_us"], 3)
    return line


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--beside")
    options = arguments.parse_args()
    rounds = options.rounds
    torch.manual_seed(1)
    torch_us = {}
    with torch.inference_mode():
        copy, product = ceilings()
        print(json.dumps({"bench": "torch", "gpu": torch.cuda.get_device_name(), "copy_gb_s": round(copy * 1e-9),
                          "product_tflop_s": round(product * 1e-12)}))
        model = Model()
        points = [("decode", batch, context, 1) for context in (128, 1024, 4096) for batch in (1, 4, 16, 64)]
        for phase, batch, start, rows in points + [("verify", 16, 1024, 5), ("prefill", 1, 0, 512), ("prefill", 1, 0, 2048)]:
            context = start + rows
            caches = [tuple(torch.randn(batch, KV_HEADS, context, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(2))
                      for _ in range(LAYERS)]
            tokens = torch.randint(VOCAB, (batch, rows), device="cuda")
            positions = torch.arange(start, context, device="cuda")
            run = lambda: model.step(tokens, positions, caches, context, phase == "prefill", 1 if phase == "prefill" else rows)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(2):
                    run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            step_us = torch_us[phase, batch, start, batch * rows] = seconds_of(graph.replay, rounds) * 1e6
            print(json.dumps({"bench": "torch", "model": "7b", "phase": phase, "batch": batch, "context": start, "rows": batch * rows,
                              "step_us": round(step_us, 1)}), flush=True)
            del graph, caches
    if options.beside:
        with open(options.beside) as lines:
            for line in lines:
                print(json.dumps(compare(json.loads(line), torch_us, copy, product)))


if __name__ == "__main__":
    main()
