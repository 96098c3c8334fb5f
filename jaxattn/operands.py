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
    boolean: bool = False  # a dense mask, else a bias

    @property
    def name(self) -> str:
        return "a dense mask" if self.boolean else "a bias"


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


def _kind(x, kind, what: str):
    """``x`` as an array, if its dtype is of the kind that ``what`` needs."""
    if x is None or not jnp.issubdtype(jnp.asarray(x).dtype, kind):
        got = "None" if x is None else jnp.asarray(x).dtype
        name = {jnp.floating: "floats", jnp.integer: "integers", jnp.bool_: "booleans"}[kind]
        raise ValueError(f"{what} is {got}: it must be an array of {name}")
    return jnp.asarray(x)


def _per_head(op, layout):
    x = _kind(op.value, jnp.floating, "sinks or slopes")
    _require(x.shape == (layout.heads,), "sinks or slopes", x.shape, f"[H] = ({layout.heads},)")
    return PerHead(x.astype(jnp.float32))


def _per_sequence(op, layout):
    x, n = _kind(op.value, jnp.integer, "ranges"), layout.sequences
    fits = x.ndim == 3 and x.shape[0] == n and x.shape[2] == 2
    _require(fits, "ranges", x.shape, f"[N, R, 2] with N = {n}")
    return PerSequence(x.astype(jnp.int32))


def _per_query(op, layout):
    x = _kind(op.value, jnp.integer, "q_ids")
    want = (layout.queries,) if layout.batch is None else (layout.batch, layout.queries)
    _require(x.shape == want, "q_ids", x.shape, f"{want}")
    return PerQuery(x.astype(jnp.int32).reshape(-1))


def _per_key(op, layout):
    x = _kind(op.value, jnp.integer, "k_ids")
    if layout.batch is not None:
        want = (layout.batch, layout.keys)
    elif layout.table_keys is not None:
        want = (layout.sequences, layout.table_keys)
    else:
        want = (layout.keys,)
    _require(x.shape == want, "k_ids", x.shape, f"{want}")
    x = x.astype(jnp.int32).reshape(-1)
    return PerKey(x if x.size else jnp.zeros((1,), jnp.int32))  # of no keys, but something to read


def _per_pair(op, layout):
    x = _kind(op.value, jnp.bool_ if op.boolean else jnp.floating, op.name)
    x = x.astype(jnp.int8) if op.boolean else x  # not every target loads booleans
    x = _packed_pair(x, layout, op) if layout.batch is None else _dense_pair(x, layout, op)
    some = x.value if x.value.shape[2] else jnp.pad(x.value, ((0, 0), (0, 0), (0, 1)))
    return dataclasses.replace(x, value=some)


def _dense_pair(x, layout, op):
    b, t, s, h = layout.batch, layout.queries, layout.keys, layout.heads
    shape = x.shape
    x = x.reshape((1,) * (4 - x.ndim) + shape) if x.ndim <= 4 else x
    rule = f"broadcastable to [B, H, T, S] = ({b}, {h}, {t}, {s})"
    fits = x.ndim == 4 and all(n in (1, m) for n, m in zip(x.shape, (b, h, t, s), strict=True))
    _require(fits, op.name, shape, rule)
    if x.shape[3] != s:
        x = jnp.broadcast_to(x, (*x.shape[:3], s))
    per_batch, per_row = x.shape[0] == b and b > 1, x.shape[2] == t and t > 1
    rows = {(True, True): "global", (True, False): "sequence", (False, True): "local"}.get(
        (per_batch, per_row), "one"
    )
    count = x.shape[0] * x.shape[2]
    return PerPair(jnp.moveaxis(x, 1, 0).reshape(x.shape[1], count, s), rows, op.boolean)


def _packed_pair(x, layout, op):
    shape, t, h = x.shape, layout.queries, layout.heads
    x = x.reshape((1,) * (3 - x.ndim) + shape) if x.ndim <= 3 else x
    fits = x.ndim == 3 and x.shape[0] in (1, h) and x.shape[1] in (1, t)
    longest = layout.table_keys if layout.keys is None else layout.keys
    fits = fits and (x.shape[2] > 1 or longest <= 1)  # one column is more likely meant for all keys
    rule = f"broadcastable to [H, T, S] with H = {h}, T = {t} and a column for every key position"
    _require(fits, op.name, shape, rule)
    return PerPair(x, "global" if x.shape[1] == t and t > 1 else "one", op.boolean)


_BIND = {
    PerHead: _per_head,
    PerSequence: _per_sequence,
    PerQuery: _per_query,
    PerKey: _per_key,
    PerPair: _per_pair,
}
