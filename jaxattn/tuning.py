"""Tile sizes of a launch: the nearest that were tuned on its chip, or those of a formula.

``tuned/<chip>.json`` is what ``python -m scripts.tune`` measured there. It is data of the package,
read once; looking into it is arithmetic on static facts, the same for the same launch always.
"""

import dataclasses
import functools
import json
import math
import re
from importlib import resources
from typing import Any, NamedTuple

from jaxattn.chips import chip, on_chip
from jaxattn.problem import Tiles
from jaxattn.tuning_formula import fits, formula
from jaxattn.tuning_shape import MIN_SIDE, MOST_FEW, Shape, pow2

__all__ = [
    "MOST_FEW",
    "Entry",
    "Shape",
    "chip",
    "fits",
    "formula",
    "nearest",
    "on_chip",
    "parse",
    "read",
    "slug",
    "spell",
    "tiles",
]

FORMAT = 1  # of the files
DTYPES = ("bfloat16", "float16", "float32")
FAR = math.log2(4)  # an entry of sizes further off than this factor says nothing


class Entry(NamedTuple):
    """A launch that was tuned, and its fastest tiles."""

    shape: Shape
    best: Tiles


def tiles(shape: Shape, chip: str | None) -> Tiles:
    """The tile sizes for ``shape`` on ``chip``, a ``device_kind`` or None for any.

    Raises:
      ValueError: the chip's file in this package is damaged.
    """
    found = nearest(shape, () if chip is None else _tuned(slug(chip)))
    if found is not None:
        adapted = _adapted(found, shape)
        if shape.few and not adapted.programs:
            # To split nothing was fastest for lengths that were alike; those of a call may not be.
            adapted = dataclasses.replace(adapted, programs=formula(shape, chip).programs)
        if fits(shape, adapted, chip):
            return adapted
    return formula(shape, chip)


def nearest(shape: Shape, entries: tuple[Entry, ...]) -> Entry | None:
    """The entry whose shape is closest; None if none is close. Ties go to the earlier."""
    distances = [distance(shape, entry.shape) for entry in entries]
    closest = min(distances, default=math.inf)
    return None if closest == math.inf else entries[distances.index(closest)]


def distance(a: Shape, b: Shape) -> float:
    """How unlike two launches are, in powers of two of what differs; inf: not to be compared."""
    if _kind(a) != _kind(b):
        return math.inf
    sizes = [_off(a.heads_of_seqs, b.heads_of_seqs), _off(a.max_keys, b.max_keys)]
    if not a.few:
        sizes.append(_off(a.queries, b.queries))
    if max(sizes) > FAR:
        return math.inf
    # What matters less decides among entries of the same sizes.
    details = (
        _off(a.group, b.group)
        + _off(a.queries, b.queries)
        + _off(a.page_size or 1, b.page_size or 1)
        + _off(a.head_dim, b.head_dim)
        + _off(a.head_dim_v, b.head_dim_v)
        + (a.dtype != b.dtype)
    )
    return sum(sizes) + (a.masked != b.masked) + details / 8


def _kind(shape: Shape):
    """What must be equal: these change the kernel, not only how long it runs."""
    rows = shape.rows(shape.queries) if shape.few else None
    paged = shape.page_size is not None
    return shape.few, shape.itemsize, shape.dims, paged, shape.pair_operands, rows


def _off(a: int, b: int) -> float:
    return abs(math.log2(a / b))


def _adapted(entry: Entry, shape: Shape) -> Tiles:
    """The entry's tiles with as many rows under this group, and no more keys than there are."""
    block_q = max(1, entry.shape.rows(entry.best.block_q) // shape.group)
    if shape.few:
        block_q = min(block_q, shape.queries)
    if shape.group == entry.shape.group and shape.queries == entry.shape.queries:
        block_q = entry.best.block_q
    block_k = max(MIN_SIDE, min(entry.best.block_k, pow2(shape.max_keys)))
    return dataclasses.replace(entry.best, block_q=block_q, block_k=block_k)


def slug(chip: str) -> str:
    """The name of a chip's file, without its ending: "NVIDIA H200" -> "nvidia_h200"."""
    return re.sub(r"[^a-z0-9]+", "_", chip.lower()).strip("_")


@functools.cache
def _tuned(name: str) -> tuple[Entry, ...]:
    file = resources.files("jaxattn") / "tuned" / f"{name}.json"
    return read(file.read_bytes(), f"tuned/{name}.json") if file.is_file() else ()


def read(text: str | bytes, name: str) -> tuple[Entry, ...]:
    """The entries of a file that ``scripts.tune`` wrote.

    Raises:
      ValueError: the text is not such a file; the message begins with ``name``.
    """
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ValueError(f"format is {data['format']!r}: must be {FORMAT}")
        cases = data["cases"].values()
        return tuple(_entry(case) for case in cases if case["best"] is not None)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{name}: not a file of tuned tiles: {reason}") from error


def _entry(case: dict[str, Any]) -> Entry:
    shape = Shape(**case["shape"])
    for field in dataclasses.fields(shape):
        value = getattr(shape, field.name)
        if field.name == "page_size" and value is None:
            continue
        if field.name == "dtype":
            right = value in DTYPES
        elif field.name in ("few", "masked", "pair_operands"):
            right = isinstance(value, bool)
        else:
            right = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not right:
            raise ValueError(f"shape has {field.name} {value!r}")
    return Entry(shape, parse(case["best"]))


def spell(tiles: Tiles) -> str:
    """``Tiles(32, 64, 4, 3, 0, "xla")`` -> ``"32x64 w4 s3 p0 xla"``; None is left out."""
    numbers = {"w": tiles.num_warps, "s": tiles.num_stages, "p": tiles.programs}
    extras = [f"{letter}{n}" for letter, n in numbers.items() if n is not None]
    extras += [tiles.compiler] if tiles.compiler else []
    return " ".join([f"{tiles.block_q}x{tiles.block_k}", *extras])


def parse(text: str) -> Tiles:
    """The tiles that :func:`spell` wrote.

    Raises:
      ValueError: it did not write this.
    """
    rule = r"(\d+)x(\d+)(?: w(\d+))?(?: s(\d+))?(?: p(\d+))?(?: ([a-z]+))?"
    found = re.fullmatch(rule, text)
    if found is None:
        raise ValueError(f'tiles {text!r}: must be like "32x64 w4 s3 p0"')
    *numbers, compiler = found.groups()
    sizes = (None if part is None else int(part) for part in numbers)
    return Tiles(*sizes, compiler)
