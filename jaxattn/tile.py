"""The online softmax, on one tile of arrays. The only place in the package where it is written.

For logits s_j of one query row over the keys seen so far the state is

    m = max_j s_j,    l = sum_j 2^(s_j - m),    acc = sum_j 2^(s_j - m) v_j

with s in base 2 (log2(e) and the scale in one factor), so that acc / l is the softmax-weighted mean
of v and (m + log2 l) ln 2 its log-sum-exp. Absorbing a tile of ``keys`` keys costs
2 rows keys (D + Dv) FLOPs of products and one exp2 a logit (Milakov & Gimelshein 2018; Dao et al.
2022).

Where a head dim is no power of two and a target needs one, ``D`` and ``dv`` may be tuples: q, k, v
and acc are then tuples of arrays, each some of the columns.
"""

import functools
import operator

import jax
import jax.numpy as jnp
from jax import lax

__all__ = [
    "LN2",
    "LOG2E",
    "MASKED",
    "absorb",
    "dot",
    "finish",
    "gather",
    "init",
    "merge",
    "scaled",
    "weigh",
]

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
MASKED = -1e30  # finite, so that a row whose keys are all masked so far gives 0, not inf - inf


def init(rows: int | None, dv, sink=None, first=True, flat: bool = False):
    """The state of no keys: ``m, l f32[rows, 1]``, ``acc f32[rows, dv]``.

    ``sink f32[rows, 1]`` is a natural-unit logit that takes part in the sum with no value, in the
    ``first`` part of the keys only (a boolean, for keys that are absorbed in parts).
    ``flat`` makes m and l ``f32[rows]``: TPU vectors have two axes, but a GPU thread would hold a
    column of one as often as it holds columns of the logits. ``rows`` None is one row without an
    axis, for :func:`gather`.
    """
    axis = () if rows is None else (rows,)
    shape = axis if flat or rows is None else (*axis, 1)
    acc = jax.tree.map(lambda n: jnp.zeros((*axis, n), jnp.float32), dv)
    if sink is None:
        return jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), acc
    if first is True:
        return sink.reshape(shape) * LOG2E, jnp.ones(shape, jnp.float32), acc
    m = jnp.where(first, sink.reshape(shape) * LOG2E, MASKED)
    return m, jnp.where(first, jnp.ones(shape, jnp.float32), 0.0), acc


def logits(q, k, scale: float, alter=None):
    """``(s, unit)``: ``s f32[rows, keys]`` of ``q [rows, D]`` and ``k [keys, D]``, and the positive
    number that makes them base-2 logits.

    ``alter`` maps natural-unit logits to natural-unit logits (soft cap, biases).
    """
    products = jax.tree.map(lambda a, b: dot(a, b, 1, 1), q, k)
    return scaled(functools.reduce(operator.add, jax.tree.leaves(products)), scale, alter)


def scaled(s, scale: float, alter=None):
    """What :func:`logits` makes of the products ``s`` of queries and keys, in any shape."""
    if alter is None and scale > 0:
        return s, scale * LOG2E
    s = s * scale
    return (s if alter is None else alter(s)), LOG2E


def absorb(state, logits, v, keep=None):
    """The state after the keys of one tile: :func:`logits`, values ``v [keys, Dv]``, and ``keep``,
    booleans broadcastable to the logits, or None when every key is kept."""
    m, l, acc = state
    s, unit = logits
    if keep is not None:
        s = jnp.where(keep, s, MASKED)
    top = jnp.max(s, axis=1, keepdims=m.ndim == 2)
    m, l, p, decay = weigh(m, l, (s, unit), top, keep)
    pv = lambda v: dot(p.astype(v.dtype), v, 1, 0)  # noqa: E731
    return m, l, jax.tree.map(lambda a, v: a * _column(decay) + pv(v), acc, v)


def weigh(m, l, logits, top, keep=None, axis: int = 1):
    """m and l after a tile's logits, whose largest along ``axis``, that of the keys, is ``top``;
    the tile's weights ``p``, of the logits' shape; and the factor on what was summed before."""
    s, unit = logits
    m_new = jnp.maximum(m, top * unit)
    p = jnp.exp2(s * unit - _column(m_new))  # one fused multiply-add and one exp2 a logit
    if keep is not None:
        p = jnp.where(keep, p, 0.0)
    decay = jnp.exp2(m - m_new)
    return m_new, l * decay + jnp.sum(p, axis=axis, keepdims=m.ndim == 2), p, decay


def finish(state):
    """``out f32[rows, dv]`` and natural-log ``lse f32[rows, 1]``; an empty row is 0 and -inf. The
    state of one row, as of :func:`gather`, gives ``f32[dv]`` and ``f32[]``."""
    m, l, acc = state
    empty = l == 0.0
    some = jnp.where(empty, 1.0, l)
    lse = jnp.where(empty, -jnp.inf, (m + jnp.log2(some)) * LN2)
    share = 1.0 / some  # one division a row, not one a number
    if l.ndim:
        share, lse = _column(share), _column(lse)
    return jax.tree.map(lambda a: a * share, acc), lse


def gather(state, out, lse):
    """The state ``m, l f32[], acc f32[dv]`` of one row after those of n disjoint key sets, given as
    each set's ``out f32[n, dv]`` and natural-log ``lse f32[n]``; -inf is an empty set."""
    m, l, acc = state
    m_new = jnp.maximum(m, jnp.max(lse) * LOG2E)
    weight = jnp.exp2(lse * LOG2E - m_new)
    decay = jnp.exp2(m - m_new)
    add = lambda a, o: a * decay + jnp.sum(o * weight[:, None], axis=0)  # noqa: E731
    return m_new, l * decay + jnp.sum(weight), jax.tree.map(add, acc, out)


def merge(out_a, lse_a, out_b, lse_b):
    """Attention over the union of two disjoint key sets, from each set's output and natural-log
    lse (``[..., Dv]`` and ``[...]``, f32). -inf marks an empty set."""
    top = jnp.maximum(lse_a, lse_b)
    top = jnp.where(jnp.isneginf(top), 0.0, top)
    a, b = jnp.exp2((lse_a - top) * LOG2E), jnp.exp2((lse_b - top) * LOG2E)
    total = a + b
    some = jnp.where(total == 0.0, 1.0, total)
    share_a, share_b = (a / some)[..., None], (b / some)[..., None]
    # A set of weight 0 is left out, not multiplied: its output may be anything.
    out = jnp.where(share_a == 0.0, 0.0, out_a * share_a)
    out = out + jnp.where(share_b == 0.0, 0.0, out_b * share_b)
    return out, jnp.where(total == 0.0, -jnp.inf, top + jnp.log2(some) * LN2)


def _column(x):
    return x if x.ndim == 2 else x[:, None]


def dot(a, b, axis_a: int, axis_b: int):
    """``f32`` product of two matrices that sums over an axis of each."""
    # f32 inputs keep f32 products: the default rounds them to bf16 on TPU and to TF32 on GPU.
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dims = (((axis_a,), (axis_b,)), ((), ()))
    return lax.dot_general(a, b, dims, precision=precision, preferred_element_type=jnp.float32)
