"""Work items cut along their keys, so that one long sequence does not run alone: split-KV."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxattn.integers import arange
from jaxattn.schedule import find

__all__ = ["Parts", "part_bound", "split"]

MIN_TILES = 2  # of a part: less is not worth a merge


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Parts:
    """I parts of J items, and the M items that have several; int32.

    An item in one part writes its own result. The parts of another write theirs, unnormalised by
    each other, to neighbouring slots, and a merge makes them one.
    """

    item: jax.Array  # [I] whose part; J in the unused ones, which come last
    lo: jax.Array  # [I] the part's keys, lo <= key < hi
    hi: jax.Array  # [I]
    first: jax.Array  # [I] 1 in an item's first part
    slot: jax.Array  # [I] where the result goes; -1 when it is the item's whole result
    merged: jax.Array  # [M] the items of several parts; J when unused
    merged_slot: jax.Array  # [M] the slot of the first part
    merged_parts: jax.Array  # [M] how many; 0 when unused


def part_bound(items: int, wanted: int) -> tuple[int, int, int]:
    """``(parts, merged items, slots)``: the most that :func:`split` gives.

    With chunk >= tiles / wanted, an item of n tiles has at most n / chunk + 1 parts, and several
    only if n > chunk, hence at most 2 n / chunk of them.
    """
    return items + wanted, min(items, wanted), 2 * wanted


def split(lo, hi, block_k: int, wanted: int) -> Parts:
    """Parts of the items whose keys are ``lo <= key < hi`` (``i32[J]``), of about equal length and
    at least about ``wanted`` in number when there are keys enough; cut at multiples of ``block_k``.
    """
    items = lo.shape[0]
    parts, merges, _ = part_bound(items, wanted)
    first_tile = lo // block_k
    tiles = jnp.where(hi > lo, -(-hi // block_k) - first_tile, 0)
    chunk = jnp.maximum(-(-jnp.sum(tiles, dtype=jnp.int32) // wanted), MIN_TILES)
    count = jnp.maximum(-(-tiles // chunk), 1)
    each = -(-tiles // count)  # the last part may be shorter
    ends = jnp.cumsum(count, dtype=jnp.int32)
    several = count > 1
    slot_ends = jnp.cumsum(jnp.where(several, count, 0), dtype=jnp.int32)

    i = arange(parts)
    item = find(ends, i)
    at = jnp.minimum(item, items - 1)
    number = i - (ends - count)[at]
    begin = (first_tile[at] + number * each[at]) * block_k
    end = begin + each[at] * block_k
    used = item < items
    slot = jnp.where(several[at] & used, (slot_ends - count)[at] + number, -1)

    rank = jnp.cumsum(several, dtype=jnp.int32)
    merged = find(rank - 1, arange(merges) - 1)  # the item with that many splits before it
    there = jnp.minimum(merged, items - 1)
    some = (merged < items) & several[there]
    return Parts(
        item=item,
        lo=jnp.where(used, jnp.maximum(begin, lo[at]), 0),
        hi=jnp.where(used, jnp.minimum(end, hi[at]), 0),
        first=(number == 0).astype(jnp.int32),
        slot=slot,
        merged=jnp.where(some, merged, items),
        merged_slot=jnp.where(some, (slot_ends - count)[there], 0),
        merged_parts=jnp.where(some, count[there], 0),
    )
