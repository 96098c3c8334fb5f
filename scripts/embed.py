"""Turn images into vectors: `python -m scripts.embed --help`."""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts import console
from scripts.console import say
from scripts.vision_options import add_image_options, batches, load_vision_model

PROG = "embed"
DESCRIPTION = """\
Write one vector an image to a .npy file, float32 [images, size], in the order of the images.

The vector is CLIP's or SigLIP's image feature, which can be compared with those of texts; of a ViT
or DINOv2 its pooled output, or with --layer the mean of the patches' hidden states after that layer
(negative numbers count from the last). stdout stays empty; progress goes to stderr. The file
appears whole or not at all.

exit code: 0, or 2 bad input, 1 out of memory, 130 Ctrl-C."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(prog=PROG, description=DESCRIPTION)
    parser.add_argument("--output", required=True, metavar="F.npy", help="the file to write")
    parser.add_argument(
        "--layer",
        type=int,
        metavar="N",
        help="take the patches' mean after layer N: 1 is the first, 0 the embeddings, -1 the last",
    )
    parser.add_argument("--normalize", action="store_true", help="divide each vector by its length")
    add_image_options(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    output = _output(args.output)
    loaded = load_vision_model(args)
    vectors = _vectors(args, loaded)
    _write(output, vectors)
    say(f"{PROG}: wrote {vectors.shape[0]} vectors of {vectors.shape[1]} to {output}")
    return 0


def _output(name: str) -> Path:
    """The path to write to, refused before any work is done for it."""
    path = Path(name)
    if path.suffix != ".npy":
        raise ValueError(f"--output must end in .npy, got {name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--output: {path.parent} is not a folder")
    if path.is_dir():
        raise IsADirectoryError(f"--output: {path} is a folder")
    return path


def _vectors(args: argparse.Namespace, loaded: Any) -> Any:
    """f32 [images, size] of all images."""
    import jax
    import numpy as np

    embed = jax.jit(_embedder(loaded, args.layer))
    found, start = [], time.perf_counter()
    for paths, images in batches(loaded, args.images, args.batch_size):
        found.append(np.float32(embed(loaded.params, images))[: len(paths)])
        done = sum(map(len, found))
        say(f"{PROG}: {done} of {len(args.images)}, {time.perf_counter() - start:.1f} s")
    vectors = np.concatenate(found)
    if args.normalize:
        vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors


def _embedder(loaded: Any, layer: int | None) -> Any:
    """The pure function (params, images) -> [images, size]."""
    import jax.numpy as jnp

    count = loaded.vision.encoder.num_layers
    if layer is None:
        if loaded.image_features is not None:
            return loaded.image_features
        if loaded.vision.pooling is None:
            raise ValueError(f"this model pools nothing: --layer must name one of its {count}")
        return lambda params, images: loaded.encode(params, images).pooled
    if not -count - 1 <= layer <= count:
        raise ValueError(f"--layer must be from {-count - 1} to {count}, got {layer}")

    def mean_of_patches(params, images):
        out = loaded.encode(params, images)
        patches = out.patches(out.hidden_states[layer])
        return jnp.stack([jnp.mean(x.astype(jnp.float32), axis=(0, 1)) for x in patches])

    return mean_of_patches


def _write(path: Path, vectors: Any) -> None:
    import numpy as np

    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npy", delete=False) as file:
        try:
            np.save(file, vectors)
            file.close()
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


if __name__ == "__main__":
    console.run(PROG, main)
