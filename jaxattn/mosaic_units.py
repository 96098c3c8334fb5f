"""Which tiles a dense launch computes, known when it is traced: plain numpy on static lengths.

A unit is one tile: a strip of queries of one head against a block of its keys. Units stand in the
order in which the kernel takes them, one a step; tiles that the mask leaves empty are left out.
"""

import dataclasses
import functools

import jax
import numpy as np

from jaxattn.mosaic_blocks import LANES, round_up
from jaxattn.problem import Tiles

__all__ = ["FIRST", "LAG", "LAST", "MASKED", "MOST_UNITS", "Shape", "choose_tiles", "units"]

FIRST, LAST, MASKED = 1, 2, 4  # bits of a flag
LAG = 2  # steps from a unit's logits to its output
MOST_UNITS = 1 << 14  # of one launch's table: scalar memory holds five words for each
SIDES = (512, 1024)  # of tiles that we choose among
# What a step costs beside its tile, and what a mask adds, with the bundles of a tile of 512 x 512
# without a mask as the unit: 250 and 170 of 550 on v6e, whichever of SIDES the tile has.
STEP_COST, MASK_COST = 0.45, 0.3


@dataclasses.dataclass(frozen=True)
class Shape:
    """The static sizes of a dense launch: ``heads`` and ``kv_heads`` count all batches."""

    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    dv: int
    rows: int  # queries of a strip
    width: int  # keys of a block

    @property
    def ragged(self) -> bool:
        """Whether the last block of keys reaches past the last key."""
        return self.keys % self.width != 0

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


def choose_tiles(queries: int, keys: int, heads: int, mask, longest: int = SIDES[-1]) -> Tiles:
    """The cheapest tiles of at most ``longest`` queries and keys, by a count of bundles.

    They may be longer than what there is: :func:`sides` cuts them to that.
    """
    options = [n for n in SIDES if n <= longest]
    pairs = [(rows, width) for rows in options for width in options]
    return Tiles(*min(pairs, key=lambda pair: _cost(queries, keys, heads, mask, *pair)))


def sides(tiles: Tiles, queries: int, keys: int) -> tuple[int, int] | None:
    """(rows, width) of blocks that Mosaic takes: whole lengths, or multiples of 128; else None."""
    rows = queries if tiles.block_q >= queries else tiles.block_q
    width = keys if tiles.block_k >= keys else tiles.block_k
    for block, whole in ((rows, queries), (width, keys)):
        if block != whole and block % LANES:
            return None
    return rows, width


def units(shape: Shape, mask, heads: int) -> tuple[np.ndarray, int]:
    """``i32[5, units + 2 LAG]`` and the number of units, for ``heads`` heads from head 0: head, kv
    head, strip, block, flags; LAG idle entries before and after, so that entry ``step + lag`` of
    a stage is always there."""
    one = _head(shape.queries, shape.keys, mask, shape.rows, shape.width)
    head = np.repeat(np.arange(heads), len(one))
    strip, block, flags = np.tile(one, (heads, 1)).T
    table = np.stack([head, head // shape.group, strip, block, flags])
    edges = ((0, 0), (LAG, LAG))
    table = np.pad(table, edges, mode="edge")
    table[4, :LAG] = table[4, -LAG:] = 0
    return table.astype(np.int32), len(head)


def _cost(queries: int, keys: int, heads: int, mask, rows: int, width: int) -> float:
    rows, width = min(rows, queries), min(width, keys)
    one = _head(queries, keys, mask, rows, width)
    area = round_up(rows, LANES) * width / 512**2
    masked = sum(bool(flags & MASKED) for *_, flags in one)
    return (heads * len(one) + LAG) * (STEP_COST + area) + heads * masked * area * MASK_COST


@functools.lru_cache(maxsize=256)
def _head(queries: int, keys: int, mask, rows: int, width: int) -> list[tuple[int, int, int]]:
    """(strip, block, flags) of one head's units. A strip that sees no key has one unit still,
    which writes that."""
    found = []
    for strip in range(-(-queries // rows)):
        low = strip * rows
        span = _span(mask, keys - queries + low, min(rows, queries - low), keys)
        first, last = span[0] // width, -(-span[1] // width)
        if span[1] <= span[0]:
            first, last = 0, 1
        for block in range(first, last):
            full = span[2] <= block * width and (block + 1) * width <= span[3]
            flags = FIRST * (block == first) | LAST * (block == last - 1)
            found.append((strip, block, flags | MASKED * (not full)))
    return found


def _span(mask, position: int, count: int, keys: int) -> list[int]:
    """The mask's span for queries at ``position`` and after, as four Python ints."""
    with jax.ensure_compile_time_eval():
        span = mask.span(position, position + count, None).clip(0, keys)
        lo, hi, full_lo, full_hi = (int(x) for x in span)
    return [lo, hi, full_lo, full_hi]
