"""A Config from the metadata of a GGUF file, as llama.cpp's converter writes it."""

from models.config import Config
from models.rope import Rope, yarn_attention_factor

FAMILIES = ("llama", "qwen2", "qwen3")  # general.architecture; Mistral is written as "llama"

# Keys that would change the result and that nothing here implements, unless they say "off".
UNSUPPORTED = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.temperature_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)


def from_gguf(meta, tensors, rope_freqs=None):
    """Config of `meta` (key -> value), `tensors` (the names in the file) and, for Llama 3.1 and
    later, the values of the tensor `rope_freqs.weight`: the file has no other trace of their RoPE
    scaling.

    Raises ValueError naming the key, its value and what is supported.
    """
    family = meta.get("general.architecture")
    if family not in FAMILIES:
        raise ValueError(
            f"GGUF architecture {family!r} is not supported; one of {', '.join(FAMILIES)} is"
        )

    def get(key, default=None):
        return meta.get(f"{family}.{key}", default)

    for key in UNSUPPORTED:
        if get(key):
            raise ValueError(f"{family}.{key} is {get(key)}: that is not supported")
    sizes = _sizes(family, meta, get)
    return Config(
        family=family,
        rope=_rope(family, get, rope_freqs),
        windows=(get("attention.sliding_window"),) * sizes["num_layers"],
        rms_norm_eps=float(get("attention.layer_norm_rms_epsilon", 1e-6)),
        tie_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        qk_norm=family == "qwen3",
        bos_token_id=_token_id(meta, "bos"),
        eos_token_ids=eos_token_ids(meta),
        **sizes,
    )


def eos_token_ids(meta):
    """All ids that end a text: end of sequence, of turn and of message, without doubles."""
    ids = (_token_id(meta, name) for name in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _token_id(meta, name):
    value = meta.get(f"tokenizer.ggml.{name}_token_id")
    return None if value is None else int(value)


def _sizes(family, meta, get):
    needed = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_layers": "block_count",
        "num_heads": "attention.head_count",
        "max_position_embeddings": "context_length",
    }
    missing = [f"{family}.{key}" for key in needed.values() if get(key) is None]
    if missing:
        raise ValueError(f"the GGUF metadata lacks {', '.join(missing)}")
    for key in ("feed_forward_length", "attention.head_count", "attention.head_count_kv"):
        if isinstance(get(key), list):
            raise ValueError(f"{family}.{key} differs between layers: that is not supported")
    sizes = {name: int(get(key)) for name, key in needed.items()}
    heads = sizes["num_heads"]
    head_dim = int(get("attention.key_length", sizes["hidden_size"] // max(heads, 1)))
    for key in ("rope.dimension_count", "attention.value_length"):
        if get(key, head_dim) != head_dim:
            raise ValueError(
                f"{family}.{key} is {get(key)}: only the head dimension, {head_dim}, is supported"
            )
    vocab = get("vocab_size") or len(meta.get("tokenizer.ggml.tokens", ()))
    return sizes | {
        "head_dim": head_dim,
        "num_kv_heads": int(get("attention.head_count_kv", heads)),
        "vocab_size": int(vocab),
    }


def _rope(family, get, divisors):
    """Rope of `rope.freq_base`, `rope.scaling.*` and the values of rope_freqs.weight."""
    kind = get("rope.scaling.type", "none")
    common = {
        "theta": float(get("rope.freq_base", 10000.0)),
        "divisors": None if divisors is None else tuple(float(d) for d in divisors),
    }
    old = get("rope.scale_linear")  # how files were written before rope.scaling.* existed
    if kind == "none" and old not in (None, 1, 1.0):
        return Rope("linear", factor=float(old), **common)
    if kind == "none":
        return Rope(**common)
    if kind not in ("linear", "yarn"):
        raise ValueError(
            f"{family}.rope.scaling.type {kind!r} is not supported; 'none', 'linear' and 'yarn' are"
        )
    factor = get("rope.scaling.factor")
    if not factor or factor <= 0:
        raise ValueError(f"{family}.rope.scaling.factor is {factor}; it must be above 0")
    if kind == "linear":
        return Rope(kind, factor=float(factor), **common)
    mix = get("rope.scaling.yarn_ext_factor", 1.0)
    if mix != 1.0:
        raise ValueError(f"{family}.rope.scaling.yarn_ext_factor is {mix}: only 1 is supported")
    # The file's factors multiply the one of the paper.
    attention_factor = yarn_attention_factor(factor)
    for key in ("attn_factor", "yarn_attn_factor"):
        attention_factor *= float(get(f"rope.scaling.{key}", 1.0))
    original = get("rope.scaling.original_context_length", get("context_length"))
    return Rope(
        kind,
        factor=float(factor),
        original_max_position_embeddings=int(original),
        beta_fast=float(get("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(get("rope.scaling.yarn_beta_slow", 1.0)),
        attention_factor=attention_factor,
        **common,
    )
