"""Every vision family against transformers (golden/make_vision.py says how)."""

import jax
import models_support as support
import numpy as np
import pytest
import vision as tiny
from flax import nnx
from vision_support import SHAPES, jitted, write

import models
from models import vision_weights
from models.pair import Pair
from models.vision_config_hf import from_hf
from models.weights import fill

CASES = [(name, size) for name in tiny.MODELS for size in tiny.SIZES[name]]
PAIRS = [name for name, raw in tiny.MODELS.items() if "text_config" in raw]
# float32 in another order of additions, of values of spread 1 to 30.
CLOSE = {"rtol": 2e-5, "atol": 1e-4}


@pytest.fixture(scope="module")
def golden():
    with np.load(support.GOLDEN / "vision.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """name -> the loaded model, each read once."""
    known = {}

    def get(name):
        if name not in known:
            known[name] = models.load_vision(write(tmp_path_factory.mktemp(name), name))
        return known[name]

    return get


@pytest.mark.parametrize(("name", "size"), CASES, ids=lambda x: str(x))
def test_every_hidden_state(name, size, load, golden):
    loaded, key = load(name), f"{name}_{size[0]}x{size[1]}"

    def everything(params, images):
        heads = {"_logits": loaded.classify, "_features": loaded.image_features}
        out = loaded.encode(params, images)
        found = {key: head(params, images) for key, head in heads.items() if head is not None}
        return out, found | {"_pooled": out.pooled}

    out, found = jitted(everything)(loaded.params, tiny.image(name, size)[None])
    hidden = [*out.hidden_states, out.last_hidden_state]
    want = golden[f"{key}_hidden"]
    assert len(hidden) == len(want)
    assert hidden[0].shape[:2] == (1, want.shape[1])
    for i, (got, row) in enumerate(zip(hidden, want, strict=True)):
        np.testing.assert_allclose(tiny.sketch(got[0]), row, **CLOSE, err_msg=f"state {i}")
    wanted = {k.removeprefix(key) for k in golden if k.startswith(key)} - {"_hidden"}
    assert wanted <= set(found)
    for kind in wanted:
        np.testing.assert_allclose(found[kind][0], golden[key + kind], **CLOSE, err_msg=kind)


@pytest.mark.parametrize("name", PAIRS)
def test_texts_and_their_logits(name, load, golden):
    loaded, ids = load(name), tiny.texts(name)
    pixels = tiny.image(name, tiny.SIZES[name][0])[None]

    def everything(params):
        features = loaded.text_features(params, ids)
        logits = loaded.logits(params, loaded.image_features(params, pixels), features)
        return features, logits, loaded.scores(params, logits)

    features, logits, scores = jitted(everything)(loaded.params)
    np.testing.assert_allclose(features, golden[f"{name}_texts"], **CLOSE)
    want = golden[f"{name}_pair_logits"]
    np.testing.assert_allclose(logits[0], want, **CLOSE)
    probable = 1 / (1 + np.exp(-want)) if name == "siglip" else np.exp(want) / np.exp(want).sum()
    np.testing.assert_allclose(scores[0], probable, rtol=1e-3)


@pytest.mark.parametrize("name", PAIRS)
def test_every_hidden_state_of_texts(name, golden):
    _, state = models.vision_load.abstract(from_hf(tiny.MODELS[name]))
    model = Pair(from_hf(tiny.MODELS[name]), rngs=nnx.Rngs(0))
    table = vision_weights.hf_table(model.config)
    leaves = fill(table, state, Held(tiny.weights(name, SHAPES[name])), np.float32)
    nnx.update(model, jax.tree.unflatten(jax.tree.structure(state), leaves))
    _, hidden = nnx.jit(lambda model, ids: model.text(ids))(model, tiny.texts(name))
    want = golden[f"{name}_text_hidden"]
    assert len(hidden) == len(want)
    for i, (got, row) in enumerate(zip(hidden, want, strict=True)):
        np.testing.assert_allclose(tiny.sketch(got), row, **CLOSE, err_msg=f"state {i}")


class Held:
    """A source of weights that are in memory."""

    def __init__(self, tensors):
        self.read = tensors.get


def test_texts_of_any_lengths_give_what_padded_ones_do(load, golden):
    loaded, ids = load("clip"), tiny.texts("clip")
    cut = [row[: count + 1] for row, count in zip(ids, (11, 4, 7), strict=True)]
    assert len({len(row) for row in cut}) == 3
    got = jitted(loaded.text_features)(loaded.params, cut)
    np.testing.assert_allclose(got, golden["clip_texts"], **CLOSE)


@pytest.mark.parametrize("name", ["vit", "dinov2_registers", "clip", "siglip"])
def test_images_of_different_sizes_in_one_call(name, load, golden):
    """Packed images, one of them twice, are what each is by itself."""
    loaded = load(name)
    sizes = [tiny.SIZES[name][i] for i in (2, 0, 1, 2)]
    images = [tiny.image(name, size) for size in sizes]
    out = jitted(loaded.encode)(loaded.params, images)
    last = out.split(out.last_hidden_state)
    second = out.split(out.hidden_states[1])
    for i, size in enumerate(sizes):
        key = f"{name}_{size[0]}x{size[1]}"
        np.testing.assert_allclose(tiny.sketch(last[i]), golden[f"{key}_hidden"][-1], **CLOSE)
        np.testing.assert_allclose(tiny.sketch(second[i]), golden[f"{key}_hidden"][1], **CLOSE)
        if f"{key}_pooled" in golden:
            np.testing.assert_allclose(out.pooled[i], golden[f"{key}_pooled"], **CLOSE)
    grids = [grid.shape[:2] for grid in out.patches(out.last_hidden_state)]
    assert grids == [(height // 4, width // 4) for height, width in sizes]
    corner = out.patches(out.last_hidden_state)[1][0, 0]
    np.testing.assert_array_equal(corner, last[1][out.num_prefix])


def test_the_names_of_the_intermediates(load):
    loaded = load("clip_gelu")
    out = jax.eval_shape(loaded.encode, loaded.params, np.zeros((2, 32, 32, 3), np.float32))
    assert set(out.intermediates) == {"embeddings", "layers.0", "layers.1", "layers.2", "last"}
    assert {x.shape for x in out.intermediates.values()} == {(2, 65, 32)}
    assert out.hidden_states[-2] is out.intermediates["layers.1"]


def test_half_precision(load, tmp_path):
    loaded = models.load_vision(write(tmp_path, "dinov2"), dtype="bfloat16")
    assert {str(leaf.dtype) for leaf in loaded.params} == {"bfloat16"}
    pixels = tiny.image("dinov2", (64, 64))[None]
    got = jitted(loaded.encode)(loaded.params, pixels).pooled
    want = jitted(load("dinov2").encode)(load("dinov2").params, pixels).pooled
    assert got.dtype == "bfloat16"
    error = np.abs(np.float32(got) - want).mean()
    assert 1e-5 < error < 0.03, error


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((1, 8, 8)), r"image 0 has shape \(8, 8\); it must be \[height, width, 3\]"),
        ([np.zeros((8, 8, 3)), np.zeros((3, 8, 3))], "image 1 has .* at least patch_size 4"),
        ([], "images is empty"),
    ],
)
def test_bad_images(images, message, load):
    with pytest.raises(ValueError, match=message):
        load("vit_pooler").encode(load("vit_pooler").params, images)


def test_bad_texts(load):
    with pytest.raises(ValueError, match="text 1 has 13 tokens; it must have from 1 to 12"):
        load("clip").text_features(load("clip").params, [[1, 5], [1] * 12 + [5]])
