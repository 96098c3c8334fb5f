"""Directories of vision models: what is read of them, and everything that can be wrong with one."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from vision_support import SHAPES, jitted, tiny, write

import models
from models import preprocessing
from models.vision_config_hf import from_hf

# What the Hub's files say, where it is more than the defaults of transformers.
HUB = {
    "vit-base-patch16-224": (
        {"model_type": "vit", "architectures": ["ViTForImageClassification"], "num_labels": 1000},
        (12, 768, 64, 3072, 14, 197),
    ),
    "dinov2-giant": (
        {
            "model_type": "dinov2",
            "hidden_size": 1536,
            "num_hidden_layers": 40,
            "num_attention_heads": 24,
            "image_size": 518,
            "use_swiglu_ffn": True,
        },
        (40, 1536, 64, 4096, 37, 1370),
    ),
    "clip-vit-large-patch14-336": (
        {
            "model_type": "clip",
            "projection_dim": 768,
            "vision_config": {"image_size": 224, "patch_size": 32},
            "vision_config_dict": {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "image_size": 336,
                "patch_size": 14,
            },
            "text_config_dict": {"hidden_size": 768, "intermediate_size": 3072,
                                 "num_attention_heads": 12, "eos_token_id": 2},
        },
        (24, 1024, 64, 4096, 24, 577),
    ),
    "siglip-so400m-patch14-384": (
        {
            "model_type": "siglip",
            "vision_config": {
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "image_size": 384,
                "patch_size": 14,
            },
            "text_config": {"hidden_size": 1152, "intermediate_size": 4304,
                            "num_attention_heads": 16, "num_hidden_layers": 27},
        },
        (27, 1152, 72, 4304, 27, 729),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HUB)
def test_sizes_of_real_models(name):
    raw, sizes = HUB[name]
    config = from_hf(raw)
    vision = getattr(config, "vision", config)
    e, tokens = vision.encoder, vision.num_prefix + vision.grid**2
    assert sizes == (
        e.num_layers, e.hidden_size, e.head_dim, e.intermediate_size, vision.grid, tokens,
    )  # fmt: skip
    if name.startswith("clip"):
        assert (config.text.head_size, config.text.pool_id) == (768, None)
        assert config.text.encoder.activation == e.activation == "quick_gelu"
    if name.startswith("vit"):
        assert len(config.labels) == 1000


def refuse(folder, message, error=ValueError):
    with pytest.raises(error, match=message) as caught:
        models.load_vision(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("vit", {"model_type": "llama"}, "model_type 'llama' is not supported; one of vit, "),
        ("vit", {"hidden_act": "relu"}, "hidden_act 'relu' is not supported; one of gelu"),
        ("vit", {"patch_size": [4, 8]}, r"patch_size is \[4, 8\]; only squares are supported"),
        ("vit", {"num_attention_heads": 3}, "hidden_size 32 must be a multiple of"),
        ("vit", {"num_attention_heads": 8}, "head_dim 4 must be a multiple of 8"),
        ("vit", {"image_size": 3}, "image_size 3 must be at least patch_size 4"),
        ("vit", {"id2label": {"1": "a"}}, "id2label is {'1': 'a'}; it must name each id from 0"),
        ("vit", {"num_channels": 1}, "num_channels is 1; 3 is supported"),
        ("vit", {"quantization_config": {"bits": 4}}, "quantization_config .* is not supported"),
        ("vit_pooler", {"pooler_act": "relu"}, "pooler_act 'relu' is not supported"),
        ("clip", {"vision_config": [3]}, r"vision_config is \[3\]; it must be an object"),
        ("vit", {"num_hidden_layers": 4}, "weights do not fit the model: 16 missing"),
        ("dinov2", {"image_size": 64}, r"position_embeddings is \[1, 1370, 32\], not \[1, 257"),
    ],
)
def test_bad_configs(name, change, message, tmp_path):
    refuse(write(tmp_path / "model", name, **change), message)


def test_bad_files(tmp_path):
    folder = write(tmp_path / "model", "vit")
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Other"}')
    refuse(folder, "preprocessor_config.json: image_processor_type 'Other' is not supported")
    (folder / "preprocessor_config.json").write_text("{")
    refuse(folder, "preprocessor_config.json is not JSON")
    (folder / "preprocessor_config.json").unlink()
    (folder / "model.safetensors").write_bytes(b"no")
    refuse(folder, "model.safetensors is not a whole safetensors file")
    (folder / "config.json").unlink()
    refuse(folder, "config.json does not exist", FileNotFoundError)
    with pytest.raises(ValueError, match="dtype 'int8' is not supported"):
        models.load_vision(folder, dtype="int8")


def test_all_bad_weights_are_in_one_error(tmp_path):
    folder = write(tmp_path, "clip")
    weights = load_file(folder / "model.safetensors")
    del weights["logit_scale"]
    weights["vision_model.extra"] = np.ones(3, np.float32)
    weights["text_model.final_layer_norm.bias"] = np.ones(9, np.float32)
    save_file(weights, folder / "model.safetensors")
    refuse(folder, r"1 missing \(logit_scale\); 1 unexpected \(vision_model.extra\); 1 of another")


def test_harmless_extras(tmp_path):
    folder = write(tmp_path, "clip")
    weights = load_file(folder / "model.safetensors")
    weights["vision_model.embeddings.position_ids"] = np.ones((1, 577), np.float32)
    save_file(weights, folder / "model.safetensors")
    models.load_vision(folder)


def test_the_tower_of_a_pair_alone(tmp_path):
    """A clip_vision_model's config beside the weights of the pair gives the pair's tower."""
    pair = models.load_vision(write(tmp_path / "pair", "clip_gelu"))
    raw = tiny.MODELS["clip_gelu"]["vision_config"]
    folder = write(tmp_path / "tower", "clip_gelu", **raw, model_type="clip_vision_model")
    tower = models.load_vision(folder)
    assert tower.image_features is None
    pixels = tiny.image("clip_gelu", (32, 32))[None]
    got, want = (jitted(x.encode)(x.params, pixels).pooled for x in (tower, pair))
    np.testing.assert_array_equal(got, want)


def test_a_vit_without_a_pooler(tmp_path):
    """As DINO's and MAE's files: the class token is the image's vector."""
    folder = write(tmp_path, "vit_pooler")
    weights = load_file(folder / "model.safetensors")
    for part in ("weight", "bias"):
        del weights[f"pooler.dense.{part}"]
    save_file(weights, folder / "model.safetensors")
    loaded = models.load_vision(folder)
    out = jitted(loaded.encode)(loaded.params, tiny.image("vit_pooler", (32, 32))[None])
    np.testing.assert_array_equal(out.pooled, out.last_hidden_state[:, 0])


def test_shards_hold_the_same(tmp_path):
    one = models.load_vision(write(tmp_path / "one", "siglip"))
    folder = write(tmp_path / "many", "siglip")
    weights = tiny.weights("siglip", SHAPES["siglip"])
    names = sorted(weights)
    index = {}
    for i, part in enumerate((names[::2], names[1::2])):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    two = models.load_vision(folder)
    assert jax.tree.all(jax.tree.map(np.array_equal, one.params, two.params))


def test_the_processor_of_a_directory_without_settings(tmp_path):
    loaded = models.load_vision(write(tmp_path, "siglip"))
    assert loaded.processor == preprocessing.from_hf(
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 108, "width": 108}}
    )
