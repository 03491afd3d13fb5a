"""Tiny random models, the same weights as tests/gpu/tiny_model.h makes: a pure function of (seed, tensor name, index),
exact in float32, float16 and bfloat16."""
import numpy as np

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
MASK = (1 << 64) - 1


def mix64(x):
    """The finaliser of SplitMix64 (protocols/hash.h), on an int or an array of uint64."""
    if isinstance(x, int):
        x = (x + 0x9E3779B97F4A7C15) & MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return x ^ (x >> 31)
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash_pair(a, b):
    return mix64(mix64(a) ^ ((b + 0x632BE59BD9B4E019) & MASK))


def hash_text(text, seed):
    h = mix64(seed ^ len(text))
    for c in text.encode():
        h = hash_pair(h, c)
    return h


def config(kind, **changes):
    c = {"architectures": [ARCHITECTURES[kind]], "model_type": kind, "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
         "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
         "eos_token_id": 1}
    c.update(changes)
    return c


def tensor_shapes(c):
    hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    kind, bias = c["model_type"], c.get("attention_bias", False)
    yield "model.embed_tokens.weight", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        attention = layer + "self_attn."
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        for name, rows in (("q", heads * dim), ("k", kv_heads * dim), ("v", kv_heads * dim)):
            yield attention + name + "_proj.weight", (rows, hidden)
            if bias or kind == "qwen2":
                yield attention + name + "_proj.bias", (rows,)
        if kind == "qwen3":
            yield attention + "q_norm.weight", (dim,)
            yield attention + "k_norm.weight", (dim,)
        yield attention + "o_proj.weight", (hidden, heads * dim)
        if bias and kind != "qwen2":
            yield attention + "o_proj.bias", (hidden,)
        for name, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            yield layer + f"mlp.{name}_proj.weight", (rows, columns)
            if c.get("mlp_bias"):
                yield layer + f"mlp.{name}_proj.bias", (rows,)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], hidden)


def tensor(name, shape, seed):
    """Values as float64 (exact)."""
    size = int(np.prod(shape))
    index = np.arange(size, dtype=np.uint64) + np.uint64(hash_text(name, seed))
    with np.errstate(over="ignore"):
        k = (mix64(index) >> np.uint64(57)).astype(np.float64) - 64
    if name.endswith("norm.weight"):
        values = 1 + k / 128
    elif len(shape) == 1:
        values = k / 512
    else:
        values = k / 64 * 2.0 ** -max(0, (shape[1] - 1).bit_length() // 2 - 1)
    return values.reshape(shape)


def weights(c, seed):
    return {name: tensor(name, shape, seed) for name, shape in tensor_shapes(c)}
