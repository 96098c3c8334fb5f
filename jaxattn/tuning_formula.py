"""Tile sizes by arithmetic: what a launch takes where nothing close to it has been tuned.

A few small rules, each measured on an H200 and carried to other chips by what they have: shared
memory and registers bound a tile, and cores bound how many programs are worth splitting keys for.
"""

import dataclasses
import functools

from jaxattn.chips import KIB, Chip, named
from jaxattn.problem import Tiles
from jaxattn.tuning_shape import MIN_SIDE, Shape, pow2

__all__ = ["fits", "formula", "why_not"]

FLOAT = 4  # bytes of a number that accumulates
SPARE_REGISTERS = 16  # of a thread, for addresses and counters
# Splitting costs a second pass over the results: a part is at least this many keys.
LEAST_SPLIT = 256
MOST_FEW_ROWS = 64
FEW_TILE = 32 * KIB  # of keys and values
SCRATCH = KIB  # barriers, and what warps exchange of a row


def formula(shape: Shape, chip: str | None) -> Tiles:
    """Tile sizes for ``shape`` on ``chip`` (a ``device_kind``, or None for any)."""
    facts = named(chip)
    return _shrunk(shape, (few if shape.few else many)(shape, facts), facts)


def few(shape: Shape, chip: Chip) -> Tiles:
    """Decode: reading keys is all the work. A few tiles in flight a core hide the latency; where
    programs are few, each has more of them."""
    rows = min(pow2(shape.queries * shape.group), MOST_FEW_ROWS)
    whole = shape.programs(block_q := max(1, rows // shape.group))
    stages = 4 if shape.max_keys > 4096 else 3
    stages = 2 if shape.pair_operands or 4 * whole >= chip.cores else stages
    warps = 4 if rows <= 16 else 2
    block_k = _keys(FEW_TILE // shape.row_bytes, shape)
    return Tiles(block_q, block_k, warps, stages, programs(shape, chip, block_q))


def programs(shape: Shape, chip: Chip, block_q: int) -> int:
    """How many programs keys are split for: what the chip runs at once, in large or small ones.

    Where the launch has more than that, only sequences much longer than the others gain from it.
    """
    whole = shape.programs(block_q)
    if not shape.few and 2 * whole > chip.cores:
        return 0
    wanted = (4 if shape.few and 4 * whole >= chip.cores else 2) * chip.cores
    wanted = 1 << (wanted.bit_length() - 1)  # heads and batches tend to divide powers of two
    parts = -(-shape.max_keys // (LEAST_SPLIT if shape.few else 4 * LEAST_SPLIT))
    return min(wanted, whole * parts) if parts > 1 else 0


def many(shape: Shape, chip: Chip) -> Tiles:
    """Prefill and encoders: products are the work. As many rows as the registers hold, and in long
    loops as many keys, so that outputs are rescaled less often."""
    dim = max(shape.head_dim, shape.head_dim_v)
    wide = dim > 128 or shape.itemsize == 4
    # In a short loop more programs hide each other's ends.
    short = shape.max_keys <= 1024 and not shape.masked
    most = 64 if wide or short else 128
    rows = min(pow2(shape.queries * shape.group), most)
    long = rows == 128 and dim > 64 and not (wide or shape.pair_operands)
    warps = 8 if long or (rows == 128 and dim <= 64) else 4
    stages = 2 if wide or shape.pair_operands else 3
    block_q = max(1, rows // shape.group)
    block_k = _keys(32 if wide else 128 if long else 64, shape)
    return Tiles(block_q, block_k, warps, stages, programs(shape, chip, block_q))


def _keys(block_k: int, shape: Shape) -> int:
    """``block_k`` within what a tile may be, and no longer than the keys are."""
    block_k = 1 << (max(block_k, 1).bit_length() - 1)
    return max(MIN_SIDE, min(block_k, 128, pow2(shape.max_keys)))


def _shrunk(shape: Shape, tiles: Tiles, chip: Chip) -> Tiles:
    """``tiles``, or the next smaller that fit; the smallest where none do."""
    change = functools.partial(dataclasses.replace, tiles)
    if shared_bytes(shape, tiles, chip) > chip.shared:
        if tiles.num_stages > 2:
            return _shrunk(shape, change(num_stages=tiles.num_stages - 1), chip)
        if tiles.block_k > MIN_SIDE:
            return _shrunk(shape, change(block_k=tiles.block_k // 2), chip)
        if tiles.block_q > 1:
            return _shrunk(shape, change(block_q=tiles.block_q // 2), chip)
        if tiles.num_stages > 1:
            return _shrunk(shape, change(num_stages=1), chip)
    elif why_not(shape, tiles, chip):  # registers
        if tiles.block_q > 1:
            return _shrunk(shape, change(block_q=tiles.block_q // 2), chip)
        if tiles.num_warps < 8:
            return _shrunk(shape, change(num_warps=tiles.num_warps * 2), chip)
    return tiles


def fits(shape: Shape, tiles: Tiles, chip: str | None) -> bool:
    """Whether ``chip`` can run a launch of ``shape`` in ``tiles`` without spilling."""
    return why_not(shape, tiles, named(chip)) is None


def why_not(shape: Shape, tiles: Tiles, chip: Chip) -> str | None:
    """The rule that ``tiles`` break on ``chip``, or None."""
    if tiles.block_k < MIN_SIDE:
        return f"block_k={tiles.block_k}: the least is {MIN_SIDE}"
    warps = tiles.num_warps or 4
    if warps & (warps - 1) or warps * chip.warp > 1024:
        return f"num_warps={warps}: must be a power of two of at most {1024 // chip.warp}"
    needed = shared_bytes(shape, tiles, chip)
    if needed > chip.shared:
        return f"{needed} bytes of shared memory, of {chip.shared}"
    needed, held = thread_registers(shape, tiles, chip), warps * chip.warp
    most = min(chip.thread_registers, chip.registers // held) - SPARE_REGISTERS
    if needed > most:
        return f"{needed} registers a thread, of {most}"
    return None


def shared_bytes(shape: Shape, tiles: Tiles, chip: Chip) -> int:
    """Bytes of the tile of q and of the buffers that k, v and pair operands stream through."""
    rows, stages = shape.rows(tiles.block_q), tiles.num_stages or 2
    q = rows * shape.dims[0] * shape.itemsize
    stage = tiles.block_k * shape.row_bytes
    if shape.pair_operands:
        stage += rows * tiles.block_k * FLOAT
    streams = max(stages - chip.buffers_less, 1) * stage
    if chip.buffers_less:  # the weights pass each time
        weights = rows * tiles.block_k * shape.itemsize
        # q has passed when the first keys arrive, unless a narrower tile at the end needs it too.
        tail = not shape.masked and shape.max_keys % tiles.block_k
        return q + streams + weights if tail else max(q, streams + weights)
    return q + streams + SCRATCH


def thread_registers(shape: Shape, tiles: Tiles, chip: Chip) -> int:
    """Registers of a thread for its share of the outputs, the logits and the rounded weights."""
    threads = (tiles.num_warps or 4) * chip.warp
    weights = min(shape.itemsize, FLOAT) / FLOAT
    row = shape.dims[1] + tiles.block_k * (1 + weights)
    return int(-(-shape.rows(tiles.block_q) * row // threads))
