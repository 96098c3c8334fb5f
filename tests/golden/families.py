"""Tiny models of every family: their config.json and their weights, the same wherever they are
made.

Used by `make_families.py` (which asks transformers for the logits) and by the tests. Only NumPy is
needed. Weights are a function of the tensor's name, so no order has to be kept.
"""

import zlib

import numpy as np

PROMPT_LENGTH = 40
NEW_TOKENS = 16
SALT = 1  # chosen so that no greedy step is a near tie

_SMALL = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def _config(model_type, name, **changes):
    return _SMALL | {"model_type": model_type, "architectures": [name]} | changes


def _llama(**changes):
    return _config("llama", "LlamaForCausalLM", **({"head_dim": 16} | changes))


def _mistral(**changes):
    return _config("mistral", "MistralForCausalLM", **({"head_dim": 24} | changes))


def _qwen2(**changes):
    changes = {"hidden_size": 64, "rope_theta": 1000000.0} | changes
    return _config("qwen2", "Qwen2ForCausalLM", **changes)


def _qwen3(**changes):
    changes = {"head_dim": 32, "rope_theta": 1000000.0} | changes
    return _config("qwen3", "Qwen3ForCausalLM", **changes)


def _llama3_rope(factor):
    """The scaling of Llama 3.1 and later with an old context of 64, so that 40 tokens show it."""
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }


# name -> config.json as the Hub has it: some in the old spelling (rope_theta, rope_scaling), some
# in that of transformers 5 (rope_parameters).
FAMILIES = {
    "llama2": _llama(num_key_value_heads=None, head_dim=None, hidden_size=64),
    "llama31": _llama(rope_theta=500000.0, rope_scaling=_llama3_rope(8.0), eos_token_id=[2, 3, 5]),
    "llama32": _llama(
        head_dim=32,
        tie_word_embeddings=True,
        rope_parameters=_llama3_rope(32.0) | {"rope_theta": 500000.0},
    ),
    "llama_biases": _llama(attention_bias=True, mlp_bias=True),
    "llama_linear": _llama(rope_scaling={"type": "linear", "factor": 4.0}),
    "llama_yarn": _llama(
        head_dim=32,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 4.0,
        },
    ),
    "smollm2": _llama(
        hidden_size=72,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=None,
        rope_theta=100000,
        tie_word_embeddings=True,
    ),
    "mistral": _mistral(sliding_window=12),
    "mistral_full": _mistral(sliding_window=None, rope_theta=1000000.0),
    "qwen2": _qwen2(use_sliding_window=False, sliding_window=12, tie_word_embeddings=True),
    "qwen2_window": _qwen2(use_sliding_window=True, sliding_window=12, max_window_layers=1),
    "qwen3": _qwen3(tie_word_embeddings=True),
    "qwen3_yarn": _qwen3(
        attention_bias=True,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "attention_factor": 1.25,
            "truncate": False,
        },
    ),
}


def prompt(name):
    """The ids given to family `name`: 40 of them, i32."""
    return _rng(name).integers(4, 64, PROMPT_LENGTH).astype(np.int32)


def weights(name):
    """tensor name -> float32 array, named and shaped as transformers does, for family `name`."""
    raw = FAMILIES[name]
    shapes = _shapes(raw)
    return {tensor: _values(f"{name} {tensor}", shape) for tensor, shape in shapes.items()}


def _values(key, shape):
    """Normal numbers, of a size that makes neither the softmax nor the logits flat."""
    noise = _rng(key).standard_normal(shape).astype(np.float32)
    if key.endswith("norm.weight"):
        return 1 + np.float32(0.2) * noise
    return noise * np.float32(0.3 if len(shape) == 1 else 0.16)


def _rng(key):
    return np.random.default_rng([SALT, zlib.crc32(key.encode())])


def _shapes(raw):
    hidden, ff, heads = (
        raw[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads")
    )
    head_dim = raw.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, (raw["num_key_value_heads"] or heads) * head_dim
    shapes = {
        "model.embed_tokens.weight": (raw["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not raw["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (raw["vocab_size"], hidden)
    linear = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (ff, hidden),
        "mlp.up_proj": (ff, hidden),
        "mlp.down_proj": (hidden, ff),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if raw["model_type"] == "qwen3":
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    for i in range(raw["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {f"{at}{name}.weight": (size,) for name, size in norms.items()}
        shapes |= {f"{at}{name}.weight": shape for name, shape in linear.items()}
        shapes |= {f"{at}{name}.bias": linear[name][:1] for name in linear if _biased(raw, name)}
    return shapes


def _biased(raw, name):
    if raw["model_type"] == "qwen2":
        return name.endswith(("q_proj", "k_proj", "v_proj"))
    return bool(raw.get("attention_bias" if "attn" in name else "mlp_bias"))
