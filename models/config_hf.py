"""A Config from Hugging Face's config.json (and generation_config.json), as written on the Hub."""

from models.config import Config
from models.fields import flag, needed, positive, whole
from models.rope import KINDS, Rope, yarn_attention_factor
from models.wording import shown

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
# What each rope type cannot do without.
FACTORS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
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
    try:
        return _config(raw, generation or {})
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None


def _config(raw, generation):
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in ARCHITECTURES:
        raise ValueError(
            f"model_type {shown(family)} is not supported; one of {', '.join(ARCHITECTURES)} is"
        )
    named, known = raw.get("architectures"), [ARCHITECTURES[family]]
    if named not in (None, [], known):
        raise ValueError(f"architectures {shown(named)} is not supported; {known} is")
    raw = DEFAULTS[family] | raw
    for key, allowed in UNSUPPORTED.items():
        if raw.get(key) not in allowed:
            raise ValueError(f"{key} {shown(raw[key])} is not supported")
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ValueError(f"hidden_act {shown(raw['hidden_act'])} is not supported; 'silu' is")
    bias = flag(raw, "attention_bias") and family in ("llama", "qwen3")
    sizes = _sizes(raw)
    return Config(
        family=family,
        rope=_rope(raw, sizes["max_position_embeddings"]),
        windows=_windows(family, raw, sizes["num_layers"]),
        rms_norm_eps=positive(raw, "rms_norm_eps", 1e-6),
        tie_embeddings=flag(raw, "tie_word_embeddings"),
        # Qwen2 always has biases on q, k and v and never on o; no key of its config.json says so.
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        mlp_bias=flag(raw, "mlp_bias") and family == "llama",
        qk_norm=family == "qwen3",
        **sizes,
        **_token_ids(raw, generation),
    )


def _sizes(raw):
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    needed(raw, (*keys, "num_attention_heads"), "config.json")
    vocab, hidden, ff, layers = (whole(raw, key) for key in keys)
    heads, head_dim = whole(raw, "num_attention_heads"), whole(raw, "head_dim")
    if head_dim is None and hidden % heads:
        raise ValueError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads} and there is "
            "no head_dim"
        )
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": ff,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": whole(raw, "num_key_value_heads", heads),
        "head_dim": head_dim or hidden // heads,
        "max_position_embeddings": whole(raw, "max_position_embeddings"),
    }


def _windows(family, raw, count):
    """Keys visible to each layer, itself included, or None. Families differ in who has a window."""
    if family == "llama":
        return (None,) * count
    window = whole(raw, "sliding_window")
    if family == "mistral":
        windows = (window,) * count
    else:
        window = (window or 4096) if flag(raw, "use_sliding_window") else None
        first = whole(raw, "max_window_layers", 28, minimum=0)
        windows = tuple(window if i >= first else None for i in range(count))
    types = raw.get("layer_types")
    if types is None:
        return windows
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != count or any(t not in known for t in types):
        raise ValueError(
            f"layer_types {shown(types)} is not supported; {count} of {' or '.join(known)} are"
        )
    if "sliding_attention" in types and window is None:
        raise ValueError("layer_types has sliding_attention, but no sliding_window is set")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _rope(raw, positions):
    """Rope of `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (before)."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise ValueError(f"rope_parameters or rope_scaling is {shown(given)}; it must be an object")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "dynamic":
        raise ValueError(
            "rope type 'dynamic' is not supported: its frequencies change with the length of the "
            "text, and cached keys would keep the old ones"
        )
    if kind not in KINDS:
        raise ValueError(f"rope type {shown(kind)} is not supported; {', '.join(KINDS)} are")
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor {shown(given['partial_rotary_factor'])} is not supported"
        )
    theta = positive(given, "rope_theta") or positive(raw, "rope_theta", 10000.0)
    if kind == "default":
        return Rope(theta=theta)
    needed(given, FACTORS[kind], f"rope type {kind!r}")
    factor = positive(given, "factor")
    if kind == "linear":
        return Rope(kind=kind, theta=theta, factor=factor)
    key = "original_max_position_embeddings"
    original = whole(raw, key) or whole(given, key, positions)
    if kind == "llama3":
        low, high = positive(given, "low_freq_factor"), positive(given, "high_freq_factor")
        return Rope(kind, theta, factor, original, low_freq_factor=low, high_freq_factor=high)
    return Rope(
        kind,
        theta,
        factor,
        original,
        beta_fast=positive(given, "beta_fast", 32.0),
        beta_slow=positive(given, "beta_slow", 1.0),
        truncate=flag(given, "truncate", True),
        attention_factor=_yarn_factor(given, factor),
    )


def _yarn_factor(given, factor):
    """What multiplies cos and sin: given, or from two mscales (DeepSeek's way), or the paper's."""
    paper = yarn_attention_factor(factor)
    over, under = positive(given, "mscale"), positive(given, "mscale_all_dim")
    if over is not None and under is not None:
        paper = (over * (paper - 1.0) + 1.0) / (under * (paper - 1.0) + 1.0)
    return positive(given, "attention_factor", paper)


def _token_ids(raw, generation):
    """bos and all eos ids; generation_config.json, when it names any, is the newer statement."""
    named = raw | {key: value for key, value in generation.items() if value is not None}
    eos = named.get("eos_token_id")
    eos = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return {
        "bos_token_id": whole(named, "bos_token_id", minimum=0),
        "eos_token_ids": tuple(whole({"eos_token_id": i}, "eos_token_id", minimum=0) for i in eos),
    }
