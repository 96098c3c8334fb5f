"""Image files as RGB pictures, the right way up."""

import contextlib
import warnings
from pathlib import Path

from PIL import Image, ImageOps

from models.wording import one_line

# What is tried. Pillow knows more, among them some that start other programs. Its JPEG reader takes
# MPO too, which many phones write: a JPEG with a second picture behind it.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
SIGNATURES = {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"RIFF": "WEBP", b"GIF8": "GIF"}
MOST_PIXELS = 100_000_000
WHITE = (255, 255, 255, 255)


def read_image(path):
    """The picture in the file `path` as an RGB PIL.Image: of an animation its first frame, turned
    as its EXIF orientation says, transparency over white, grey, palette and CMYK converted.

    Raises ValueError, one line with the path, for a file that is cut short, is no image, or has
    more than MOST_PIXELS; OSError when it cannot be opened.
    """
    with open(path, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata that nothing here uses, and about size
        try:
            image = Image.open(file, formats=FORMATS)
        except Exception as error:  # broken headers raise whatever the format's reader runs into
            raise ValueError(_no_image(path, error)) from None
        width, height = image.size
        if width * height > MOST_PIXELS:
            raise ValueError(
                f"{path} has {width} x {height} pixels; it must have at most {MOST_PIXELS}"
            )
        try:
            image.load()
            return to_rgb(_upright(image))
        except Exception as error:
            raise ValueError(
                f"{path} is a damaged or incomplete {image.format} file: {one_line(error)}"
            ) from None


def to_rgb(image):
    """An RGB PIL.Image of one of any mode; what is transparent is laid over white."""
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        # 16 bits of grey. Pillow's own conversion clips at 255 and makes all of it white.
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _upright(image):
    with contextlib.suppress(Exception):  # EXIF that cannot be read says nothing
        return ImageOps.exif_transpose(image)
    return image


def _no_image(path, error):
    if Path(path).stat().st_size == 0:
        return f"{path} is empty; it must be an image"
    with open(path, "rb") as file:
        head = file.read(4)
    for signature, name in SIGNATURES.items():
        if head.startswith(signature) and not isinstance(error, Image.DecompressionBombError):
            return f"{path} is a damaged or incomplete {name} file"
    if isinstance(error, Image.DecompressionBombError):
        return f"{path} has too many pixels; it must have at most {MOST_PIXELS}"
    return f"{path} is not an image that can be read; {', '.join(FORMATS)} files can"
