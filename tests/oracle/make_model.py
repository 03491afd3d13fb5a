#!/usr/bin/python3
"""Writes a random Llama, Qwen2 or Qwen3 model in Hugging Face layout, for benchmarks and for checks by hand.
usage: make_model.py folder [toy|10m|0.5b|1.5b] [bf16|f16|f32] [llama|qwen2|qwen3] [seed]"""
import json
import os
import sys

import numpy as np

import tiny_model

SIZES = {  # layers, hidden, intermediate, heads, KV heads, vocabulary
    "toy": (2, 64, 160, 4, 2, 512),
    "10m": (8, 256, 1024, 4, 2, 8192),
    "0.5b": (24, 896, 4864, 14, 2, 151936),
    "1.5b": (28, 1536, 8960, 12, 2, 151936),
}
ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}


def model_config(size, dtype, family):
    layers, hidden, inner, heads, kv_heads, vocab = SIZES[size]
    return tiny_model.config(
        family, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=hidden // heads, vocab_size=vocab, rope_theta=1000000.0, hidden_act="silu",
        max_position_embeddings=32768, tie_word_embeddings=family != "llama", bos_token_id=0,
        torch_dtype={"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype])


def random_values(rng, name, shape):
    x = rng.standard_normal(shape, dtype="f4")
    if "norm" in name:
        return 1 + 0.1 * x
    if len(shape) == 1:
        return 0.1 * x
    # The embedding is twice as large: as a tied head it then gives logits of order 1.
    return x * (2.0 if name == "model.embed_tokens.weight" else 1.0) / np.sqrt(shape[1])


def encode(x, dtype):
    if dtype == "bf16":
        bits = x.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return x.astype("<f2" if dtype == "f16" else "<f4").tobytes()


def main(folder, size="toy", dtype="bf16", family="qwen2", seed="0"):
    config, rng = model_config(size, dtype, family), np.random.default_rng(int(seed))
    os.makedirs(folder, exist_ok=True)
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tiny_model.tensor_shapes(config):
        end = offset + int(np.prod(shape)) * ELEMENT_BYTES[dtype]
        header[name] = {"dtype": dtype.upper(), "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tiny_model.tensor_shapes(config):
            out.write(encode(random_values(rng, name, shape), dtype))
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump(config, out, indent=1)
    with open(os.path.join(folder, "generation_config.json"), "w") as out:
        json.dump({"bos_token_id": 0, "eos_token_id": [1]}, out, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
