"""Reference forward pass of dense Llama, Qwen2 and Qwen3 models in plain PyTorch (1.13 or later, on the CPU): the numeric
oracle of the engines. float64 is the reference; bfloat16 runs torch's own matmuls and shows the error of that format."""
import json
import math
import os

import numpy as np
import torch


def read_safetensors(path):
    data = np.memmap(path, mode="r", dtype=np.uint8)
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:8 + header_bytes].tobytes())
    tensors = {}
    for name, meta in header.items():
        if name == "__metadata__":
            continue
        begin, end = meta["data_offsets"]
        raw = np.array(data[8 + header_bytes + begin:8 + header_bytes + end])
        values = torch.from_numpy(raw.view({"BF16": np.int16, "F16": np.float16, "F32": np.float32}[meta["dtype"]]))
        tensors[name] = (values.view(torch.bfloat16) if meta["dtype"] == "BF16" else values).reshape(meta["shape"])
    return tensors


def read_folder(folder):
    """(config, tensors) of a Hugging Face folder, sharded or not."""
    config = json.load(open(os.path.join(folder, "config.json")))
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        files = sorted(set(json.load(open(index))["weight_map"].values()))
    tensors = {}
    for name in files:
        tensors.update(read_safetensors(os.path.join(folder, name)))
    return config, tensors


def rope_frequencies(c):
    """(angle per position of each pair of dimensions, factor of cos and sin), as Hugging Face defines them."""
    dim, base = c["head_dim"], c["rope_theta"]
    inverse = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return inverse, 1.0
    factor = scaling["factor"]
    if kind == "llama3":
        context, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
        wavelength = 2 * math.pi / inverse
        smooth = (context / wavelength - low) / (high - low)
        blended = (1 - smooth) * inverse / factor + smooth * inverse
        scaled = torch.where(wavelength > context / low, inverse / factor, inverse)
        medium = ~(wavelength < context / high) & ~(wavelength > context / low)
        return torch.where(medium, blended, scaled), 1.0
    assert kind == "yarn", kind
    context = scaling.get("original_max_position_embeddings") or c["max_position_embeddings"]

    def dimension(rotations):
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(scaling.get("beta_fast") or 32), dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    frequencies = inverse / factor * ramp + inverse * (1 - ramp)
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
    return frequencies, attention


class RefModel:
    def __init__(self, config, tensors, dtype=torch.float64):
        self.config = c = dict(config)
        c["head_dim"] = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        self.dtype = dtype
        self.sum_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.weights = {name: torch.as_tensor(values).to(dtype) for name, values in tensors.items()}
        self.frequencies, self.rope_factor = rope_frequencies(c)
        tied = c.get("tie_word_embeddings", False)
        self.head = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]

    def norm(self, x, name):
        y = x.to(self.sum_dtype)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (y * self.weights[name].to(self.sum_dtype)).to(self.dtype)

    def rope(self, x, positions):  # x [batch, tokens, heads, head_dim]; halves are rotated against each other
        angles = positions.double()[:, None] * self.frequencies[None]
        cos, sin = ((f(angles) * self.rope_factor).to(self.sum_dtype)[None, :, None] for f in (torch.cos, torch.sin))
        a, b = x.to(self.sum_dtype).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(self.dtype)

    def linear(self, x, name):
        return torch.nn.functional.linear(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"))

    def new_cache(self):
        return [None] * self.config["num_hidden_layers"]

    def attention(self, h, layer, index, cache, positions):
        batch, tokens, _ = h.shape
        dim, heads, kv_heads = (self.config[k] for k in ("head_dim", "num_attention_heads", "num_key_value_heads"))
        q, k, v = (self.linear(h, f"{layer}self_attn.{n}_proj").view(batch, tokens, -1, dim) for n in "qkv")
        if layer + "self_attn.q_norm.weight" in self.weights:
            q, k = self.norm(q, layer + "self_attn.q_norm.weight"), self.norm(k, layer + "self_attn.k_norm.weight")
        q, k = self.rope(q, positions), self.rope(k, positions)
        if cache[index] is not None:
            k, v = torch.cat([cache[index][0], k], 1), torch.cat([cache[index][1], v], 1)
        cache[index] = (k, v)
        group, context = heads // kv_heads, k.shape[1]
        q = q.transpose(1, 2).to(self.sum_dtype).reshape(batch, kv_heads, group * tokens, dim)
        k, v = (t.transpose(1, 2).to(self.sum_dtype) for t in (k, v))
        scores = (q @ k.transpose(-1, -2)).view(batch, kv_heads, group, tokens, context) * dim ** -0.5
        scores = scores.masked_fill(torch.arange(context)[None, :] > positions[:, None], float("-inf")).softmax(-1)
        out = (scores.reshape(batch, kv_heads, group * tokens, context) @ v).view(batch, heads, tokens, dim)
        out = out.transpose(1, 2).reshape(batch, tokens, -1).to(self.dtype)
        return self.linear(out, layer + "self_attn.o_proj")

    @torch.no_grad()
    def forward(self, ids, cache, start):
        """ids [batch, tokens] at positions from `start` -> logits [batch, tokens, vocab]; the cache grows."""
        positions = torch.arange(start, start + ids.shape[1])
        x = self.weights["model.embed_tokens.weight"][ids]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}."
            x = x + self.attention(self.norm(x, layer + "input_layernorm.weight"), layer, i, cache, positions)
            h = self.norm(x, layer + "post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(self.linear(h, layer + "mlp.gate_proj"))
            x = x + self.linear(gate * self.linear(h, layer + "mlp.up_proj"), layer + "mlp.down_proj")
        return torch.nn.functional.linear(self.norm(x, "model.norm.weight"), self.head).to(self.sum_dtype)

    def logprobs(self, ids):
        """log p(ids[i + 1] | ids[..i]) for every i, in float64."""
        ids = torch.tensor(ids)[None]
        logits = self.forward(ids, self.new_cache(), 0)[0, :-1].double()
        return logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()

    def greedy(self, ids, count):
        """(tokens, margins): the likeliest tokens, and by how much each led the second."""
        cache, tokens, margins = self.new_cache(), [], []
        logits = self.forward(torch.tensor(ids)[None], cache, 0)[0, -1]
        for step in range(count):
            top = logits.topk(2)
            tokens.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
            logits = self.forward(torch.tensor([[tokens[-1]]]), cache, len(ids) + step)[0, -1]
        return tokens, margins
