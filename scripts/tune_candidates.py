"""Which tile sizes are worth timing for a launch."""

import dataclasses
import itertools
from collections.abc import Iterator

from jaxattn.chips import KIB, Chip, named
from jaxattn.problem import Tiles
from jaxattn.tuning import Shape, formula
from jaxattn.tuning_formula import LEAST_SPLIT, programs, why_not
from jaxattn.tuning_shape import pow2

# Bytes of keys and values that a warp waits for at a time in decode: fewer and more were never
# near the best.
WARP_BYTES = (4 * KIB, 16 * KIB)
LEAST_WARP_ROWS = 16  # of a warp's share of a product


def candidates(shape: Shape, chip: str | None, implementation: str) -> list[Tiles]:
    """Those that the chip can run, the formula's first."""
    if implementation == "xla":
        return list(dict.fromkeys(_on_cpu(shape)))
    facts, first = named(chip), formula(shape, chip)
    grid = _few(shape, first) if shape.few else _many(shape, facts)
    fitting = (tiles for tiles in grid if why_not(shape, tiles, facts) is None)
    return list(dict.fromkeys([first, *fitting]))


def variants(shape: Shape, chip: str | None, tiles: Tiles) -> list[Tiles]:
    """``tiles`` with keys split otherwise: worth timing only for what is fast already.

    The sequences of a case are alike, those of a later call may not be: splitting nothing is tried
    only where the chip is full without.
    """
    whole, cores = shape.programs(tiles.block_q), named(chip).cores
    if tiles.programs is None or (not shape.few and whole >= 2 * cores):
        return []
    most = whole * (shape.max_keys // LEAST_SPLIT)
    counts = [n for n in _powers(pow2(cores // 2), 8 * pow2(cores)) if whole < n <= most]
    counts = [0, *counts] if whole >= 2 * cores or not shape.few else counts
    return [dataclasses.replace(tiles, programs=n) for n in counts if n != tiles.programs]


def _few(shape: Shape, first: Tiles) -> Iterator[Tiles]:
    longest = min(256, max(16, pow2(shape.max_keys)))
    for block_k, warps, stages in itertools.product(_powers(16, longest), (1, 2, 4, 8), (2, 3, 4)):
        a_warp = block_k * shape.row_bytes / warps
        if WARP_BYTES[0] <= a_warp <= WARP_BYTES[1]:
            yield Tiles(first.block_q, block_k, warps, stages, first.programs)


def _many(shape: Shape, chip: Chip) -> Iterator[Tiles]:
    whole = pow2(shape.queries * shape.group)
    longest = min(128, max(16, pow2(shape.max_keys)))
    sizes = [rows for rows in (32, 64, 128, 256) if rows <= whole and 4 * rows > min(whole, 128)]
    for rows, block_k, warps, stages in itertools.product(
        sizes or [whole], _powers(min(32, longest), longest), (2, 4, 8), (2, 3, 4)
    ):
        if LEAST_WARP_ROWS <= rows // warps <= 2 * LEAST_WARP_ROWS:
            block_q = max(1, rows // shape.group)
            yield Tiles(block_q, block_k, warps, stages, programs(shape, chip, block_q))


def _on_cpu(shape: Shape) -> Iterator[Tiles]:
    longest = min(256, max(16, pow2(shape.max_keys)))
    for block_q, block_k in itertools.product((1, 32), _powers(16, longest)):
        if block_q <= pow2(shape.queries):
            yield Tiles(block_q, block_k)


def _powers(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 2
