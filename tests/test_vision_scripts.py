"""`python -m scripts.classify` and `scripts.embed`: what they print and write, and every error."""

import functools
import json

import models_support as support
import numpy as np
import pytest
import vision as tiny
import vision_support
from PIL import Image
from vision_support import jitted

import models
from models.images import read_image
from scripts import classify, embed

PHOTO = str(support.GOLDEN / "photo.png")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path_factory):
    """Nothing is written to the user's cache."""
    import jax

    monkeypatch.setattr(
        "scripts.options.compilation_cache_folder",
        lambda: tmp_path_factory.getbasetemp() / "compiled",
    )
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """name -> the directory of a tiny model, with a vocabulary if it has a text tower."""

    @functools.cache
    def get(name):
        made = vision_support.write(tmp_path_factory.mktemp(name), name)
        if name == "siglip":
            vision_support.write_pieces(made)
        elif name.startswith("clip"):
            vision_support.write_clip_tokenizer(made, 39 if name == "clip_gelu" else 5)
        return str(made)

    return get


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A second picture, wide and grey."""
    path = tmp_path_factory.mktemp("pictures") / "wide.jpg"
    Image.linear_gradient("L").resize((300, 120)).save(path)
    return str(path)


def test_a_classifier(call_main, folder, other):
    code, out, err = call_main(classify, PHOTO, other, "--model", folder("vit"), "--top", "2")
    assert code == 0, err
    lines = [line.split("\t") for line in out.splitlines()]
    assert [line[0] for line in lines] == [PHOTO, PHOTO, other, other]
    loaded = models.load_vision(folder("vit"))
    images = np.stack([loaded.processor(read_image(path)) for path in (PHOTO, other)])
    logits = jitted(loaded.classify)(loaded.params, images)
    for i, found in enumerate((lines[:2], lines[2:])):
        scores = np.exp(logits[i]) / np.exp(logits[i]).sum()
        best = np.argsort(-scores)[:2]
        assert [name for _, _, name in found] == [f"class {j}" for j in best]
        assert [float(x) for _, x, _ in found] == pytest.approx(scores[best], abs=1e-4)
    assert "2 images, 5 labels" in err


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_zero_shot(name, call_main, folder, other):
    labels = ["a cat", "lamps", "quiz"]
    argv = [PHOTO, other, PHOTO, "--model", folder(name), "--labels", ", ".join(labels), "--json"]
    code, out, err = call_main(classify, *argv, "--batch-size", "2", "--template", "{}")
    assert code == 0, err
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["image"] for record in records] == [PHOTO, other, PHOTO]
    assert records[0] == records[2], "another batch, padded"
    loaded = models.load_vision(folder(name))
    images = np.stack([loaded.processor(read_image(path)) for path in (PHOTO, other)])
    features = jitted(loaded.image_features)(loaded.params, images)
    texts = jitted(loaded.text_features)(loaded.params, loaded.tokenize(labels))
    logits = np.asarray(loaded.logits(loaded.params, features, texts))
    for record, row in zip(records, logits, strict=False):
        found = {label["label"]: label for label in record["labels"]}
        assert [found[label]["logit"] for label in labels] == pytest.approx(row, abs=1e-3)
        scores = [label["score"] for label in record["labels"]]
        assert scores == sorted(scores, reverse=True)
        wanted = 1 / (1 + np.exp(-row)) if name == "siglip" else np.exp(row) / np.exp(row).sum()
        assert [found[label]["score"] for label in labels] == pytest.approx(wanted, abs=1e-3)
    assert np.ptp(logits) > 1e-3, "the labels make no difference"


def test_texts_are_ended_and_filled_up(folder):
    ids = models.load_vision(folder("clip")).tokenize(["Ab", "z" * 30])
    assert ids.tolist() == [[1, 6, 7] + [5] * 9, [1] + [31] * 10 + [5]]
    ids = models.load_vision(folder("siglip")).tokenize(["A  cat!", "a cat", "cat " * 30])
    assert ids.shape == (3, 9)
    assert ids[0].tolist() == ids[1].tolist()
    assert ids[0, -1] == ids[2, -1] == 1
    assert 1 not in ids[2, :-1]


def test_embeddings_of_a_pair(call_main, folder, other, tmp_path):
    path = tmp_path / "a.npy"
    argv = [PHOTO, other, PHOTO, "--model", folder("clip"), "--output", str(path)]
    code, out, err = call_main(embed, *argv, "--batch-size", "2", "--normalize")
    assert (code, out) == (0, ""), err
    got = np.load(path)
    assert got.shape == (3, 24)
    assert got.dtype == np.float32
    loaded = models.load_vision(folder("clip"))
    images = np.stack([loaded.processor(read_image(path)) for path in (PHOTO, other)])
    want = np.array(jitted(loaded.image_features)(loaded.params, images))
    want /= np.linalg.norm(want, axis=-1, keepdims=True)
    np.testing.assert_allclose(got, want[[0, 1, 0]], atol=1e-5)
    assert [x.name for x in tmp_path.iterdir()] == ["a.npy"]


def test_embeddings_of_images_in_their_own_sizes(call_main, folder, other, tmp_path):
    """Without a crop the images are packed; each is what it would be by itself."""
    model = vision_support.write(tmp_path / "model", "dinov2_registers")
    settings = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 40},
        "do_center_crop": False,
    }
    (model / "preprocessor_config.json").write_text(json.dumps(settings))
    path = tmp_path / "a.npy"
    argv = [PHOTO, other, "--model", str(model), "--output", str(path), "--layer", "-2"]
    code, _, err = call_main(embed, *argv)
    assert code == 0, err
    loaded = models.load_vision(model)
    for got, name, grid in zip(np.load(path), (PHOTO, other), ((12, 10), (10, 25)), strict=True):
        image = loaded.processor(read_image(name))
        out = jitted(loaded.encode)(loaded.params, image[None])
        (patches,) = out.patches(out.intermediates["layers.1"])
        assert patches.shape[:2] == grid
        np.testing.assert_allclose(got, patches.mean((0, 1)), atol=1e-5)


ERRORS = [
    (classify, [], "the following arguments are required: IMAGE, --model"),
    (classify, ["no.png", "--model", "vit"], "no.png: No such file or directory"),
    (classify, [__file__, "--model", "vit"], "test_vision_scripts.py is not an image that can be"),
    (classify, [PHOTO, "--model", "vit", "--labels", "a,b"], "has no text tower"),
    (classify, [PHOTO, "--model", "clip"], "there are no --labels"),
    (classify, [PHOTO, "--model", "dinov2"], "has no classifier: it can be used with"),
    (classify, [PHOTO, "--model", "clip", "--labels", "a,,b"], "--labels must be texts with"),
    (classify, [PHOTO, "--model", "clip", "--labels", "a,a"], "--labels must differ"),
    (classify, [PHOTO, "--model", "clip", "--labels", "a,b"], "a text is cut at 12 tokens"),
    (classify, [PHOTO, "--model", "vit", "--top", "0"], "--top must be at least 1, got 0"),
    (classify, [PHOTO, "--model", "vit", "--template", "{}"], "--template needs --labels"),
    (classify, [PHOTO, "--model", "clip", "--labels", "a", "--template", "x"], "must hold {}"),
    (classify, [PHOTO, "--model", "vit", "--batch-size", "0"], "--batch-size must be at least 1"),
    (classify, [PHOTO, "--model", "vit", "--implementation", "triton"], "needs a GPU"),
    (classify, [PHOTO, "--model", "no/such/model"], "no/such/model"),
    (classify, [PHOTO, "--model", PHOTO], "is a file; a vision model is a directory"),
    (embed, [PHOTO, "--model", "vit", "--output", "a.txt"], "--output must end in .npy"),
    (embed, [PHOTO, "--model", "vit", "--output", "no/a.npy"], "--output: no is not a folder"),
    (embed, [PHOTO, "--model", "vit", "--output", "OUT", "--layer", "4"], "must be from -4 to 3"),
]


@pytest.mark.parametrize(("program", "argv", "message"), ERRORS, ids=lambda x: str(x)[-40:])
def test_an_error_is_one_line_and_code_2(program, argv, message, call_main, folder, tmp_path):
    known = {name: name for name in tiny.MODELS} | {"OUT": str(tmp_path / "a.npy")}
    argv = [folder(x) if x in tiny.MODELS else known.get(x, x) for x in argv]
    code, out, err = call_main(program, *argv)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if "error" in line]
    assert line.startswith(f"{program.PROG}: error: ")
    assert message in line
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())
