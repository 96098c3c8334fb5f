"""Tiny vision models of every family: their config.json, their weights and the images they see.

Used by `make_vision.py` (which asks transformers for the results) and by the tests. Only NumPy is
needed. Weights are a function of the tensor's name, so no order has to be kept.
"""

import zlib

import numpy as np

_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
}
_TINY = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
_DINO = {"mlp_ratio": 2, "patch_size": 4, "image_size": 148}


def _config(kind, architecture, **changes):
    return {"model_type": kind, "architectures": [architecture]} | changes


def _labels(count):
    return {"id2label": {str(i): f"class {i}" for i in range(count)}}


_CLIP_TEXT = _TINY | {"num_attention_heads": 2, "vocab_size": 40, "max_position_embeddings": 12}

# name -> config.json as the Hub has it.
MODELS = {
    "vit": _config(
        "vit",
        "ViTForImageClassification",
        **_SMALL,
        image_size=64,
        patch_size=4,
        **_labels(5),
    ),
    "vit_pooler": _config("vit", "ViTModel", **_SMALL, image_size=32, patch_size=4, qkv_bias=False),
    "dinov2": _config("dinov2", "Dinov2Model", **_SMALL, **_DINO),
    "dinov2_giant": _config(
        "dinov2",
        "Dinov2ForImageClassification",
        **_SMALL,
        **_DINO,
        use_swiglu_ffn=True,
        **_labels(4),
    ),
    "dinov2_registers": _config(
        "dinov2_with_registers",
        "Dinov2WithRegistersForImageClassification",
        **_SMALL,
        **_DINO,
        num_register_tokens=4,
        **_labels(4),
    ),
    "clip": _config(
        "clip",
        "CLIPModel",
        projection_dim=24,
        vision_config=_SMALL | {"image_size": 96, "patch_size": 4},
        text_config=_CLIP_TEXT | {"eos_token_id": 5, "bos_token_id": 1, "pad_token_id": 0},
    ),
    "clip_gelu": _config(
        "clip",
        "CLIPModel",
        projection_dim=24,
        vision_config=_SMALL | {"image_size": 32, "patch_size": 4, "hidden_act": "gelu"},
        text_config=_CLIP_TEXT | {"eos_token_id": 2, "hidden_act": "gelu"},
    ),
    "siglip": _config(
        "siglip",
        "SiglipModel",
        vision_config=_SMALL | {"image_size": 108, "patch_size": 4},
        text_config=_TINY
        | {
            "num_attention_heads": 2,
            "vocab_size": 40,
            "max_position_embeddings": 9,
            "projection_size": 32,
        },
    ),
}
# name -> the sizes (height, width) in pixels: the learnt grid, other squares and no squares. In
# patches of 4: 257, 577, 729 and 1370 (1369 and the class token) tokens are among them.
SIZES = {
    "vit": ((64, 64), (96, 96), (52, 84)),
    "vit_pooler": ((32, 32), (24, 47)),
    "dinov2": ((148, 148), (64, 64), (52, 80)),
    "dinov2_giant": ((64, 64),),
    "dinov2_registers": ((148, 148), (64, 64), (52, 80), (160, 28)),
    "clip": ((96, 96), (64, 64), (40, 72)),
    "clip_gelu": ((32, 32), (20, 36)),
    "siglip": ((108, 108), (148, 148), (40, 72)),
}


def image(name, size):
    """f32 [height, width, 3]: smooth and noisy, as a normalised photograph may be."""
    rng = _rng(f"{name} {size}")
    height, width = size
    y, x = np.mgrid[:height, :width][..., None] / 40.0
    waves = np.sin(y * rng.uniform(0.5, 3, 3) + x * rng.uniform(0.5, 3, 3))
    return (waves + 0.3 * rng.standard_normal((height, width, 3))).astype(np.float32)


def texts(name):
    """Token ids of three texts, i32 [3, max_position_embeddings], ended and padded as theirs."""
    text = MODELS[name]["text_config"]
    length, eos = text["max_position_embeddings"], {"clip": 5}.get(name, 39)
    ids = np.full((3, length), eos, np.int32)
    rng = _rng(f"{name} texts")
    for row, count in zip(ids, (length - 1, 4, 7), strict=True):
        row[:count] = rng.integers(6, 39, count)
    return ids


def weights(name, shapes):
    """tensor name -> float32 array for `shapes` (name -> shape) of model `name`."""
    return {x: np.asarray(_values(f"{name} {x}", shape)) for x, shape in shapes.items()}


def sketch(hidden):
    """f32 [T]: one number of every row of hidden states [T, E], which any entry changes."""
    direction = np.cos(1.7 * np.arange(hidden.shape[-1])).astype(np.float32)
    return np.asarray(hidden) @ direction


def _values(key, shape):
    """Normal numbers, of a size that makes neither the softmax nor the outputs flat."""
    noise = np.float32(_rng(key).standard_normal(shape))
    if "norm" in key and key.endswith("weight"):
        return 1 + np.float32(0.2) * noise
    if key.endswith("lambda1"):
        return np.float32(0.7) + np.float32(0.2) * noise
    if key.endswith("logit_scale"):
        return np.float32(2.0) + np.float32(0.1) * noise
    return noise * np.float32(0.3 if noise.size < 200 else 0.2)


def _rng(key):
    return np.random.default_rng([2, zlib.crc32(key.encode())])
