"""DINOv2-small, real weights, on a photograph: every hidden state against onnxruntime.

Skipped, with the reason, only when the file is neither in the cache nor to be had from the network.
"""

import jax
import models_support as support
import numpy as np
import pytest
import vision as tiny

import models
from models.images import read_image
from models.onnx_file import ONNXFile

STRIDE = 97  # of the entries that the golden file holds
# Of values of spread 2 in the last layer. The larger size has more room for rounding.
CLOSE = {(224, 224): 1e-4, (210, 322): 3e-4}


@pytest.fixture(scope="module")
def dinov2():
    try:
        return models.load_vision(models.fetch_dinov2_small())
    except ConnectionError as error:
        pytest.skip(f"no DINOv2-small here: {error}")


@pytest.fixture(scope="module")
def golden():
    with np.load(support.GOLDEN / "dinov2_small.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def pixels(dinov2):
    """(height, width) -> the photograph as golden/make_dinov2.py has it."""
    photo = read_image(support.GOLDEN / "photo.png")
    plain = dinov2.processor
    plain = plain.__class__((210, 322), plain.resample, None, mean=plain.mean, std=plain.std)
    return {(224, 224): dinov2.processor(photo), (210, 322): plain(photo)}


def compare(hidden, golden, size):
    """Hidden states [T, E] against one size of the golden file: every token, many entries."""
    key = f"{size[0]}x{size[1]}"
    sketches, samples = golden[f"{key}_sketch"], golden[f"{key}_sample"]
    assert len(hidden) == len(sketches) == 14
    for i, got in enumerate(hidden):
        # A sketch adds up the errors of 384 entries, which are independent.
        np.testing.assert_allclose(tiny.sketch(got), sketches[i], atol=1e-3, err_msg=f"state {i}")
        sample = np.asarray(got).ravel()[::STRIDE]
        np.testing.assert_allclose(
            sample, samples[i], rtol=0, atol=CLOSE[size], err_msg=f"state {i}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("size", [(224, 224), (210, 322)])
def test_every_hidden_state_of_a_photograph(size, dinov2, golden, pixels):
    out = jax.jit(dinov2.encode)(dinov2.params, pixels[size][None])
    hidden = [x[0] for x in (*out.hidden_states, out.last_hidden_state)]
    assert hidden[0].shape == (1 + size[0] // 14 * (size[1] // 14), 384)
    compare(hidden, golden, size)
    np.testing.assert_array_equal(out.pooled[0], out.last_hidden_state[0, 0])


@pytest.mark.slow
def test_two_sizes_packed(dinov2, golden, pixels):
    out = jax.jit(dinov2.encode)(dinov2.params, list(pixels.values()))
    states = [out.split(x) for x in (*out.hidden_states, out.last_hidden_state)]
    for i, size in enumerate(pixels):
        compare([state[i] for state in states], golden, size)


def test_the_pixels_are_in_range(pixels):
    assert pixels[224, 224].shape == (224, 224, 3)
    assert read_image(support.GOLDEN / "photo.png").size == (200, 240)
    assert pixels[224, 224].std() == pytest.approx(1.0, abs=0.4)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip", b"\x3a\xff\xff\xff\x7f cut short"])
def test_a_file_that_is_no_onnx(content, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model.onnx is not a(n| whole) ONNX file"):
        ONNXFile(path)
