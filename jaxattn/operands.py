"""Arrays that a mask or a score carries into a kernel, sorted by how a tile reads them.

A target decides from the kind how the array reaches its kernel: whole in scalar memory, gathered
ahead, or loaded tile by tile. Masks and scores only ask their environment for values.
"""

import dataclasses

import jax
import jax.numpy as jnp

__all__ = [
    "Layout",
    "PerHead",
    "PerKey",
    "PerPair",
    "PerQuery",
    "PerSequence",
    "bind",
    "is_operand",
]


def _operand(cls):
    data = ["value"]
    meta = [f.name for f in dataclasses.fields(cls) if f.name != "value"]
    return jax.tree_util.register_dataclass(cls, data_fields=data, meta_fields=meta)


@_operand
@dataclasses.dataclass(frozen=True)
class PerHead:
    """``[H]``: one number a query head."""

    value: jax.Array


@_operand
@dataclasses.dataclass(frozen=True)
class PerSequence:
    """``[N, ...]``: a few numbers a sequence, read one by one."""

    value: jax.Array


@_operand
@dataclasses.dataclass(frozen=True)
class PerQuery:
    """``[T]``: one number a packed query row."""

    value: jax.Array


@_operand
@dataclasses.dataclass(frozen=True)
class PerKey:
    """``[L]``: one number a key; key 0 of sequence n is at the problem's ``key_base[n]``."""

    value: jax.Array


@_operand
@dataclasses.dataclass(frozen=True)
class PerPair:
    """``[1 or H, R, S]``: one number a (head, query row, key position).

    ``rows`` says which of the R rows a query reads: ``"global"`` its packed row, ``"local"`` its
    row inside its sequence, ``"sequence"`` the number of its sequence, ``"one"`` row 0.
    """

    value: jax.Array
    rows: str = "global"


KINDS = (PerHead, PerSequence, PerQuery, PerKey, PerPair)


def is_operand(x) -> bool:
    """True for the wrappers of this module: the leaves that targets convert."""
    return isinstance(x, KINDS)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The shapes of one call, to check and flatten the arrays of its masks and scores.

    ``batch`` is None for packed calls (varlen and paged); then ``queries`` counts packed rows,
    ``keys`` packed keys (varlen) or None, and ``table_keys`` the keys a block table can name.
    """

    sequences: int
    heads: int
    queries: int
    keys: int | None
    batch: int | None = None
    table_keys: int | None = None


def bind(tree, layout: Layout):
    """Checks the arrays in ``tree`` (a mask or scores) against ``layout`` and flattens them."""
    return jax.tree.map(lambda x: _BIND[type(x)](x, layout), tree, is_leaf=is_operand)


def _require(ok: bool, what: str, shape, rule: str):
    if not ok:
        raise ValueError(f"{what} has shape {tuple(shape)}: it must be {rule}")


def _per_head(op, layout):
    shape = jnp.shape(op.value)
    _require(shape == (layout.heads,), "a per-head array", shape, f"[H] = ({layout.heads},)")
    return PerHead(jnp.asarray(op.value, jnp.float32))


def _per_sequence(op, layout):
    shape, n = jnp.shape(op.value), layout.sequences
    _require(shape[:1] == (n,), "a per-sequence array", shape, f"[N, ...] with N = {n}")
    return PerSequence(jnp.asarray(op.value, jnp.int32))


def _per_query(op, layout):
    shape = jnp.shape(op.value)
    want = (layout.queries,) if layout.batch is None else (layout.batch, layout.queries)
    _require(shape == want, "q_ids", shape, f"{want}")
    return PerQuery(jnp.asarray(op.value, jnp.int32).reshape(-1))


def _per_key(op, layout):
    shape = jnp.shape(op.value)
    if layout.batch is not None:
        want = (layout.batch, layout.keys)
    elif layout.table_keys is not None:
        want = (layout.sequences, layout.table_keys)
    else:
        want = (layout.keys,)
    _require(shape == want, "k_ids", shape, f"{want}")
    return PerKey(jnp.asarray(op.value, jnp.int32).reshape(-1))


def _per_pair(op, layout):
    x = jnp.asarray(op.value)
    x = x.astype(jnp.int8) if x.dtype == jnp.bool_ else x  # not every target loads booleans
    if layout.batch is None:
        return _packed_pair(x, layout)
    b, t, s, h = layout.batch, layout.queries, layout.keys, layout.heads
    shape = x.shape
    x = x.reshape((1,) * (4 - x.ndim) + shape) if x.ndim <= 4 else x
    rule = f"broadcastable to [B, H, T, S] = ({b}, {h}, {t}, {s})"
    fits = x.ndim == 4 and all(n in (1, m) for n, m in zip(x.shape, (b, h, t, s), strict=True))
    _require(fits, "a bias or dense mask", shape, rule)
    if x.shape[3] != s:
        x = jnp.broadcast_to(x, (*x.shape[:3], s))
    per_batch, per_row = x.shape[0] == b and b > 1, x.shape[2] == t and t > 1
    rows = {(True, True): "global", (True, False): "sequence", (False, True): "local"}.get(
        (per_batch, per_row), "one"
    )
    return PerPair(jnp.moveaxis(x, 1, 0).reshape(x.shape[1], -1, s), rows)


def _packed_pair(x, layout):
    shape, t, h = x.shape, layout.queries, layout.heads
    x = x.reshape((1,) * (3 - x.ndim) + shape) if x.ndim <= 3 else x
    fits = x.ndim == 3 and x.shape[0] in (1, h) and x.shape[1] in (1, t)
    rule = f"broadcastable to [H, T, S] with H = {h}, T = {t} and a column for every key position"
    _require(fits, "a bias or dense mask", shape, rule)
    return PerPair(x, "global" if x.shape[1] == t and t > 1 else "one")


_BIND = {
    PerHead: _per_head,
    PerSequence: _per_sequence,
    PerQuery: _per_query,
    PerKey: _per_key,
    PerPair: _per_pair,
}
