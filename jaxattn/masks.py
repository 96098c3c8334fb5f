"""Which keys a query may see: small frozen objects that compose with ``&`` and ``|``.

Positions are absolute: query i of a sequence with T queries and S keys stands at S - T + i, so the
last query meets the last key (bottom-right alignment). Every mask answers two questions:

* ``keep(q_idx, k_idx, env)``: broadcastable index arrays to booleans;
* ``span(q_lo, q_hi, env)``: for the queries q_lo <= q < q_hi, the keys that can matter and, inside
  them, the keys that every one of those queries keeps. Tiles outside the first are never loaded,
  tiles inside the second skip the mask.
"""

import dataclasses
import functools
import operator
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxattn.integers import choose, div
from jaxattn.operands import PerKey, PerPair, PerQuery, PerSequence, is_operand

__all__ = [
    "Causal",
    "ChunkedLocal",
    "Dense",
    "Full",
    "Mask",
    "Ranges",
    "Segments",
    "Span",
    "Window",
]

FAR = 2**29  # beyond every position; the difference of two is still an int32


class Span(NamedTuple):
    """Half-open key intervals as int32 scalars: ``[lo, hi)`` can matter, ``[full_lo, full_hi)``
    is kept by every query. Either is empty when its end is not past its start."""

    lo: jax.Array | int
    hi: jax.Array | int
    full_lo: jax.Array | int
    full_hi: jax.Array | int

    def clip(self, lo, hi) -> "Span":
        """The same span inside ``[lo, hi)``."""
        return self & Span(lo, hi, lo, hi)

    def __and__(self, other: "Span") -> "Span":
        return Span(
            jnp.maximum(self.lo, other.lo),
            jnp.minimum(self.hi, other.hi),
            jnp.maximum(self.full_lo, other.full_lo),
            jnp.minimum(self.full_hi, other.full_hi),
        )

    def __or__(self, other: "Span") -> "Span":
        mine, theirs = jnp.asarray(self.lo < self.hi), jnp.asarray(other.lo < other.hi)
        lo = jnp.minimum(choose(mine, self.lo, FAR), choose(theirs, other.lo, FAR))
        hi = jnp.maximum(choose(mine, self.hi, -FAR), choose(theirs, other.hi, -FAR))
        return Span(lo, hi, *self._full_or(other))

    def _full_or(self, other):
        """One full interval: both joined if they meet, else the longer."""
        mine, theirs = self.full_hi - self.full_lo, other.full_hi - other.full_lo
        meet = jnp.asarray((mine > 0) & (theirs > 0))
        meet &= (self.full_lo <= other.full_hi) & (other.full_lo <= self.full_hi)
        longer = functools.partial(choose, jnp.asarray(mine >= theirs))
        full_lo = longer(self.full_lo, other.full_lo)
        full_hi = longer(self.full_hi, other.full_hi)
        return (
            choose(meet, jnp.minimum(self.full_lo, other.full_lo), full_lo),
            choose(meet, jnp.maximum(self.full_hi, other.full_hi), full_hi),
        )


class Mask:
    """The interface.

    ``holes``: the kept keys of a span need not be one interval, so each tile is looked at before it
    is loaded. ``ragged_left``: the span can begin, or stop being full, past key 0.
    """

    holes: ClassVar[bool] = False
    ragged_left: ClassVar[bool] = False

    def keep(self, q_idx, k_idx, env):
        """Booleans broadcastable to ``[rows, keys]``: ``q_idx [rows, 1]``, ``k_idx [1, keys]``."""
        raise NotImplementedError

    def span(self, q_lo, q_hi, env) -> Span:
        """The :class:`Span` of the queries ``q_lo <= q < q_hi``."""
        raise NotImplementedError

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __bool__(self):
        raise TypeError("a mask has no truth value: compose masks by & and |, not by and, or")


def _mask(*arrays):
    """Registers a frozen dataclass as a pytree: its fields ``arrays`` are data, the rest static."""

    def register(cls):
        cls = dataclasses.dataclass(frozen=True)(cls)
        meta = [f.name for f in dataclasses.fields(cls) if f.name not in arrays]
        return jax.tree_util.register_dataclass(cls, data_fields=list(arrays), meta_fields=meta)

    return register


@_mask()
class Full(Mask):
    """Every query sees every key of its sequence."""

    def keep(self, q_idx, k_idx, env):
        return k_idx >= 0

    def span(self, q_lo, q_hi, env):
        return Span(0, FAR, 0, FAR)


@_mask()
class Causal(Mask):
    """A query sees the keys at and before its position."""

    def keep(self, q_idx, k_idx, env):
        return k_idx <= q_idx

    def span(self, q_lo, q_hi, env):
        return Span(0, q_hi, 0, q_lo + 1)


@_mask()
class Window(Mask):
    """A query at q sees q - left <= k <= q + right; None is unlimited on that side.

    Raises:
      ValueError: a side is negative.
    """

    left: int | None = None
    right: int | None = None

    def __post_init__(self):
        for side in ("left", "right"):
            if getattr(self, side) is not None:
                _whole_number(self, side, 0)

    @property
    def ragged_left(self):
        return self.left is not None

    def keep(self, q_idx, k_idx, env):
        ok = k_idx >= 0
        if self.left is not None:
            ok &= k_idx >= q_idx - self.left
        if self.right is not None:
            ok &= k_idx <= q_idx + self.right
        return ok

    def span(self, q_lo, q_hi, env):
        lo = full_lo = 0
        hi = full_hi = FAR
        if self.left is not None:
            lo, full_lo = q_lo - self.left, q_hi - 1 - self.left
        if self.right is not None:
            hi, full_hi = q_hi + self.right, q_lo + self.right + 1
        return Span(lo, hi, full_lo, full_hi)


@_mask()
class ChunkedLocal(Mask):
    """A query sees the keys of its own chunk: q // size == k // size.

    Raises:
      ValueError: ``size`` is not positive.
    """

    size: int
    ragged_left: ClassVar[bool] = True

    def __post_init__(self):
        _whole_number(self, "size", 1)

    def _start(self, q):
        # A negative position (more queries than keys) has a chunk that holds no key.
        return choose(q < 0, -self.size, div(q, self.size) * self.size)

    def keep(self, q_idx, k_idx, env):
        start = self._start(q_idx)
        return (k_idx >= start) & (k_idx < start + self.size)

    def span(self, q_lo, q_hi, env):
        q_lo, q_hi = jnp.asarray(q_lo, jnp.int32), jnp.asarray(q_hi, jnp.int32)
        first, last = self._start(q_lo), self._start(q_hi - 1)
        return Span(first, last + self.size, last, first + self.size)


@_mask("ranges")
class Ranges(Mask):
    """Queries and keys inside one range see each other both ways: image tokens, prefixes.

    ``ranges`` is ``i32[N, R, 2]``: R half-open ``[start, end)`` a sequence (of a batch, N = B);
    ``start >= end`` is unused. Mostly used as ``Causal() | Ranges(ranges)``.
    """

    ranges: jax.Array
    holes: ClassVar[bool] = True
    ragged_left: ClassVar[bool] = True

    def __post_init__(self):
        _wrap(self, "ranges", PerSequence)

    def _each(self, env):
        for r in range(self.ranges.value.shape[1]):
            yield tuple(env.scalar(self.ranges, r, end) for end in (0, 1))

    def keep(self, q_idx, k_idx, env):
        ok = k_idx < 0
        for start, end in self._each(env):
            ok |= (q_idx >= start) & (q_idx < end) & (k_idx >= start) & (k_idx < end)
        return ok

    def span(self, q_lo, q_hi, env):
        span = Span(0, 0, 0, 0)
        for start, end in self._each(env):
            meets = (start < q_hi) & (q_lo < end) & (start < end)
            holds = (start <= q_lo) & (q_hi <= end)
            span |= Span(start, choose(meets, end, start), start, choose(holds, end, start))
        return span


@_mask("q_ids", "k_ids")
class Segments(Mask):
    """A query sees the keys with its own id.

    ``q_ids`` and ``k_ids`` are int32: ``[B, T]`` and ``[B, S]`` for ``attention``; ``[T]`` and
    ``[S]`` packed for ``varlen_attention``; ``[T]`` and ``[N, W * page_size]`` for
    ``paged_attention``.
    """

    q_ids: jax.Array
    k_ids: jax.Array
    holes: ClassVar[bool] = True

    def __post_init__(self):
        _wrap(self, "q_ids", PerQuery)
        _wrap(self, "k_ids", PerKey)

    def keep(self, q_idx, k_idx, env):
        return env.at_query(self.q_ids) == env.at_key(self.k_ids)

    def span(self, q_lo, q_hi, env):
        return Span(0, FAR, 0, 0)


@_mask("kept")
class Dense(Mask):
    """Booleans broadcastable to ``[B, H, T, S]`` for ``attention``, to ``[H, T, S]`` for packed
    calls, where T is the packed row and S the key position in the row's own sequence. Keys
    past its last column are not kept (in packed calls one column for many keys is refused)."""

    kept: jax.Array
    holes: ClassVar[bool] = True

    def __post_init__(self):
        _wrap(self, "kept", functools.partial(PerPair, boolean=True))

    def keep(self, q_idx, k_idx, env):
        return env.at_pair(self.kept) != 0

    def span(self, q_lo, q_hi, env):
        return Span(0, FAR, 0, 0)


@_mask("a", "b")
class And(Mask):
    """Kept by both."""

    a: Mask
    b: Mask

    @property
    def holes(self):
        return self.a.holes or self.b.holes

    @property
    def ragged_left(self):
        return self.a.ragged_left or self.b.ragged_left

    def keep(self, q_idx, k_idx, env):
        return self.a.keep(q_idx, k_idx, env) & self.b.keep(q_idx, k_idx, env)

    def span(self, q_lo, q_hi, env):
        return self.a.span(q_lo, q_hi, env) & self.b.span(q_lo, q_hi, env)


@_mask("a", "b")
class Or(Mask):
    """Kept by either."""

    a: Mask
    b: Mask
    holes: ClassVar[bool] = True
    ragged_left: ClassVar[bool] = True

    def keep(self, q_idx, k_idx, env):
        return self.a.keep(q_idx, k_idx, env) | self.b.keep(q_idx, k_idx, env)

    def span(self, q_lo, q_hi, env):
        return self.a.span(q_lo, q_hi, env) | self.b.span(q_lo, q_hi, env)


def _whole_number(mask, field, least):
    """Makes a field a Python int, or says why it is none."""
    value, name = getattr(mask, field), type(mask).__name__
    rule = f"must be a whole number from {least} to {FAR - 1}, known when tracing"
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} {field}={value!r}: {rule}") from None
    if isinstance(value, bool) or not least <= number < FAR:
        raise ValueError(f"{name} {field}={value!r}: {rule}")
    object.__setattr__(mask, field, number)


def _wrap(mask, field, kind):
    """Puts the operand wrapper around a user's array, and leaves a wrapped one as it is."""
    value = getattr(mask, field)
    if not is_operand(value):
        object.__setattr__(mask, field, kind(value))
