"""A Qwen3-style decoder in plain torch, saved and loaded in the Hugging Face layout. No other packages.

Import this before torch: it sets the environment that OpenBLAS reads once, when torch loads it.
"""
import json
import os
import struct


def choose_blas_kernels():
    """OpenBLAS picks its kernels by CPU model, and an old one takes a newer CPU for a plain SSE machine: float32
    products are then about 4 times slower. The CPU's flags say what it can do. A variable that is already set wins."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a second pool of threads would fight with torch's own
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            flags = next((line.split() for line in f if line.startswith("flags")), [])
    except OSError:
        return
    if {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= set(flags):
        os.environ.setdefault("OPENBLAS_CORETYPE", "SKYLAKEX")
    elif {"avx2", "fma"} <= set(flags):
        os.environ.setdefault("OPENBLAS_CORETYPE", "HASWELL")


choose_blas_kernels()
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from task import write_json  # noqa: E402

CONFIG = dict(hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-6, rope_theta=10000.0, max_position_embeddings=4096)


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


BLOCK = 128


def causal_bias(begin, end):
    """Rows [begin, end) see the columns up to their own."""
    return torch.full((end - begin, end), float("-inf")).triu(begin + 1)


def attend(q, k, v, bias):
    """q: [rows of the batch, KV heads, query heads of each, tokens, size]. The query heads of one KV head are folded into the rows,
    so K and V are never copied per query head."""
    b, kv_heads, group, t, size = q.shape
    scores = (q.reshape(b, kv_heads, group * t, size) @ k.transpose(-1, -2)).view(b, kv_heads, group, t, -1).add_(bias)
    return (scores.softmax(-1).view(b, kv_heads, group * t, -1) @ v).view(q.shape)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.size = c["hidden_size"], c["head_dim"]
        self.q_heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj = nn.Linear(hidden, self.q_heads * self.size, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.q_heads * self.size, hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.size, c["rms_norm_eps"]), RMSNorm(self.size, c["rms_norm_eps"])

    def forward(self, x, cos, sin, bias, cache=None):
        b, t, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(b, t, self.q_heads, self.size)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(self.k_proj(x).view(b, t, self.kv_heads, self.size)).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        if cache is not None:
            k, v = cache.extend(k, v)
        q = (q * self.size ** -0.5).view(b, self.kv_heads, -1, t, self.size)
        if bias is not None:
            y = attend(q, k, v, bias)
        else:  # causal, in blocks of rows: what they may not see is not computed
            ends = [min(t, begin + BLOCK) for begin in range(0, t, BLOCK)]
            y = torch.cat([attend(q[..., begin:end, :], k[:, :, :end], v[:, :, :end], causal_bias(begin, end))
                           for begin, end in zip([0] + ends, ends)], 3)
        return self.o_proj(y.reshape(b, self.q_heads, t, self.size).transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, *args):
        x = x + self.self_attn(self.input_layernorm(x), *args)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Parameter names are those of Qwen3ForCausalLM without the leading `model.`; the output matrix is tied."""

    def __init__(self, vocab_size, config=CONFIG):
        super().__init__()
        self.config = c = dict(config, vocab_size=vocab_size)
        self.embed_tokens = nn.Embedding(vocab_size, c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        for name, p in self.named_parameters():
            if p.dim() == 2:
                onto_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = p.shape[1] ** -0.5 * (0.5 if onto_residual else 1.0)
                nn.init.normal_(p, std=0.02 if "embed" in name else scale)
        half = c["head_dim"] // 2
        angle = torch.arange(c["max_position_embeddings"])[:, None] * c["rope_theta"] ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, ids, positions, caches=None, bias=None, select=None):
        """ids, positions: [rows, tokens]. Without bias: causal within each row. select: a boolean mask of the
        positions whose logits are wanted, which spares the output matrix elsewhere."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        x = self.embed_tokens(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, cos, sin, bias, None if caches is None else caches[i])
        if select is not None:
            x = x[select]
        return F.linear(self.norm(x), self.embed_tokens.weight)

    # ---- Hugging Face layout ----

    def tensors(self):
        """(name, dtype, shape, data) of each weight, rounded to bf16."""
        for name, p in self.state_dict().items():
            yield "model." + name, "BF16", list(p.shape), p.detach().bfloat16().contiguous().view(torch.int16).numpy()

    def save(self, folder, tokenizer):
        """Writes the whole model folder; weights are rounded to bf16."""
        os.makedirs(folder, exist_ok=True)
        c = self.config
        write_json(folder, "config.json", dict(
            architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_act="silu", torch_dtype="bfloat16",
            attention_bias=False, attention_dropout=0.0, tie_word_embeddings=True, use_cache=True,
            use_sliding_window=False, sliding_window=None, rope_scaling=None, initializer_range=0.02,
            bos_token_id=None, eos_token_id=tokenizer.eos, pad_token_id=tokenizer.pad, **c))
        write_json(folder, "generation_config.json", dict(
            do_sample=True, temperature=1.0, top_p=1.0, top_k=0, eos_token_id=tokenizer.eos,
            pad_token_id=tokenizer.pad, max_new_tokens=3072))
        tokenizer.write(folder, c["max_position_embeddings"])
        header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
        for name, dtype, shape, data in self.tensors():
            header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + data.nbytes])
            blobs.append(data.tobytes())
            at += data.nbytes
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head + b"".join(blobs))

    @staticmethod
    def load(folder):
        """The saved bf16 weights, computed with in float32."""
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            config = json.load(f)
        with open(os.path.join(folder, "model.safetensors"), "rb") as f:
            raw = f.read()
        start = 8 + struct.unpack("<Q", raw[:8])[0]
        state = {}
        for name, entry in json.loads(raw[8:start]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                data = torch.frombuffer(bytearray(raw[start + begin:start + end]), dtype=torch.int16)
                state[name[len("model."):]] = data.view(torch.bfloat16).view(entry["shape"]).float()
        model = Model(config["vocab_size"], {k: config[k] for k in CONFIG})
        model.load_state_dict(state)
        return model


class Cache:
    """Keys and values of one layer, one row per sequence. Rows differ in length, so each has its own next slot;
    the attention bias hides the slots that a row has not filled."""

    def __init__(self, rows, config, slots):
        shape = (rows, config["num_key_value_heads"], slots, config["head_dim"])
        self.k, self.v = torch.zeros(shape), torch.zeros(shape)
        self.next_slot, self.used_slots = None, slots  # None: a prefill, which fills the slots from 0

    def extend(self, k, v):
        if self.next_slot is None:
            self.k[:, :, :k.shape[2]], self.v[:, :, :v.shape[2]] = k, v
        else:
            rows = torch.arange(k.shape[0])
            self.k[rows, :, self.next_slot], self.v[rows, :, self.next_slot] = k[:, :, 0], v[:, :, 0]
        return self.k[:, :, :self.used_slots], self.v[:, :, :self.used_slots]

    def keep(self, rows):
        self.k, self.v = self.k[rows], self.v[rows]

    def aim(self, next_slot, used_slots):
        """REQUIRES: used_slots > every next_slot. Makes room where there is none."""
        self.next_slot, self.used_slots = next_slot, used_slots
        if used_slots > self.k.shape[2]:
            more = [0, 0, 0, max(64, used_slots // 4)]
            self.k, self.v = F.pad(self.k, more), F.pad(self.v, more)


@torch.no_grad()
def generate(model, prompts, max_new, eos, rng, temperature=1.0):
    """prompts: lists of ids. Returns a list of response ids each, the end token kept. Plain sampling, no top-p."""
    rows, longest = len(prompts), max(map(len, prompts))
    caches = [Cache(rows, model.config, longest) for _ in model.layers]
    ids = torch.tensor([p + [eos] * (longest - len(p)) for p in prompts])
    slot = torch.tensor([len(p) for p in prompts])  # where each row's next token goes, which is its position too
    last = torch.zeros(rows, longest, dtype=torch.bool)
    last[torch.arange(rows), slot - 1] = True
    logits = model(ids, torch.arange(longest).expand(rows, longest), caches, select=last)
    responses, row_of = [[] for _ in range(rows)], torch.arange(rows)
    for _ in range(max_new):
        chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=rng)[:, 0]
        for row, token in zip(row_of.tolist(), chosen.tolist()):
            if not responses[row] or responses[row][-1] != eos:
                responses[row].append(token)
        done = torch.tensor([responses[row][-1] == eos for row in row_of.tolist()])
        if done.all():
            break
        if done.float().mean() > 0.15 or (len(done) <= 8 and done.any()):  # copying the cache costs: not at each end
            row_of, slot, chosen = row_of[~done], slot[~done], chosen[~done]
            for cache in caches:
                cache.keep(~done)
        used = int(slot.max()) + 1
        bias = torch.zeros(len(row_of), 1, 1, 1, used)
        bias.masked_fill_((torch.arange(used) > slot[:, None])[:, None, None, None], float("-inf"))
        for cache in caches:
            cache.aim(slot, used)
        logits = model(chosen[:, None], slot[:, None], caches, bias)[:, 0]
        slot = slot + 1
    return responses
