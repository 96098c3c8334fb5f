"""A Config from the metadata of a GGUF file, as llama.cpp's converter writes it."""

from models.config import Config
from models.fields import needed, positive, texts, whole
from models.rope import Rope, yarn_attention_factor
from models.wording import shown

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
            f"GGUF architecture {shown(family)} is not supported; one of {', '.join(FAMILIES)} is"
        )

    own = {key.removeprefix(f"{family}."): value for key, value in meta.items()}
    try:
        return _config(family, own, tensors, rope_freqs, meta)
    except ValueError as error:
        raise ValueError(f"GGUF metadata of {family!r}: {error}") from None


def eos_token_ids(meta):
    """All ids that end a text: end of sequence, of turn and of message, without doubles."""
    ids = (_token_id(meta, name) for name in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(i for i in ids if i is not None))


def _token_id(meta, name):
    return whole(meta, f"tokenizer.ggml.{name}_token_id", minimum=0)


def _config(family, own, tensors, rope_freqs, meta):
    for key in UNSUPPORTED:
        if own.get(key):
            raise ValueError(f"{key} is {shown(own[key])}: that is not supported")
    sizes = _sizes(own, len(texts(meta, "tokenizer.ggml.tokens")))
    window = whole(own, "attention.sliding_window", minimum=0) or None
    return Config(
        family=family,
        rope=_rope(own, rope_freqs),
        windows=(window,) * sizes["num_layers"],
        rms_norm_eps=positive(own, "attention.layer_norm_rms_epsilon", 1e-6),
        tie_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        out_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        qk_norm=family == "qwen3",
        bos_token_id=_token_id(meta, "bos"),
        eos_token_ids=eos_token_ids(meta),
        **sizes,
    )


def _sizes(own, tokens):
    keys = ("embedding_length", "feed_forward_length", "block_count", "context_length")
    needed(own, (*keys, "attention.head_count"), "it")
    hidden, ff, layers, positions = (whole(own, key) for key in keys)
    heads = whole(own, "attention.head_count")
    head_dim = whole(own, "attention.key_length", hidden // heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        if own.get(key, head_dim) != head_dim:
            raise ValueError(
                f"{key} is {shown(own[key])}: only the head dimension, {head_dim}, is supported"
            )
    return {
        "vocab_size": whole(own, "vocab_size", tokens),
        "hidden_size": hidden,
        "intermediate_size": ff,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": whole(own, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": positions,
    }


def _rope(own, divisors):
    """Rope of `rope.freq_base`, `rope.scaling.*` and the values of rope_freqs.weight."""
    kind = own.get("rope.scaling.type", "none")
    common = {
        "theta": positive(own, "rope.freq_base", 10000.0),
        "divisors": None if divisors is None else tuple(float(d) for d in divisors),
    }
    if kind == "none":
        old = positive(own, "rope.scale_linear", 1.0)  # from before rope.scaling.* existed
        return Rope(**common) if old == 1 else Rope("linear", factor=old, **common)
    if kind not in ("linear", "yarn"):
        raise ValueError(
            f"rope.scaling.type {shown(kind)} is not supported; 'none', 'linear' and 'yarn' are"
        )
    needed(own, ("rope.scaling.factor",), f"rope.scaling.type {kind!r}")
    factor = positive(own, "rope.scaling.factor")
    if kind == "linear":
        return Rope(kind, factor=factor, **common)
    mix = own.get("rope.scaling.yarn_ext_factor", 1.0)
    if mix != 1.0:
        raise ValueError(f"rope.scaling.yarn_ext_factor is {shown(mix)}: only 1 is supported")
    # The file's factors multiply the one of the paper.
    attention_factor = yarn_attention_factor(factor)
    for key in ("attn_factor", "yarn_attn_factor"):
        attention_factor *= positive(own, f"rope.scaling.{key}", 1.0)
    return Rope(
        kind,
        factor=factor,
        original_max_position_embeddings=whole(
            own, "rope.scaling.original_context_length", whole(own, "context_length")
        ),
        beta_fast=positive(own, "rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=positive(own, "rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=attention_factor,
        **common,
    )
