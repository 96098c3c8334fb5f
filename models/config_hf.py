"""A Config from Hugging Face's config.json (and generation_config.json), as written on the Hub."""

import json

from models.config import Config
from models.rope import KINDS, Rope, yarn_attention_factor

# Per family: the class name config.json gives in `architectures`, and the values that transformers
# assumes for keys that the file leaves out and that do not have one value for all four.
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
DEFAULTS = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
}
# Keys that would change the result and that nothing here implements, with the values that mean
# "off".
UNSUPPORTED = {
    "quantization_config": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "no_rope_layers": (None, []),
    "num_local_experts": (None, 0),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "attention_multiplier": (None,),
    "logits_scaling": (None, 1, 1.0),
}


def from_hf(raw, generation=None):
    """Config of the dict `raw` (config.json) and, if given, `generation` (generation_config.json).

    Raises ValueError naming the key, its value and what is supported.
    """
    family = raw.get("model_type")
    if family not in ARCHITECTURES:
        raise ValueError(
            f"model_type {family!r} is not supported; one of {', '.join(ARCHITECTURES)} is"
        )
    named = raw.get("architectures") or [ARCHITECTURES[family]]
    if named != [ARCHITECTURES[family]]:
        raise ValueError(f"architectures {named} is not supported; {ARCHITECTURES[family]} is")
    raw = DEFAULTS[family] | raw
    for key, allowed in UNSUPPORTED.items():
        if raw.get(key) not in allowed:
            raise ValueError(f"config.json: {key} {json.dumps(raw[key])} is not supported")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(
            f"config.json: hidden_act {raw['hidden_act']!r} is not supported; 'silu' is"
        )
    bias = bool(raw.get("attention_bias", False)) and family in ("llama", "qwen3")
    return Config(
        family=family,
        rope=_rope(raw),
        windows=_windows(family, raw),
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        max_position_embeddings=raw["max_position_embeddings"],
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        # Qwen2 always has biases on q, k and v and never on o; no key of its config.json says so.
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias", False)) and family == "llama",
        qk_norm=family == "qwen3",
        **_sizes(raw),
        **_token_ids(raw, generation or {}),
    )


def _sizes(raw):
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    missing = [key for key in (*needed, "num_attention_heads") if raw.get(key) is None]
    if missing:
        raise ValueError(f"config.json lacks {', '.join(missing)}")
    heads = raw["num_attention_heads"]
    if raw.get("head_dim") is None and raw["hidden_size"] % heads:
        raise ValueError(
            f"config.json: hidden_size {raw['hidden_size']} is not a multiple of "
            f"num_attention_heads {heads} and there is no head_dim"
        )
    return {
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "num_layers": raw["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": raw.get("head_dim") or raw["hidden_size"] // heads,
    }


def _windows(family, raw):
    """Keys visible to each layer, itself included, or None. Families differ in who has a window."""
    count, window = raw.get("num_hidden_layers") or 0, raw.get("sliding_window")
    if family == "llama":
        return (None,) * count
    if family == "mistral":
        windows = (window,) * count
    else:
        window = raw.get("sliding_window", 4096) if raw.get("use_sliding_window") else None
        first = raw.get("max_window_layers", 28)
        windows = tuple(window if i >= first else None for i in range(count))
    types = raw.get("layer_types")
    if types is None:
        return windows
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown or len(types) != count:
        raise ValueError(
            f"config.json: layer_types {unknown or f'of length {len(types)}'} is not supported; "
            f"{count} of 'full_attention' or 'sliding_attention' are"
        )
    if "sliding_attention" in types and window is None:
        raise ValueError(
            "config.json: layer_types has sliding_attention, but no sliding_window is set"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _rope(raw):
    """Rope of `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before)."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    theta = given.get("rope_theta", raw.get("rope_theta", 10000.0))
    if kind == "dynamic":
        raise ValueError(
            "config.json: rope type 'dynamic' is not supported: its frequencies change with the "
            "length of the text, and cached keys would keep the old ones"
        )
    if kind not in KINDS:
        raise ValueError(
            f"config.json: rope type {kind!r} is not supported; {', '.join(KINDS)} are"
        )
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"config.json: partial_rotary_factor {given['partial_rotary_factor']} is not supported"
        )
    if kind == "default":
        return Rope(theta=theta)
    factor = _number(given, "factor", kind)
    if kind == "linear":
        return Rope(kind=kind, theta=theta, factor=factor)
    original = (
        raw.get("original_max_position_embeddings")
        or given.get("original_max_position_embeddings")
        or raw["max_position_embeddings"]
    )
    if kind == "llama3":
        low, high = (_number(given, f"{end}_freq_factor", kind) for end in ("low", "high"))
        if not low < high:
            raise ValueError(
                f"config.json: low_freq_factor {low} must be below high_freq_factor {high}"
            )
        return Rope(kind, theta, factor, original, low_freq_factor=low, high_freq_factor=high)
    return Rope(
        kind,
        theta,
        factor,
        original,
        beta_fast=given.get("beta_fast") or 32.0,
        beta_slow=given.get("beta_slow") or 1.0,
        truncate=given.get("truncate", True),
        attention_factor=_yarn_factor(given, factor),
    )


def _yarn_factor(given, factor):
    """What multiplies cos and sin: given, or from two mscales (DeepSeek's way), or the paper's."""
    if given.get("attention_factor") is not None:
        return given["attention_factor"]
    over, under = given.get("mscale"), given.get("mscale_all_dim")
    if over and under:
        grow = yarn_attention_factor(factor) - 1.0
        return (over * grow + 1.0) / (under * grow + 1.0)
    return yarn_attention_factor(factor)


def _number(given, key, kind):
    value = given.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"config.json: rope type {kind!r} needs a positive {key}, got {value!r}")
    return float(value)


def _token_ids(raw, generation):
    """bos and all eos ids; generation_config.json, when it names any, is the newer statement."""
    eos = generation.get("eos_token_id", raw.get("eos_token_id"))
    bos = generation.get("bos_token_id", raw.get("bos_token_id"))
    if eos is None:
        eos = ()
    return {
        "bos_token_id": bos,
        "eos_token_ids": tuple(eos) if isinstance(eos, list | tuple) else (eos,),
    }
