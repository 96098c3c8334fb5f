"""Which tile sizes are worth timing for a launch."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator

from jaxattn.attention import ENVIRONMENT
from jaxattn.chips import KIB, Chip, named
from jaxattn.problem import Tiles
from jaxattn.triton_compiler import usable
from jaxattn.tuning import Shape, formula
from jaxattn.tuning_formula import LEAST_SPLIT, programs, why_not
from jaxattn.tuning_shape import pow2

# Bytes of keys and values that a warp waits for at a time in decode, and a tile has: fewer and more
# were never near the best.
WARP_BYTES = (8 * KIB, 16 * KIB)
TILE_BYTES = 16 * KIB
LEAST_WARP_ROWS = 16  # of a warp's share of a product


def compiler_in_use() -> str:
    """What compiles kernels where a call does not say."""
    return os.environ.get(ENVIRONMENT) or ("triton" if usable() else "xla")


def candidates(shape: Shape, chip: str | None, implementation: str) -> list[Tiles]:
    """Those that the chip can run, the formula's first."""
    if implementation == "xla":
        return list(dict.fromkeys(_on_cpu(shape)))
    facts, first = named(chip), formula(shape, chip)
    grid = _few(shape, first) if shape.few else _many(shape, facts)
    fitting = [first, *(tiles for tiles in grid if why_not(shape, tiles, facts) is None)]
    compiler = compiler_in_use()  # named, since a later machine may use the other
    return [
        dataclasses.replace(tiles, compiler=tiles.compiler or compiler)
        for tiles in dict.fromkeys(fitting)
    ]


def variants(shape: Shape, chip: str | None, tiles: Tiles) -> list[Tiles]:
    """``tiles`` with one other choice each that is worth timing only for what is fast already: how
    keys are split, and which compiler builds the kernel."""
    if tiles.num_warps is None:  # the xla target's
        return []
    change = functools.partial(dataclasses.replace, tiles)
    found = [change(programs=n) for n in _splits(shape, chip, tiles) if n != tiles.programs]
    if usable() and not os.environ.get(ENVIRONMENT):
        found.append(change(compiler="xla" if tiles.compiler == "triton" else "triton"))
    return found


def _splits(shape: Shape, chip: str | None, tiles: Tiles) -> list[int]:
    """Counts of programs. The sequences of a case are alike, those of a later call may not be:
    splitting nothing is tried only where the chip is full without."""
    whole, cores = shape.programs(tiles.block_q), named(chip).cores
    if not shape.few and whole >= 2 * cores:
        return []
    most = whole * (shape.max_keys // LEAST_SPLIT)
    counts = [n for n in _powers(pow2(cores // 2), 8 * pow2(cores)) if whole < n <= most]
    return [0, *counts] if whole >= 2 * cores or not shape.few else counts


def _few(shape: Shape, first: Tiles) -> Iterator[Tiles]:
    longest = min(256, max(16, pow2(shape.max_keys)))
    for block_k, warps, stages in itertools.product(_powers(16, longest), (1, 2, 4, 8), (2, 3, 4)):
        a_warp = block_k * shape.row_bytes / warps
        if WARP_BYTES[0] <= a_warp <= WARP_BYTES[1] and a_warp * warps >= TILE_BYTES:
            yield Tiles(first.block_q, block_k, warps, stages, first.programs)


def _many(shape: Shape, chip: Chip) -> Iterator[Tiles]:
    whole = pow2(shape.queries * shape.group)
    longest = min(128, max(16, pow2(shape.max_keys)))
    sizes = [rows for rows in (32, 64, 128, 256) if rows <= whole and 4 * rows > min(whole, 128)]
    for rows, block_k, warps, stages in itertools.product(
        sizes or [whole], _powers(min(32, longest), longest), (2, 4, 8), (2, 3, 4)
    ):
        idle = warps == 2 and rows >= 64 and shape.dims[1] <= 128  # a core has four schedulers
        if LEAST_WARP_ROWS <= rows // warps <= 2 * LEAST_WARP_ROWS and not idle:
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
