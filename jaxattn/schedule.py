"""Which work item does which queries: plain jnp, computed once a step and shared by all layers."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxattn.integers import arange, div

__all__ = ["Schedule", "find", "item_bound", "schedule", "uniform_item"]

SMALL_SEARCH = 1 << 24  # comparisons that one GPU kernel makes sooner than a search its many steps


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Schedule:
    """I work items, each one block of ``block_q`` queries of one sequence; int32.

    Rows past the last sequence form one more sequence, number N, without keys, so that every row
    of the output belongs to exactly one item.
    """

    seq: jax.Array  # [I] the item's sequence
    start: jax.Array  # [I] its first query inside the sequence
    count: jax.Array  # [I] its queries: 0 in the unused items, which come last
    items: jax.Array  # [] how many items are used


def item_bound(num_tokens: int, num_seqs: int, block_q: int, least=0, most=None) -> int:
    """The most items that :func:`schedule` can give."""
    if most is not None:
        return min(num_tokens, num_seqs * -(-most // block_q))
    seqs = num_seqs if least == 0 else min(num_seqs, num_tokens // least)
    extra = (seqs + 1) * (block_q - 1)
    return min(num_tokens, (num_tokens + extra) // block_q) if num_tokens else 0


def schedule(
    cu_q_lens: jax.Array, num_tokens: int, block_q: int, least: int = 0, most: int | None = None
) -> Schedule:
    """The work items for ``cu_q_lens i32[N + 1]`` over ``num_tokens`` rows.

    Only sequences of ``least`` to ``most`` queries have items; with a ``most``, rows past the last
    sequence have none.
    """
    num_seqs = cu_q_lens.shape[0] - 1
    cu = jnp.append(cu_q_lens, num_tokens).astype(jnp.int32)
    q_lens = cu[1:] - cu[:-1]
    padding = arange(num_seqs + 1) == num_seqs
    has = (q_lens >= least) | padding if most is None else (q_lens <= most) & ~padding
    blocks = jnp.where(has, div(q_lens + block_q - 1, block_q), 0)
    ends = jnp.cumsum(blocks, dtype=jnp.int32)
    item = arange(item_bound(num_tokens, num_seqs, block_q, least, most))
    seq = find(ends, item)
    used = seq <= num_seqs
    seq = jnp.minimum(seq, num_seqs)
    start = (item - (ends - blocks)[seq]) * block_q
    count = jnp.where(used, jnp.minimum(q_lens[seq] - start, block_q), 0)
    return Schedule(seq, jnp.where(used, start, 0), count, ends[-1])


def find(ends, x):
    """The first index of rising ``ends`` whose entry is past ``x``; int32 of x's shape."""
    small = ends.size * x.size <= SMALL_SEARCH
    method = "compare_all" if small else "sort"
    return jnp.searchsorted(ends, x, side="right", method=method).astype(jnp.int32)


def uniform_item(item, q_len: int, block_q: int):
    """``(seq, start, count)`` of work item ``item`` (int32, any shape) when every sequence has
    ``q_len`` queries: arithmetic instead of tables, there is no padding."""
    blocks = max(-(-q_len // block_q), 1)
    seq = div(item, blocks)
    start = (item - seq * blocks) * block_q
    return seq, start, jnp.minimum(q_len - start, block_q)
