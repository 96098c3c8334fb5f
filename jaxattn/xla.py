"""The CPU, and anything else XLA compiles for: the shared body over array sources.

A loop over groups of work items, vectorised over the items of a group and over kv heads. Memory is
linear in the lengths. Only items in use are computed, only tiles in their spans are gathered.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxattn.integers import arange, choose, div, rem
from jaxattn.kernel import Env, Rows, attend
from jaxattn.problem import Packed, Problem, Tiles

__all__ = ["default_tiles", "run"]

GROUP_ROWS = 64  # rows (times heads) worth computing together on a CPU


def default_tiles(problem: Problem) -> Tiles:
    """One query an item when the rows are few for the sequences (decode), else 32."""
    block_q = 1 if problem.q.shape[0] <= max(problem.num_seqs, 1) else 32
    longest = max(problem.max_keys, 1)
    return Tiles(block_q, min(128, 1 << (longest - 1).bit_length()))


def run(problem: Problem, tiles: Tiles | None = None):
    """``out [T, H, Dv]`` in q's dtype and ``lse f32[T, H]`` (natural log)."""
    forced, tiles = tiles is not None, tiles or default_tiles(problem)
    num_tokens, heads, _ = problem.q.shape
    dv = problem.keys.v.shape[-1]
    plan, kv_lens = problem.items(tiles.block_q)
    bound = plan.seq.shape[0]
    together = max(1, min(8, GROUP_ROWS // tiles.block_q))
    if not forced:  # given tiles promise the same bits whatever the number of items
        together = min(together, max(bound, 1))
    plan = _pad(plan, -(-bound // together) * together)

    def group_of_items(g, carry):
        out, lse = carry
        pick = lambda x: lax.dynamic_slice_in_dim(x, g * together, together)  # noqa: E731
        seq, start, count = pick(plan.seq), pick(plan.start), pick(plan.count)
        one = lambda s, a, n: _item(problem, tiles, kv_lens, s, a, n)  # noqa: E731
        rows, o, m = jax.vmap(one)(seq, start, count)
        return out.at[rows].set(o, mode="drop"), lse.at[rows].set(m, mode="drop")

    carry = (
        jnp.zeros((num_tokens, heads, dv), problem.q.dtype),
        jnp.full((num_tokens, heads), -jnp.inf, jnp.float32),
    )
    used = div(plan.items + (together - 1), together)
    return lax.fori_loop(np.int32(0), used, group_of_items, carry)


def _pad(plan, items):
    extra = items - plan.seq.shape[0]
    pad = lambda x: jnp.pad(x, (0, extra)) if x.ndim else x  # noqa: E731
    return jax.tree.map(pad, plan)


def _item(problem, tiles, kv_lens, seq, start, count):
    """One item: its packed rows ``[block_q]`` (T where there is none), out and lse for them."""
    block_q, group, kv_heads = tiles.block_q, problem.group, problem.keys.num_kv_heads
    num_tokens, _, d = problem.q.shape
    cu = jnp.append(problem.cu_q_lens, num_tokens).astype(jnp.int32)
    offset = arange(block_q)
    packed = cu[seq] + start + offset
    real = offset < count
    q = problem.q[jnp.where(real, packed, 0)]
    q = q.reshape(block_q, kv_heads, group, d).swapaxes(0, 1).reshape(kv_heads, -1, d)

    def head(h, q):
        rows = Rows(
            block_q=block_q,
            rows=block_q * group,
            group=group,
            kv_head=h,
            seq=jnp.minimum(seq, max(problem.num_seqs - 1, 0)),
            start=start,
            count=count,
            packed_start=cu[seq],
            q_len=cu[seq + 1] - cu[seq],
            kv_len=choose(count > 0, kv_lens[seq], 0),  # an unused item reads nothing
        )
        source = ArrayTiles(problem.keys, rows.seq, h, tiles.block_k)
        env_at = lambda *where: ArrayEnv(problem, rows, *where)  # noqa: E731
        dv = problem.keys.v.shape[-1]
        return attend(
            q, source, env_at, rows, problem.mask, problem.scores, problem.sinks, problem.scale, dv
        )

    o, lse = jax.vmap(head)(arange(kv_heads), q)
    unfold = lambda x: (  # noqa: E731
        x.reshape(kv_heads, block_q, group, -1)
        .swapaxes(0, 1)
        .reshape(block_q, kv_heads * group, -1)
    )
    return (
        jnp.where(real, packed, num_tokens),
        unfold(o).astype(problem.q.dtype),
        unfold(lse)[..., 0],
    )


@dataclasses.dataclass
class ArrayTiles:
    """Tiles gathered from arrays; what a tile reads past the end of its keys is any valid key."""

    keys: object
    seq: jax.Array
    head: jax.Array
    width: int
    shift = 0
    ragged = False
    clean = False
    flat = False
    tail = None

    def begin(self, first, last, span):
        pass

    def ahead(self, j):
        return None

    def take(self, j, last, bounds, at):
        if isinstance(self.keys, Packed):
            rows = self.keys.starts[self.seq] + j * self.width + arange(self.width)
            rows = jnp.clip(rows, 0, max(self.keys.k.shape[0] - 1, 0))
            return self.keys.k[rows, self.head], self.keys.v[rows, self.head]
        return self._pages(self.keys.k, j, bounds), self._pages(self.keys.v, j, bounds)

    def _pages(self, x, j, bounds):
        page_size = x.shape[2]
        if page_size >= self.width:
            page = self._page(div(j * self.width, page_size), j, bounds)
            offset = rem(j * self.width, page_size)
            tile = lax.dynamic_slice(
                x, (page, self.head, offset, np.int32(0)), (1, 1, self.width, x.shape[3])
            )
            return tile[0, 0]
        n = self.width // page_size
        pages = self._page(j * n + arange(n), j, bounds)
        return x[pages, self.head].reshape(self.width, x.shape[3])

    def _page(self, index, j, bounds):
        """Pages of the table at ``index``; page 0 for those that hold no key of the span."""
        table, page_size = self.keys.tables, self.keys.k.shape[2]
        page = table[self.seq, jnp.clip(index, 0, max(table.shape[1] - 1, 0))]
        if bounds is not None:
            lo, hi = bounds
            page = jnp.where((index * page_size < hi) & ((index + 1) * page_size > lo), page, 0)
        return page


class ArrayEnv(Env):
    """Masks and scores read their operands by gathers."""

    def __init__(self, problem: Problem, rows, *where):
        super().__init__(rows, *where)
        self.problem = problem

    def at_query(self, operand):
        return operand.value[self.rows.packed()]

    def at_key(self, operand):
        where = self.problem.key_base[self.rows.seq] + self.k_idx
        return operand.value[jnp.clip(where, 0, max(operand.value.shape[0] - 1, 0))]

    def at_pair(self, operand):
        x, rows = operand.value, self.rows
        head = rows.head() if x.shape[0] > 1 else jnp.zeros((1, 1), jnp.int32)
        row = {
            "global": rows.packed,
            "local": lambda: rows.start + rows.query(),
            "sequence": lambda: jnp.full((1, 1), rows.seq),
            "one": lambda: jnp.zeros((1, 1), jnp.int32),
        }[operand.rows]()
        found = x[head, row, jnp.minimum(self.k_idx, x.shape[2] - 1)]
        return jnp.where(self.k_idx < x.shape[2], found, jnp.zeros_like(found))
