"""From pictures to what a vision tower takes, as preprocessor_config.json says: Pillow and NumPy.

The steps and their order are those of the image processors of transformers: resize, centre crop,
rescale, normalise. Pillow's filters are theirs, so the results are equal.
"""

from dataclasses import dataclass

import numpy as np

from models.fields import flag, numbers, positive, text, whole
from models.images import to_rgb
from models.wording import shown

CLIP_MEAN, CLIP_STD = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
HALF = (0.5, 0.5, 0.5)
# What transformers assumes for keys that a file leaves out, by the processor's name.
CLIP = {
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "resample": 3,
    "image_mean": list(CLIP_MEAN),
    "image_std": list(CLIP_STD),
}
SQUARE = {
    "size": {"height": 224, "width": 224},
    "do_center_crop": False,
    "image_mean": list(HALF),
    "image_std": list(HALF),
}
KINDS = {
    "CLIP": CLIP,
    "Bit": CLIP,  # what DINOv2's files name
    "ViT": SQUARE | {"resample": 2},
    "Siglip": SQUARE | {"resample": 3},
}
SUFFIXES = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")


@dataclass(frozen=True)
class Processor:
    """PIL images to f32 [height, width, 3].

    size: (height, width), or (shortest, None): that side, the other in proportion; None: as it is.
    resample: Pillow's number of the filter. crop: (height, width) around the centre, zeros where
    the image has less; None: all of it. scale: of the grey levels 0 to 255, before mean and std.
    """

    size: tuple[int, int | None] | None
    resample: int
    crop: tuple[int, int] | None
    scale: float | None = 1 / 255
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __call__(self, image):
        """f32 [height, width, 3] of a PIL.Image of any mode."""
        image = to_rgb(image)
        if self.size is not None:
            height, width = _target(self.size, *image.size)
            image = image.resize((width, height), self.resample)
        pixels = np.asarray(image)
        if self.crop is not None:
            pixels = centre_crop(pixels, *self.crop)
        # Rounded to f32 after every step, as transformers does.
        if self.scale is not None:
            pixels = (pixels.astype(np.float64) * self.scale).astype(np.float32)
        pixels = pixels.astype(np.float32)
        if self.mean is not None:
            pixels = (pixels - np.float32(self.mean)) / np.float32(self.std)
        return pixels

    @property
    def one_size(self):
        """Whether all images come out equally large."""
        return self.crop is not None or (self.size is not None and self.size[1] is not None)


def centre_crop(pixels, height, width):
    """[height, width, 3] around the centre of pixels [h, w, 3], black where it has less."""
    h, w = pixels.shape[:2]
    out = np.zeros((height, width, 3), pixels.dtype)
    # Where the crop begins: below 0 if rows are lacking, of which an odd one goes above the image.
    top, left = (h - height) // 2, (w - width) // 2
    y, x = max(top, 0), max(left, 0)
    piece = pixels[y : top + height, x : left + width]
    out[y - top : y - top + piece.shape[0], x - left : x - left + piece.shape[1]] = piece
    return out


def from_hf(raw):
    """Processor of the dict `raw` (preprocessor_config.json). Raises ValueError naming the key."""
    try:
        return _processor(raw)
    except ValueError as error:
        raise ValueError(f"preprocessor_config.json: {error}") from None


def default(config):
    """The Processor that the family of a VisionConfig has, at its image_size."""
    name = {"vit": "ViT", "siglip": "Siglip"}.get(config.family, "CLIP")
    side = config.image_size
    size = {"shortest_edge": side} if name == "CLIP" else {"height": side, "width": side}
    raw = {"image_processor_type": f"{name}ImageProcessor", "size": size, "crop_size": side}
    return from_hf(raw)


def _processor(raw):
    name = text(raw, "image_processor_type") or text(raw, "feature_extractor_type")
    kind = next(
        (kind for kind in KINDS for end in SUFFIXES if name == kind + end),
        None,
    )
    if kind is None:
        raise ValueError(
            f"image_processor_type {shown(name)} is not supported; one of "
            f"{', '.join(kind + SUFFIXES[0] for kind in KINDS)} is"
        )
    raw = KINDS[kind] | {key: value for key, value in raw.items() if value is not None}
    resample = whole(raw, "resample", minimum=0)
    if resample > 5:
        raise ValueError(f"resample is {resample}; it must be from 0 to 5")
    mean, std = (tuple(numbers(raw, key)) for key in ("image_mean", "image_std"))
    if flag(raw, "do_normalize", True) and not (len(mean) == len(std) == 3 and min(std) > 0):
        raise ValueError(
            f"image_mean {shown(list(mean))} and image_std {shown(list(std))} must be three "
            "numbers each, and image_std above 0"
        )
    normalise = flag(raw, "do_normalize", True)
    # An int is the shortest side for CLIP's kind, and both sides for the others.
    size = _size(raw, "size", square=KINDS[kind] is not CLIP)
    return Processor(
        size=size if flag(raw, "do_resize", True) else None,
        resample=resample,
        crop=_size(raw, "crop_size", square=True) if flag(raw, "do_center_crop") else None,
        scale=positive(raw, "rescale_factor", 1 / 255) if flag(raw, "do_rescale", True) else None,
        mean=mean if normalise else None,
        std=std if normalise else None,
    )


def _size(raw, key, square):
    """(height, width) or (shortest, None) of {"height", "width"}, {"shortest_edge"} or a number."""
    value = raw.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"height": value, "width": value} if square else {"shortest_edge": value}
    keys = set(value) if isinstance(value, dict) else set()
    if keys == {"height", "width"}:
        return whole(value, "height"), whole(value, "width")
    if keys == {"shortest_edge"} and key == "size":
        return whole(value, "shortest_edge"), None
    raise ValueError(
        f"{key} is {shown(value)}; it must be a number, or an object with height and width"
        + (", or with shortest_edge" if key == "size" else "")
    )


def _target(size, width, height):
    """(height, width) after the resize of an image of `width` x `height`."""
    if size[1] is not None:
        return size
    short = size[0]
    if width <= height:
        return int(short * height / width), short
    return short, int(short * width / height)
