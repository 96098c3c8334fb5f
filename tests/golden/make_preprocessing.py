"""Make preprocessing.npz: photo.png as the image processors of transformers prepare it.

Run in an environment with Pillow, torch and transformers:

    python tests/golden/make_preprocessing.py

Per entry of preprocessors.py: its result, f32 [height, width, 3].
"""

import importlib
from pathlib import Path

import numpy as np
import preprocessors
from PIL import Image

HERE = Path(__file__).parent


def main():
    """Write preprocessing.npz beside this file."""
    arrays = {}
    for name, (kind, raw, picture) in preprocessors.CASES.items():
        module = f"transformers.models.{kind.lower()}.image_processing_pil_{kind.lower()}"
        processor = getattr(importlib.import_module(module), f"{kind}ImageProcessorPil")(**raw)
        image = preprocessors.picture(Image.open(HERE / "photo.png"), picture)
        (pixels,) = processor(image)["pixel_values"]
        arrays[name] = np.asarray(pixels, np.float32).transpose(1, 2, 0)
        print(name, arrays[name].shape, arrays[name].min(), arrays[name].max())
    np.savez_compressed(HERE / "preprocessing.npz", **arrays)


if __name__ == "__main__":
    main()
