"""Which tensor of a ViT, DINOv2, CLIP or SigLIP checkpoint goes where."""

import re

from models.vision_config import PairConfig
from models.weights import Entry

# Harmless extras: buffers of old transformers, and what masked pre-training needs.
IGNORED = re.compile(r"(^|\.)(position_ids|mask_token)$")

# role: its name below a layer, as (ViT, DINOv2, CLIP and SigLIP) write it.
LAYER = {
    "norm1": ("layernorm_before", "norm1", "layer_norm1"),
    "q": ("attention.attention.query", "attention.attention.query", "self_attn.q_proj"),
    "k": ("attention.attention.key", "attention.attention.key", "self_attn.k_proj"),
    "v": ("attention.attention.value", "attention.attention.value", "self_attn.v_proj"),
    "out": ("attention.output.dense", "attention.output.dense", "self_attn.out_proj"),
    "norm2": ("layernorm_after", "norm2", "layer_norm2"),
    "up": ("intermediate.dense", "mlp.fc1", "mlp.fc1"),
    "down": ("output.dense", "mlp.fc2", "mlp.fc2"),
}
GATED = {"up": "mlp.weights_in", "down": "mlp.weights_out"}
COLUMN = {"vit": 0, "dinov2": 1, "dinov2_with_registers": 1, "clip": 2, "siglip": 2}
# role: (ViT's and DINOv2's name, CLIP's and SigLIP's), below the tower's prefix.
TOWER = {
    "layers": ("encoder.layer", "encoder.layers"),
    "patch": ("embeddings.patch_embeddings.projection", "embeddings.patch_embedding"),
    "positions": ("embeddings.position_embeddings", "embeddings.position_embedding.weight"),
    "class_token": ("embeddings.cls_token", "embeddings.class_embedding"),
    "registers": ("embeddings.register_tokens", None),
    "pre_norm": (None, "pre_layrnorm"),  # the Hub's spelling
    "norm": ("layernorm", "post_layernorm"),
}


def hf_table(config):
    """name -> Entry for safetensors files as transformers writes them."""
    if isinstance(config, PairConfig):
        return _pair_table(config)
    if config.family in ("clip", "siglip"):
        return tower_table(config, "vision_model.")
    # A classifier's file names its tower; a plain model's does not.
    return tower_table(config, f"{config.family}." if config.labels else "")


def ignored(name):
    """Whether an extra tensor is harmless."""
    return IGNORED.search(name) is not None


def tower_table(config, prefix, at=()):
    """name -> Entry of a vision tower whose names begin with `prefix`, in the state below `at`."""
    c, size = config, config.encoder.hidden_size
    hub = int(c.family in ("clip", "siglip"))
    named = {role: names[hub] for role, names in TOWER.items()}
    embeddings = (*at, "embeddings")
    patch = Entry((*embeddings, "patch", "weight"), (size, 3, c.patch_size, c.patch_size))
    count = c.grid**2 + c.class_token
    lead = () if hub else (1,)  # ViT's files keep a batch axis
    table = {
        f"{named['patch']}.weight": patch,
        named["positions"]: Entry((*embeddings, "positions"), (*lead, count, size)),
        **_norm(named["norm"], (*at, "norm"), size),
    }
    if c.patch_bias:
        table[f"{named['patch']}.bias"] = Entry((*embeddings, "patch", "bias"), (size,))
    if c.class_token:
        shape = (size,) if hub else (1, 1, size)
        table[named["class_token"]] = Entry((*embeddings, "class_token"), shape)
    if c.num_registers:
        shape = (1, c.num_registers, size)
        table[named["registers"]] = Entry((*embeddings, "registers"), shape)
    if c.pre_norm:
        table |= _norm(named["pre_norm"], (*at, "pre_norm"), size)
    table |= _layers(c.encoder, c.family, named["layers"], (*at, "encoder"))
    if c.pooling == "attention":
        table |= _attention_pool(c.encoder, (*at, "pool"))
    elif c.pooling == "tanh":
        table |= _linear("pooler.dense", (*at, "pool"), c.pooler_size, size)
    table = {prefix + name: entry for name, entry in table.items()}
    if c.labels:
        seen = size * (2 if c.classifier == "class+mean" else 1)
        table |= _linear("classifier", (*at, "head"), len(c.labels), seen)
    return table


def _pair_table(config):
    text, size = config.text, config.text.encoder.hidden_size
    table = {
        "embeddings.token_embedding.weight": Entry(("text", "embed"), (text.vocab_size, size)),
        "embeddings.position_embedding.weight": Entry(
            ("text", "positions"), (text.max_length, size)
        ),
        **_norm("final_layer_norm", ("text", "norm"), size),
        **_layers(text.encoder, config.family, "encoder.layers", ("text", "encoder")),
    }
    head = ("text", "head")
    if config.family == "siglip":
        table |= _linear("head", head, text.head_size, size)
    table = {f"text_model.{name}": entry for name, entry in table.items()}
    table |= tower_table(config.vision, "vision_model.", ("vision",))
    if config.family == "siglip":
        table["logit_scale"] = Entry(("logit_scale",), (1,))
        table["logit_bias"] = Entry(("logit_bias",), (1,))
        return table
    width = config.vision.encoder.hidden_size
    table["text_projection.weight"] = Entry((*head, "weight"), (text.head_size, size))
    table["visual_projection.weight"] = Entry(("projection", "weight"), (text.head_size, width))
    table["logit_scale"] = Entry(("logit_scale",), ())
    return table


def _layers(c, family, prefix, at):
    size, inner = c.hidden_size, c.intermediate_size
    names = {role: columns[COLUMN[family]] for role, columns in LAYER.items()}
    if c.gated:
        names |= GATED
    table = {}
    for i in range(c.num_layers):
        block = (*at, "layers", i)
        rows = {}
        for role in ("norm1", "norm2"):
            rows |= _norm(names[role], (*block, role), size)
        for part, role in enumerate("qkv"):
            qkv = (*block, "attention", "qkv")
            rows |= _linear(names[role], qkv, size, size, part=(part,), bias=c.qkv_bias)
        rows |= _linear(names["out"], (*block, "attention", "out"), size, size)
        rows |= _linear(names["up"], (*block, "mlp", "up"), inner * (1 + c.gated), size)
        rows |= _linear(names["down"], (*block, "mlp", "down"), size, inner)
        if c.layer_scale:
            for n in (1, 2):
                rows[f"layer_scale{n}.lambda1"] = Entry((*block, f"scale{n}"), (size,))
        table |= {f"{prefix}.{i}.{name}": entry for name, entry in rows.items()}
    return table


def _attention_pool(c, at):
    """SigLIP's head; its q, k and v are one tensor, as torch's MultiheadAttention has them."""
    size = c.hidden_size
    table = {
        "probe": Entry((*at, "probe"), (1, 1, size)),
        "attention.in_proj_weight": Entry((*at, "qkv"), (3 * size, size)),
        "attention.in_proj_bias": Entry((*at, "qkv_bias"), (3 * size,)),
        **_linear("attention.out_proj", (*at, "out"), size, size),
        **_norm("layernorm", (*at, "norm"), size),
        **_linear("mlp.fc1", (*at, "mlp", "up"), c.intermediate_size, size),
        **_linear("mlp.fc2", (*at, "mlp", "down"), size, c.intermediate_size),
    }
    return {f"head.{name}": entry for name, entry in table.items()}


def _norm(name, at, size):
    return {f"{name}.{part}": Entry((*at, part), (size,)) for part in ("weight", "bias")}


def _linear(name, at, out, size, part=(), bias=True):
    table = {f"{name}.weight": Entry((*at, "weight"), (out, size), part)}
    return table | ({f"{name}.bias": Entry((*at, "bias"), (out,), part)} if bias else {})
