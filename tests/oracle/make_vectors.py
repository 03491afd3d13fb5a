#!/usr/bin/python3
"""Writes tests/gpu/data/oracle.json: the right results of tiny models of every family and many odd shapes.
Needs numpy and PyTorch (Debian: python3-torch); the tests that read the file need neither.
usage: make_vectors.py [output]"""
import json
import os
import sys

import torch

import ref_model
import tiny_model

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CASES = [  # name, weights, family, what differs from tiny_model.config()
    ("llama_untied", "F32", "llama", dict(tie_word_embeddings=False, vocab_size=250)),
    ("llama_bias", "F32", "llama", dict(attention_bias=True, mlp_bias=True, rope_theta=500000.0)),
    ("llama3_rope", "BF16", "llama", dict(head_dim=64, rope_scaling=LLAMA3, tie_word_embeddings=False)),
    ("llama3_rope_f32", "F32", "llama", dict(head_dim=32, rope_scaling=LLAMA3, rope_theta=500000.0)),
    ("llama_half", "F16", "llama", dict(head_dim=64, num_key_value_heads=1, tie_word_embeddings=False)),
    ("qwen2_gqa7", "BF16", "qwen2", dict(num_attention_heads=7, num_key_value_heads=1, head_dim=32, vocab_size=301)),
    ("qwen2_head80", "F32", "qwen2", dict(num_attention_heads=2, head_dim=80, num_hidden_layers=1)),
    ("qwen2_yarn", "BF16", "qwen2", dict(rope_scaling=YARN, tie_word_embeddings=False)),
    ("qwen3_tied", "BF16", "qwen3", dict(head_dim=64, num_hidden_layers=3)),
    ("qwen3_yarn", "F32", "qwen3", dict(num_attention_heads=2, num_key_value_heads=1, head_dim=128, rope_scaling=YARN)),
    ("qwen3_odd", "F32", "qwen3", dict(hidden_size=50, intermediate_size=70, num_attention_heads=3, num_key_value_heads=3,
                                       head_dim=20, vocab_size=97)),
    ("qwen3_odd_bf16", "BF16", "qwen3", dict(hidden_size=50, intermediate_size=70, num_attention_heads=6, head_dim=40,
                                             vocab_size=97)),
    ("qwen3_half", "F16", "qwen3", dict(num_key_value_heads=4, num_hidden_layers=1)),
]
SCORED_TOKENS, PROMPT_TOKENS, GREEDY_TOKENS = 160, 16, 256


def make_case(number, name, weights, family, changes):
    config, seed = tiny_model.config(family, **changes), 1000 + number
    tensors = tiny_model.weights(config, seed)
    truth = ref_model.RefModel(config, tensors)
    ids = [tiny_model.mix64(seed * 1000 + i) % config["vocab_size"] for i in range(SCORED_TOKENS)]
    logprobs = truth.logprobs(ids)
    case = {"name": name, "weights": weights, "seed": seed, "config": config, "tokens": ids,
            "logprobs": [float("%.9g" % x) for x in logprobs], "prompt_tokens": PROMPT_TOKENS}
    if weights == "BF16":
        rough = ref_model.RefModel(config, tensors, torch.bfloat16)
        case["bf16_error"] = float("%.4g" % abs(rough.logprobs(ids) - logprobs).max())
    else:
        case["greedy"], margins = truth.greedy(ids[:PROMPT_TOKENS], GREEDY_TOKENS)
        case["greedy_close_steps"] = [i for i, m in enumerate(margins) if m < 1e-4]
    return case


def main():
    default = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu", "data", "oracle.json")
    cases = [make_case(i, *case) for i, case in enumerate(CASES)]
    with open(sys.argv[1] if len(sys.argv) > 1 else default, "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
