"""The second launch of a split: one result from the results over parts of the keys."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxattn import tile
from jaxattn.integers import arange, div, rem
from jaxattn.triton_compiler import compiler_params
from jaxattn.triton_sources import load, store, whole
from jaxattn.tuning_shape import columns, pow2

__all__ = ["merge"]

# Parts that are in flight at once, a power of two.
LEAST_TOGETHER, MOST_TOGETHER = 16, 32


def merge(table, parts, into, *, rows: int, group: int, most: int, interpret: bool, compiler: str):
    """Writes the merged rows into ``into = (out [T, H, Dv], lse f32[T, H])``.

    Args:
      table: ``i32[M, 4]``, a block of rows each: its packed row, its queries, the slot of its
        first part, its parts.
      parts: ``out f32[slots, K, R, Dv]`` and ``lse f32[slots, K, R]``.
      rows: rows of a block, ``group`` a query. most: the most parts a block may have.
    """
    out, lse = into
    kv_heads = parts[0].shape[1]
    operands = (table, *parts, out, lse)
    # An even split of the blocks makes about this many parts of each; one long sequence among
    # short ones has many more, and the rest wait for it.
    typical = -(-most // table.shape[0])
    together = min(max(pow2(typical), LEAST_TOGETHER), MOST_TOGETHER)
    call = pl.pallas_call(
        functools.partial(_kernel, rows=rows, group=group, together=together),
        grid=(table.shape[0] * kv_heads * rows,),
        in_specs=[whole(x) for x in operands],
        out_specs=[whole(out), whole(lse)],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in into],
        input_output_aliases={3: 0, 4: 1},
        compiler_params=compiler_params(compiler, num_warps=max(1, together // 8), num_stages=1),
        interpret=interpret,
        name="jaxattn_merge",
    )
    return tuple(call(*operands))


def _kernel(table, part_out, part_lse, _, __, out_ref, lse_ref, *, rows, group, together):
    program = pl.program_id(0)
    row, program = rem(program, rows), div(program, rows)
    head, block = rem(program, part_out.shape[1]), div(program, part_out.shape[1])
    packed, count, slot, parts = (table[block, i] for i in range(4))
    query = div(row, group)

    def some(i, state):
        part = i * together + arange(together)
        ok = part < parts
        place = (slot + part, head, row)
        lse = plt.load(part_lse.at[place], mask=ok, other=-jnp.inf)
        return tile.gather(state, load(part_out, place, ok), lse)

    @pl.when((parts > 0) & (query < count))
    def _():
        state = tile.init(None, columns(out_ref.shape[-1]))
        turns = div(parts + (together - 1), together)
        out, lse = tile.finish(lax.fori_loop(0, turns, some, state))
        place = (packed + query, head * group + rem(row, group))
        store(out_ref, place, jax.tree.map(lambda x: x[None], out), True)
        plt.store(lse_ref.at[place], lse)
