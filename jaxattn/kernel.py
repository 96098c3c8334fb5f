"""The forward body, written once: one block of query rows against the keys of its sequence.

Rows are (query, head of the group) pairs, ``row // group`` the query: prefill and decode differ
only in how many queries a block has. A target gives

* a source: ``width`` keys a tile, ``shift`` (where key 0 stands in tile 0), ``ragged`` (shift
  may not be 0), ``begin(first, last, span)``, ``ahead(j)``, arrays that tile j needs before it can
  be asked for (or None), and ``take(j, last, bounds, at) -> k [width, D], v [width, Dv]``. There
  ``at`` is the ``ahead(j)`` of the turn before, and ``bounds`` is None for a tile that lies wholly
  inside the span, else the span ``(lo, hi)``: what lies outside it need not be loaded, and is 0 if
  the source is ``clean`` and may be anything if not. ``flat`` says which form of the state suits
  it (see tile.init). ``tail`` is None, or a source of narrower tiles for the keys past the full
  ones, when these are known to fit in one;
* an environment, :class:`Env`, for what masks and scores read.

The loop keeps (m, l, acc) of :mod:`jaxattn.tile` over tiles first..last in three ranges: masked,
full, masked (one range for a block of one query or of few rows). Per full tile: 2 rows width
(D + Dv) FLOPs and width (D + Dv) elements moved.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxattn import tile
from jaxattn.integers import choose, div, rem
from jaxattn.masks import Span

__all__ = ["FEW_ROWS", "Env", "Rows", "attend"]

FEW_ROWS = 16


@dataclasses.dataclass(frozen=True)
class Rows:
    """The query rows of one item. All but the first three are traced int32 scalars."""

    block_q: int  # the most queries of an item
    rows: int  # rows of the tile: block_q * group and padding
    group: int  # query heads a kv head
    kv_head: Any
    seq: Any  # clipped to a real sequence
    start: Any  # first query inside its sequence
    count: Any  # queries that are real
    packed_start: Any  # packed row of query 0 of the sequence
    q_len: Any
    kv_len: Any
    keys: Any = None  # (lo, hi), where an item has only a part of the keys of its sequence
    first: Any = True  # of an item's parts: the one that has the sink

    def query(self):
        """``i32[rows, 1]``: which query of the block. Padding rows repeat the last one, so that
        they ask for no key that no real row asks for."""
        return jnp.minimum(self._query(), jnp.maximum(self.count - 1, 0))

    def real(self):
        """``bool[rows, 1]``: rows that are not padding."""
        return self._query() < self.count

    def head(self):
        """``i32[rows, 1]``: the query head."""
        return self.kv_head * self.group + rem(_rows(self.rows), self.group)

    def packed(self, clamp=True):
        """``i32[rows, 1]``: the packed query row; without ``clamp`` padding rows run on."""
        return self.packed_start + self.start + (self.query() if clamp else self._query())

    def position(self):
        """The absolute position of the block's first query."""
        return self.kv_len - self.q_len + self.start

    def _query(self):
        r = _rows(self.rows)
        return r if self.group == 1 else div(r, self.group)


def _rows(n):
    return lax.broadcasted_iota(jnp.int32, (n, 1), 0)


class Env:
    """What a mask or score reads about one tile; a target fills in how.

    ``tile_index``, ``k_first`` and ``width`` say which key tile is in hand; None outside tiles.
    """

    def __init__(self, rows: Rows, tile_index=None, k_first=None, width=None):
        self.rows, self.tile_index, self.k_first, self.width = rows, tile_index, k_first, width

    @property
    def k_idx(self):
        """``i32[1, width]``: the key positions of the tile."""
        return self.k_first + lax.broadcasted_iota(jnp.int32, (1, self.width), 1)

    def scalar(self, operand, *index):
        """One number of a PerSequence operand of this sequence."""
        return operand.value[(self.rows.seq, *index)]

    def per_head(self, operand):
        """``f32[rows, 1]`` of a PerHead operand."""
        first = self.rows.kv_head * self.rows.group
        member = rem(_rows(self.rows.rows), self.rows.group)
        out = jnp.full((self.rows.rows, 1), operand.value[first], jnp.float32)
        for g in range(1, self.rows.group):
            out = jnp.where(member == g, operand.value[first + g], out)
        return out

    def at_query(self, operand):
        """``i32[rows, 1]`` of a PerQuery operand."""
        raise NotImplementedError

    def at_key(self, operand):
        """``i32[1, keys]`` of a PerKey operand."""
        raise NotImplementedError

    def at_pair(self, operand):
        """``[rows, keys]`` of a PerPair operand; 0 past its last column."""
        raise NotImplementedError


def attend(q, source, env_at, rows: Rows, mask, scores, sinks, scale: float, dv):
    """Attention of ``q [rows, D]`` over the keys its mask keeps.

    ``env_at(tile_index, k_first, width)`` makes an :class:`Env`. Returns ``out f32[rows, dv]`` and
    ``lse f32[rows, 1]``. q, dv and out may be tuples of columns, as in :mod:`jaxattn.tile`.
    """
    q_pos = rows.position()
    q_idx = q_pos + rows.query()
    whole = env_at()
    lo, hi = (0, rows.kv_len) if rows.keys is None else rows.keys
    span = mask.span(q_pos, q_pos + rows.count, whole).clip(lo, hi)
    first, full_first, full_last, last = _tiles(span, source.width, source.shift)
    alter_at = _alter(scores, q_idx)

    def plain(j, state, at):
        k, v = source.take(j, last, None, at)
        s = tile.logits(q, k, scale, alter_at(_env(env_at, source, j)))
        return tile.absorb(state, s, v)

    def kept(env):
        k_idx = env.k_idx
        keep = mask.keep(q_idx, k_idx, env) & (k_idx >= span.lo) & (k_idx < span.hi)
        if mask.holes:  # what padding rows read is not theirs, and must not call for a key
            keep &= rows.real()
        return jnp.broadcast_to(keep, (rows.rows, env.width))

    def masked(j, state, at, source=source):
        env = _env(env_at, source, j)
        keep = kept(env)

        def work(state):
            k, v = source.take(j, last, (span.lo, span.hi), at)
            s = tile.logits(q, k, scale, alter_at(env))
            if mask.holes or not source.clean:
                v = _known(v, keep, env.k_first, span, mask.holes)
            return tile.absorb(state, s, v, keep)

        if not mask.holes:
            return work(state)
        return lax.cond(jnp.max(jnp.where(keep, 1.0, 0.0)) > 0.0, work, lambda s: s, state)

    sink = None if sinks is None else whole.per_head(sinks)
    state = tile.init(rows.rows, dv, sink, rows.first, flat=source.flat)
    source.begin(first, last, span)
    if rows.block_q == 1 or rows.rows <= FEW_ROWS:
        # Masking few rows costs less than the registers and code of more loops.
        return tile.finish(_walk(source, first, last, masked, state, source.ahead(first))[0])
    at = source.ahead(first)
    if mask.ragged_left or source.ragged:
        state, at = _walk(source, first, full_first, masked, state, at)
    state, at = _walk(source, full_first, full_last, plain, state, at)
    if source.tail is None:
        return tile.finish(_walk(source, full_last, last, masked, state, at)[0])
    j = div(full_last * source.width, source.tail.width)
    return tile.finish(masked(j, state, source.tail.ahead(j), source.tail))


def _walk(source, first, last, step, state, at):
    """The state after ``step(j, state, at)`` for first <= j < last, and ``source.ahead(last)``."""

    def turn(j, carry):
        state, at = carry
        return step(j, state, at), source.ahead(j + 1)

    return lax.fori_loop(first, last, turn, (state, at))


def _tiles(span: Span, width: int, shift):
    """Tiles ``first <= full_first <= full_last <= last``; first == last when none matters."""
    first = div(span.lo + shift, width)
    last = div(span.hi + shift + (width - 1), width)
    last = choose(span.hi > span.lo, last, first)
    full_first = div(jnp.maximum(span.full_lo + shift, 0) + (width - 1), width)
    full_last = div(jnp.maximum(span.full_hi + shift, 0), width)
    full_first = jnp.clip(full_first, first, last)
    full_last = jnp.clip(full_last, full_first, last)
    # Without a full tile, all tiles go to the right-hand masked loop, the one every mask has.
    some = full_last > full_first
    return first, choose(some, full_first, first), choose(some, full_last, first), last


def _env(env_at, source, j):
    return env_at(j, j * source.width - source.shift, source.width)


def _alter(scores, q_idx):
    """``env -> (logits -> logits)``, or None when there is nothing to do."""
    if not scores:
        return lambda env: None

    def at(env):
        def alter(s):
            for score in scores:
                s = score.apply(s, q_idx, env.k_idx, env)
            return s

        return alter

    return at


def _known(v, keep, k_first, span, holes):
    """``v`` with 0 for the keys that no row keeps: they may be NaN, and 0 * NaN is NaN."""
    return jax.tree.map(lambda v: _known_columns(v, keep, k_first, span, holes), v)


def _known_columns(v, keep, k_first, span, holes):
    if not holes:
        width = v.shape[0]
        key = lax.broadcasted_iota(jnp.int32, (width, 1), 0) + k_first
        return jnp.where((key >= span.lo) & (key < span.hi), v, jnp.zeros_like(v))
    # The column of "some row keeps it" as a product, which every target can do without a relayout.
    kept = jnp.where(keep, 1.0, 0.0).astype(v.dtype)
    ones = jnp.ones((keep.shape[0], v.shape[1]), v.dtype)
    some = lax.dot_general(kept, ones, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    return jnp.where(some > 0.0, v, jnp.zeros_like(v))
