"""Loads and stores of tiles, and what an item of a Triton launch reads through them.

Triton's arrays have sizes that are powers of two. A head dim that is none becomes two columns of
power-of-two widths where that wastes less than one, and is padded by zeros where it does not.
"""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxattn.integers import arange, div, rem
from jaxattn.kernel import Env
from jaxattn.tuning_shape import MIN_SIDE, side

__all__ = ["LoadEnv", "LoadPages", "LoadSlices", "columns", "load", "store", "whole"]

MOST_SCALARS = 8  # pages of a tile that are looked up one by one


def whole(x):
    """The BlockSpec by which every program has all of an array."""
    return pl.BlockSpec(x.shape, lambda *_: (0,) * len(x.shape))


def columns(d: int):
    """The width of the columns of a head dim, a number or a tuple: 128: 128; 72: (64, 16)."""
    padded = side(d)
    first = padded // 2
    rest = side(d - first)
    return (first, rest) if first >= MIN_SIDE and first + rest < padded else padded


def load(ref, place, ok=None):
    """Rows of ``ref`` at ``place`` (vectors and scalars) in :func:`columns`; ``ok`` masks rows."""
    place = tuple(_as_column(x) for x in place)
    rows = max(x.shape[0] for x in place if getattr(x, "ndim", 0))
    ok = None if ok is None else _as_column(ok)

    def some(begin, width):
        lane, inside = _lanes(ref, begin, width, ok)
        at = ref.at[(*place, lane)]
        if inside is None:
            return plt.load(at)
        return plt.load(at, mask=jnp.broadcast_to(inside, (rows, width)), other=0.0)

    return _each_column(some, columns(ref.shape[-1]))


def store(ref, place, x, ok):
    """Writes :func:`columns` ``x`` to the rows of ``ref`` at ``place`` where ``ok``."""

    def some(begin, width, x):
        lane, inside = _lanes(ref, begin, width, ok)
        x = x.astype(ref.dtype)
        plt.store(ref.at[(*place, lane)], x, mask=jnp.broadcast_to(inside, x.shape))

    _each_column(some, columns(ref.shape[-1]), x)


def _each_column(fn, widths, *xs):
    if isinstance(widths, int):
        return fn(0, widths, *xs)
    begins = (0, *widths)  # there are two at most
    return tuple(fn(*one) for one in zip(begins[: len(widths)], widths, *xs, strict=True))


def _lanes(ref, begin, width, ok):
    lane = lax.broadcasted_iota(jnp.int32, (1, width), 1) + begin
    if begin + width > ref.shape[-1]:
        inside = lane < ref.shape[-1]
        ok = inside if ok is None else ok & inside
    return lane, ok


def _as_column(x):
    return x[:, None] if getattr(x, "ndim", 0) == 1 else x


class _Loaded:
    """Key tiles by gathered loads; the hardware and Triton's pipeliner hide the latency."""

    shift = 0
    ragged = False
    clean = True
    flat = True
    tail = None

    def __init__(self, k_ref, v_ref, head, width):
        self.k_ref, self.v_ref, self.head, self.width = k_ref, v_ref, head, width

    def begin(self, first, last, span):
        pass

    def ahead(self, j):
        return None

    def take(self, j, last, bounds, at):
        return self._load(self.k_ref, j, bounds, at), self._load(self.v_ref, j, bounds, at)

    def _load(self, ref, j, bounds, at):
        key = j * self.width + arange(self.width)
        ok = None if bounds is None else (key >= bounds[0]) & (key < bounds[1])
        return load(ref, self._place(j * self.width, at), ok)


class LoadSlices(_Loaded):
    """Packed keys ``[S, K, D]``; ``rest`` of them, if that is known, are past the full tiles."""

    def __init__(self, k_ref, v_ref, head, width, start, rest=0):
        super().__init__(k_ref, v_ref, head, width)
        self.start = start
        narrow = side(rest)
        if rest and narrow < width:
            self.tail = LoadSlices(k_ref, v_ref, head, narrow, start)

    def _place(self, first, at):
        return self.start + first + arange(self.width), self.head


class LoadPages(_Loaded):
    """A paged cache ``[P, K, page_size, D]``: any tile width with any page size.

    The pages of a tile are looked up a turn ahead: Triton would take the look-up for a stage of its
    pipeline, and load keys only when it is done.
    """

    def __init__(self, k_ref, v_ref, head, width, tables, seq):
        super().__init__(k_ref, v_ref, head, width)
        self.tables, self.seq = tables, seq
        self.page_size = k_ref.shape[2]

    def begin(self, first, last, span):
        self.end = jnp.maximum(span.hi - 1, 0)  # the table may end with the page of this key

    def ahead(self, j):
        """The pages of tile j: a scalar each where they are few, else a vector of one a key."""
        size, first = self.page_size, j * self.width
        if self.width > MOST_SCALARS * size:
            return self._page(first + arange(self.width))
        return tuple(self._page(first + i * size) for i in range(max(self.width // size, 1)))

    def _page(self, key):
        return plt.load(self.tables.at[self.seq, div(jnp.minimum(key, self.end), self.page_size)])

    def _place(self, first, at):
        # Tiles and pages begin at multiples of their sizes, both powers of two.
        key = arange(self.width)
        slot = rem(key, self.page_size)
        if self.page_size > self.width:
            slot += rem(first, self.page_size)
        if not isinstance(at, tuple):
            return at, self.head, slot
        page, which = at[0], div(key, self.page_size)
        for i in range(1, len(at)):
            page = jnp.where(which == i, at[i], page)
        return page, self.head, slot


class LoadEnv(Env):
    """Masks and scores read their operands by loads of the shape of the tile."""

    def __init__(self, rows, key_base, *where):
        super().__init__(rows, *where)
        self.key_base = key_base

    def at_query(self, operand):
        return plt.load(operand.value.at[self.rows.packed()])

    def at_key(self, operand):
        place = self.key_base[self.rows.seq] + self.k_idx
        inside = self.k_idx < self.rows.kv_len
        return plt.load(operand.value.at[place], mask=inside, other=0)

    def at_pair(self, operand):
        ref, rows, k_idx = operand.value, self.rows, self.k_idx
        shape = (rows.rows, self.width)
        head = rows.head() if ref.shape[0] > 1 else 0
        row = {
            "global": rows.packed,
            "local": lambda: rows.start + rows.query(),
            "sequence": lambda: rows.seq,
            "one": lambda: 0,
        }[operand.rows]()
        spread = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.int32), shape)  # noqa: E731
        inside = spread(k_idx) < ref.shape[2]
        place = (spread(head), spread(row), spread(k_idx))
        return plt.load(ref.at[place], mask=inside, other=0)
