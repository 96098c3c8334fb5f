"""What the programs that look at images share: their options, their model and its batches."""

import argparse
from collections.abc import Iterator
from typing import Any

from scripts.options import DTYPES, IMPLEMENTATIONS, check_implementation, use_compilation_cache


def add_image_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="PNG, JPEG, WebP, GIF or BMP")
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="DIR|HF-ID",
        required=True,
        help="a folder with config.json and safetensors of a ViT, DINOv2, CLIP or SigLIP, or a "
        "Hugging Face id",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of weights and activations; default: float32 on a CPU, else bfloat16",
    )
    group.add_argument(
        "--implementation",
        choices=IMPLEMENTATIONS,
        help="of attention; default: what fits the platform",
    )
    group.add_argument(
        "--batch-size",
        type=int,
        default=8,
        metavar="N",
        help="images in a step (default: %(default)s)",
    )


def load_vision_model(args: argparse.Namespace) -> Any:
    """models.load_vision with the options, after setting up JAX's compilation cache."""
    import models

    if args.batch_size < 1:
        raise ValueError(f"--batch-size must be at least 1, got {args.batch_size}")
    use_compilation_cache()
    backend = check_implementation(args.implementation)
    dtype = args.dtype or ("float32" if backend == "cpu" else "bfloat16")
    return models.load_vision(args.model, dtype=dtype, implementation=args.implementation)


def batches(loaded: Any, paths: list[str], size: int) -> Iterator[tuple[list[str], Any]]:
    """(paths, images) of at most `size` each, read and prepared as they are needed.

    Images are f32 [size, H, W, 3], the last batch filled up with its last image so that one program
    serves all; where the processor leaves images their own sizes, a list of [H, W, 3].
    """
    import numpy as np

    from models.images import read_image

    for start in range(0, len(paths), size):
        part = paths[start : start + size]
        images = [loaded.processor(read_image(path)) for path in part]
        if loaded.processor.one_size:
            images += [images[-1]] * (min(size, len(paths)) - len(images))
            images = np.stack(images)
        yield part, images
