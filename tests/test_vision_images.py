"""Pictures from files and what the processors make of them, against transformers."""

import io
import struct
import zlib

import models_support as support
import numpy as np
import preprocessors
import pytest
from PIL import Image

from models import preprocessing
from models.images import read_image, to_rgb

RED, WHITE = (255, 0, 0), (255, 255, 255)


@pytest.fixture(scope="module")
def photo():
    return read_image(support.GOLDEN / "photo.png")


@pytest.mark.parametrize("name", preprocessors.CASES)
def test_processors_equal_those_of_transformers(name, photo):
    kind, raw, change = preprocessors.CASES[name]
    with np.load(support.GOLDEN / "preprocessing.npz") as arrays:
        want = arrays[name]
    processor = preprocessing.from_hf({"image_processor_type": f"{kind}ImageProcessor"} | raw)
    got = processor(preprocessors.picture(photo, change))
    assert got.dtype == np.float32
    assert got.shape == want.shape
    level = (processor.scale or 1) / min(processor.std or [1])  # one of 255 grey levels
    assert np.abs(got - want).max() <= level * 1.001
    assert np.abs(got - want).mean() < level / 20, "most are equal"


def test_old_and_new_spellings_of_sizes():
    old = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224}
    assert preprocessing.from_hf(old) == preprocessing.from_hf(
        {"image_processor_type": "CLIPImageProcessorFast"}
    )
    vit = preprocessing.from_hf({"feature_extractor_type": "ViTFeatureExtractor", "size": 384})
    assert vit.size == (384, 384)
    assert vit.crop is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_processor_type": "LlavaImageProcessor"}, "'LlavaImageProcessor' is not supported"),
        ({"size": {"longest_edge": 9}}, "size is {'longest_edge': 9}; it must be a number, or"),
        ({"crop_size": {"shortest_edge": 9}}, "crop_size is .*; it must be a number"),
        ({"size": {"height": 0, "width": 3}}, "height is 0; it must be a whole number"),
        ({"resample": 6}, "resample is 6; it must be from 0 to 5"),
        ({"image_std": [0, 1, 1]}, "image_std above 0"),
        ({"image_mean": [0.5]}, "must be three numbers each"),
        ({"do_resize": "no"}, "do_resize is 'no'; it must be true or false"),
        ({"rescale_factor": -1}, "rescale_factor is -1; it must be a number above 0"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError, match=f"^preprocessor_config.json: .*{message}"):
        preprocessing.from_hf({"image_processor_type": "CLIPImageProcessor"} | change)


def save(path, image, **options):
    image.save(path, **options)
    return path


def halves(mode="RGB"):
    """32 x 16: red at the left, white at the right."""
    image = Image.new("RGB", (32, 16), WHITE)
    image.paste(RED, (0, 0, 16, 16))
    return image.convert(mode)


def assert_halves(image):
    assert image.mode == "RGB"
    assert image.size == (32, 16)
    left, right = image.getpixel((4, 8)), image.getpixel((28, 8))
    assert np.abs(np.subtract(left, RED)).max() < 12
    assert np.abs(np.subtract(right, WHITE)).max() < 12


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("a.png", "RGB", {}),
        ("a.png", "P", {}),
        ("a.jpg", "RGB", {"quality": 95}),
        ("a.jpg", "CMYK", {"quality": 95}),
        ("a.webp", "RGB", {"lossless": True}),
        ("a.gif", "P", {}),
        ("a.bmp", "RGB", {}),
    ],
)
def test_formats_and_modes(name, mode, options, tmp_path):
    assert_halves(read_image(save(tmp_path / name, halves(mode), **options)))


def test_the_first_frame_of_an_animation(tmp_path):
    blue = Image.new("RGB", (32, 16), (0, 0, 255))
    for name in ("a.gif", "a.webp", "a.png"):
        path = save(tmp_path / name, halves(), save_all=True, append_images=[blue, blue])
        assert_halves(read_image(path))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation, tmp_path):
    """The stored picture is what a camera held that way would have stored."""
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's transpositions
    stored = halves() if orientation == 1 else halves().transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert_halves(read_image(save(tmp_path / "a.jpg", stored, exif=exif, quality=95)))


def test_transparency_is_over_white(tmp_path):
    image = halves("RGBA")
    image.putpixel((28, 8), (0, 0, 0, 0))
    image.putpixel((4, 8), (255, 0, 0, 255))
    assert_halves(read_image(save(tmp_path / "a.png", image)))
    half = Image.new("LA", (3, 3), (0, 128))
    assert to_rgb(half).getpixel((1, 1)) == (127, 127, 127)
    palette = Image.new("P", (2, 1))
    palette.putpalette([9, 9, 9, 200, 0, 0])
    palette.putpixel((1, 0), 1)
    path = save(tmp_path / "p.png", palette, transparency=0)
    assert [read_image(path).getpixel((x, 0)) for x in (0, 1)] == [WHITE, (200, 0, 0)]


@pytest.mark.parametrize("mode", ["1", "L", "I;16"])
def test_grey(mode, tmp_path):
    values = {"1": (0, 1), "L": (0, 255), "I;16": (0, 65535)}[mode]
    image = Image.new(mode, (2, 1))
    image.putpixel((1, 0), values[1])
    got = read_image(save(tmp_path / "a.png", image))
    assert [got.getpixel((x, 0)) for x in (0, 1)] == [(0, 0, 0), WHITE]


def test_sixteen_bits_of_grey_keep_their_middle(tmp_path):
    path = save(tmp_path / "a.png", Image.new("I;16", (2, 2), 128 * 257))
    assert read_image(path).getpixel((0, 0)) == (128, 128, 128)


def refuse(path, message, error=ValueError):
    with pytest.raises(error, match=message) as caught:
        read_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.webp"])
@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_a_truncated_file(name, kept, photo, tmp_path):
    path = save(tmp_path / name, photo)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    refuse(path, "is a damaged or incomplete (PNG|JPEG|GIF|WEBP) file")


def test_what_is_no_image(tmp_path):
    path = tmp_path / "notes.png"
    path.write_text("this is not a picture")
    refuse(path, "is not an image that can be read; PNG, JPEG, WEBP, GIF, BMP files can")
    path.write_bytes(b"")
    refuse(path, "is empty; it must be an image")
    refuse(tmp_path / "absent.png", "No such file", FileNotFoundError)
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    refuse(path, "is not an image that can be read")


def test_more_pixels_than_allowed(tmp_path):
    """A PNG of a few bytes that says that it is huge is refused by its header."""
    buffer = io.BytesIO()
    Image.new("1", (1, 1)).save(buffer, "PNG")
    data = bytearray(buffer.getvalue())
    data[16:24] = struct.pack(">II", 11000, 10000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    path = tmp_path / "a.png"
    path.write_bytes(data)
    refuse(path, "has 11000 x 10000 pixels; it must have at most 100000000")
    data[16:24] = struct.pack(">II", 60000, 60000)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    path.write_bytes(data)
    refuse(path, "pixels; it must have at most 100000000")
