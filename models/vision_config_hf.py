"""A VisionConfig or PairConfig from Hugging Face's config.json, as written on the Hub."""

from models.fields import flag, needed, positive, text, whole
from models.vision_config import EncoderConfig, PairConfig, TextConfig, VisionConfig
from models.wording import shown

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
# What transformers assumes for keys that a file leaves out; old files hold only what differs.
_BASE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "num_channels": 3,
}
_DINO = {"hidden_act": "gelu", "layer_norm_eps": 1e-6, "mlp_ratio": 4}
VISION = {
    "vit": _BASE | {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "patch_size": 16},
    "dinov2": _BASE | _DINO | {"patch_size": 14},
    "dinov2_with_registers": _BASE | _DINO | {"patch_size": 16, "num_register_tokens": 4},
    "clip": _BASE | {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "patch_size": 32},
    "siglip": _BASE | {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "patch_size": 16},
}
TEXT = {
    "clip": _BASE
    | {
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "eos_token_id": 49407,
    },
    "siglip": _BASE
    | {
        "vocab_size": 32000,
        "max_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
}
MODEL_TYPES = (*VISION, "clip_vision_model", "siglip_vision_model")


def from_hf(raw):
    """PairConfig of a CLIP or SigLIP, else VisionConfig, of the dict `raw` (config.json).

    Raises ValueError naming the key, its value and what is supported.
    """
    try:
        kind = raw.get("model_type")
        if not isinstance(kind, str) or kind not in MODEL_TYPES:
            raise ValueError(
                f"model_type {shown(kind)} is not supported; one of {', '.join(MODEL_TYPES)} is"
            )
        if raw.get("quantization_config") is not None:
            raise ValueError(
                f"quantization_config {shown(raw['quantization_config'])} is not supported"
            )
        if kind in TEXT:
            return _pair(kind, raw)
        return vision_from_hf(kind.removesuffix("_vision_model"), raw)
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None


def vision_from_hf(family, raw):
    """VisionConfig of `family` from its own config.json or from another's vision_config."""
    raw = VISION[family] | _given(raw)
    if raw["num_channels"] != 3:
        raise ValueError(f"num_channels is {shown(raw['num_channels'])}; 3 is supported")
    switches = {
        "vit": _vit,
        "dinov2": _dinov2,
        "dinov2_with_registers": _dinov2,
        "clip": lambda raw: {"patch_bias": False, "pre_norm": True, "post_norm": False},
        "siglip": _siglip,
    }[family](raw)
    return VisionConfig(
        family=family,
        encoder=_encoder(raw, family),
        image_size=_side(raw, "image_size"),
        patch_size=_side(raw, "patch_size"),
        **switches,
    )


def _pair(family, raw):
    towers = {}
    for name in ("vision_config", "text_config"):
        towers[name] = {}
        for key in (name, f"{name}_dict"):  # OpenAI's files have both, and the second one counts
            value = raw.get(key) or {}
            if not isinstance(value, dict):
                raise ValueError(f"{key} is {shown(value)}; it must be an object")
            towers[name] |= _given(value)
    clip, words = family == "clip", TEXT[family] | towers["text_config"]
    width = whole(raw, "projection_dim", 512) if clip else whole(words, "projection_size")
    encoder = _encoder(words, family, causal=clip)
    eos = whole(words, "eos_token_id", minimum=0) if clip else None
    return PairConfig(
        family=family,
        vision=vision_from_hf(family, towers["vision_config"]),
        text=TextConfig(
            encoder=encoder,
            vocab_size=whole(words, "vocab_size"),
            max_length=whole(words, "max_position_embeddings"),
            # Files from before transformers 4.31 say 2, which is no CLIP token's id.
            pool_id="last" if not clip else None if eos == 2 else eos,
            head_size=width or encoder.hidden_size,
            head_bias=not clip,
        ),
        sigmoid=not clip,
    )


def _encoder(raw, family, causal=False):
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "hidden_act")
    needed(raw, keys, family)
    activation = ACTIVATIONS.get(text(raw, "hidden_act"))
    if activation is None:
        raise ValueError(
            f"hidden_act {shown(raw['hidden_act'])} is not supported; one of "
            f"{', '.join(ACTIVATIONS)} is"
        )
    hidden, dino = whole(raw, "hidden_size"), family.startswith("dinov2")
    gated = dino and flag(raw, "use_swiglu_ffn")
    inner = int(hidden * positive(raw, "mlp_ratio")) if dino else whole(raw, "intermediate_size")
    if gated:  # the paper's two thirds, in multiples of eight
        inner = (int(inner * 2 / 3) + 7) // 8 * 8
    return EncoderConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=whole(raw, "num_hidden_layers"),
        num_heads=whole(raw, "num_attention_heads"),
        norm_eps=positive(raw, "layer_norm_eps"),
        activation=activation,
        qkv_bias=flag(raw, "qkv_bias", True),
        gated=gated,
        layer_scale=dino,
        causal=causal,
    )


def _vit(raw):
    if _classifies(raw):
        return {"classifier": "class", "labels": _labels(raw)}
    act = text(raw, "pooler_act", "tanh")
    if act != "tanh":
        raise ValueError(f"pooler_act {shown(act)} is not supported; 'tanh' is")
    size = whole(raw, "pooler_output_size") or whole(raw, "hidden_size")
    return {"pooling": "tanh", "pooler_size": size}


def _dinov2(raw):
    registers = whole(raw, "num_register_tokens", 0, minimum=0)
    found = {"num_registers": registers, "antialias": "num_register_tokens" in raw}
    if _classifies(raw):
        found |= {"classifier": "class+mean", "labels": _labels(raw)}
    return found


def _siglip(raw):
    head = flag(raw, "vision_use_head", True)
    return {"class_token": False, "pooling": "attention" if head else None}


def _classifies(raw):
    names = raw.get("architectures") or []
    return any(isinstance(n, str) and n.endswith("ForImageClassification") for n in names)


def _labels(raw):
    """The names of the classes in the order of their ids; id2label's keys are texts in JSON."""
    named = raw.get("id2label")
    if named is None:
        return tuple(f"LABEL_{i}" for i in range(whole(raw, "num_labels", 2)))
    wanted = {str(i) for i in range(len(named))} if isinstance(named, dict) else None
    if not named or wanted != set(named) or not all(isinstance(x, str) for x in named.values()):
        raise ValueError(f"id2label is {shown(named)}; it must name each id from 0 with a text")
    return tuple(named[str(i)] for i in range(len(named)))


def _side(raw, key):
    """raw[key], a whole number or two equal ones."""
    value = raw.get(key)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if isinstance(value, list):
        raise ValueError(f"{key} is {shown(value)}; only squares are supported")
    return whole({key: value}, key)


def _given(raw):
    """`raw` without the keys that are null: they mean the default."""
    return {key: value for key, value in raw.items() if value is not None}
