"""What the TPU launch gathers ahead of its kernel: each work item's queries, and the operands of
its masks and scores, as blocks that Pallas' pipeline brings in one by one. Plain jnp."""

import dataclasses

import jax.numpy as jnp
from jax.experimental import pallas as pl

from jaxattn.integers import arange, rem
from jaxattn.operands import PerKey, PerQuery
from jaxattn.problem import Packed, Problem, Tiles

LANES = 128
ALIGN = 16  # sublanes of the largest tile we copy from: rows of packed keys start at a multiple


@dataclasses.dataclass(frozen=True)
class LaunchShape:
    """The static sizes of one launch."""

    items: int
    kv_heads: int
    group: int
    block_q: int
    rows: int  # block_q * group, padded
    dv: int
    block_k: int
    columns: int  # key positions that whole tiles of the longest sequence cover
    page_size: int  # 0 for packed keys

    @classmethod
    def of(cls, problem: Problem, tiles: Tiles):
        keys, group = problem.keys, problem.group
        shift = ALIGN if isinstance(keys, Packed) else 0
        return cls(
            items=problem.num_items(tiles.block_q),
            kv_heads=keys.num_kv_heads,
            group=group,
            block_q=tiles.block_q,
            rows=round_up(tiles.block_q * group, ALIGN),
            dv=keys.v.shape[-1],
            block_k=tiles.block_k,
            columns=round_up(problem.max_keys + shift, tiles.block_k),
            page_size=0 if isinstance(keys, Packed) else keys.cache.page_size,
        )


def item_rows(plan, cu, block_q):
    """``i32[I, block_q]``: the packed row of each query of each item; T where there is none."""
    offset = arange(block_q)
    packed = (cu[plan.seq] + plan.start)[:, None] + offset
    return jnp.where(offset < plan.count[:, None], packed, cu[-1])


def fold(problem, rows_of, shape):
    """Queries as ``[K, I, rows, D]``."""
    num_tokens, _, d = problem.q.shape
    q = problem.q.reshape(num_tokens, shape.kv_heads, shape.group, d)
    q = q.at[rows_of].get(mode="fill", fill_value=0)  # [I, block_q, K, G, D]
    q = jnp.moveaxis(q, 2, 0).reshape(shape.kv_heads, shape.items, -1, d)
    return jnp.pad(q, ((0, 0), (0, 0), (0, shape.rows - q.shape[2]), (0, 0)))


def unfold(problem, x, rows_of, shape):
    """``[K, I, rows, n]`` back to ``[T, H, n]``."""
    num_tokens = problem.q.shape[0]
    x = x[:, :, : shape.block_q * shape.group]
    x = x.reshape(shape.kv_heads, shape.items * shape.block_q, shape.group, -1)
    place = arange(rows_of.size)
    found = jnp.zeros((num_tokens,), jnp.int32).at[rows_of.reshape(-1)].set(place, mode="drop")
    return jnp.moveaxis(x[:, found], 0, 1).reshape(num_tokens, shape.kv_heads * shape.group, -1)


def tile_operand(problem, op, plan, rows_of, shape):
    """An operand gathered into blocks, and how the pipeline picks an item's block."""
    if isinstance(op, PerQuery):
        value = op.value.at[rows_of].get(mode="clip")
        value = _spread(value[:, :, None], shape)
        return value, pl.BlockSpec((None, shape.rows, 1), lambda h, i, *_: (i, 0, 0))
    column = arange(shape.columns)
    if isinstance(op, PerKey):
        shifts = _shifts(problem)
        place = (problem.key_base - shifts)[:, None] + column
        value = op.value.at[jnp.maximum(place, 0)].get(mode="clip")[:, None]
        last = problem.num_seqs - 1
        return value, pl.BlockSpec(
            (None, 1, shape.columns), lambda h, i, seqs, *_: (jnp.minimum(seqs[i], last), 0, 0)
        )
    value = _pair_rows(problem, op, plan, rows_of, shape, column)
    per_head = value.shape[0] > 1
    return value, pl.BlockSpec(
        (None, None, shape.rows, shape.columns),
        lambda h, i, *_: (h if per_head else 0, i, 0, 0),
    )


def _pair_rows(problem, op, plan, rows_of, shape, column):
    """A PerPair operand as ``[K or 1, I, rows, columns]`` in f32, with columns where tiles have
    their keys."""
    x = op.value
    seq = jnp.minimum(plan.seq, problem.num_seqs - 1)
    row = {
        "global": lambda: jnp.minimum(rows_of, x.shape[1] - 1),
        "local": lambda: (
            plan.start[:, None]
            + jnp.minimum(arange(shape.block_q), jnp.maximum(plan.count[:, None] - 1, 0))
        ),
        "sequence": lambda: jnp.broadcast_to(seq[:, None], rows_of.shape),
        "one": lambda: jnp.zeros_like(rows_of),
    }[op.rows]()
    key = column - _shifts(problem)[seq][:, None]  # [I, columns]
    inside = (key >= 0) & (key < x.shape[2])
    found = x[:, row[:, :, None], jnp.clip(key, 0, x.shape[2] - 1)[:, None, :]]
    found = jnp.where(inside[:, None], found, jnp.zeros_like(found)).astype(jnp.float32)
    if x.shape[0] == 1:
        return _spread(found[0], shape)[None]
    found = found.reshape(shape.kv_heads, shape.group, *found.shape[1:])
    found = jnp.moveaxis(found, 1, 3).reshape(shape.kv_heads, shape.items, -1, shape.columns)
    return jnp.pad(found, ((0, 0), (0, 0), (0, shape.rows - found.shape[2]), (0, 0)))


def _spread(x, shape):
    """``[I, block_q, n]`` to ``[I, rows, n]``: each query's entry for every head of its group."""
    x = jnp.repeat(x, shape.group, axis=1)
    return jnp.pad(x, ((0, 0), (0, shape.rows - x.shape[1]), (0, 0)))


def _shifts(problem):
    """``i32[N]``: where key 0 of each sequence stands in its tile 0."""
    if isinstance(problem.keys, Packed):
        return rem(problem.keys.starts, ALIGN)
    return jnp.zeros((problem.num_seqs,), jnp.int32)


def block_spec(rows, n):
    return pl.BlockSpec((None, None, rows, n), lambda h, i, *_: (h, i, 0, 0))


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``n``."""
    return -(-n // multiple) * multiple
