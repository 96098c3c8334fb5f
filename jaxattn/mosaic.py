"""TPU: the shared body over double-buffered copies from HBM, compiled by Mosaic.

The only file that knows Pallas' TPU backend. Queries are gathered ahead into one block a work item,
so that Pallas' own pipeline brings them in and takes results out; keys stay in HBM, and the sources
here copy tile j + 1 while tile j computes. Scalars (lengths, tables, slopes) live in SMEM.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxattn import mosaic_dense
from jaxattn.integers import arange, div, rem
from jaxattn.kernel import Env, Rows, attend
from jaxattn.mosaic_blocks import (
    ALIGN,
    LANES,
    LaunchShape,
    block_spec,
    fold,
    item_rows,
    round_up,
    tile_operand,
    unfold,
)
from jaxattn.operands import PerHead, PerKey, PerPair, PerQuery, PerSequence, is_operand
from jaxattn.problem import Packed, Problem, Tiles

__all__ = ["default_tiles", "reason_not", "run"]

SMEM_BYTES = 1 << 20  # of every generation
SMEM_SPARE = 1 << 17  # left to the compiler
UNROLL = 16  # page copies written out in code; more of them loop
PAIR_BYTES = 12 << 20  # VMEM we give to rows of biases and dense masks


def reason_not(problem: Problem, tiles: Tiles | None) -> str | None:
    """Why this target cannot do the problem, or None."""
    if problem.q.dtype == jnp.float16:
        return "q is float16: TPUs have no float16; use bfloat16 or float32"
    if mosaic_dense.fits(problem, tiles):
        return None
    tiles = tiles or default_tiles(problem)
    problem = jax.eval_shape(_copyable, problem)
    scalars = _scalar_bytes(problem, tiles)
    if scalars > SMEM_BYTES - SMEM_SPARE:
        return (
            f"block tables and other scalars take {scalars} bytes: "
            f"scalar memory holds {SMEM_BYTES - SMEM_SPARE}; use larger pages or fewer sequences"
        )
    shape = LaunchShape.of(problem, tiles)
    pairs = [x for x in _operands(problem) if isinstance(x, PerPair)]
    if pairs and shape.columns % min(shape.columns, LANES):
        return f"tiles.block_k={tiles.block_k}: a bias or dense mask needs a multiple of {LANES}"
    if len(pairs) * 2 * shape.rows * shape.columns * 4 > PAIR_BYTES:
        return (
            f"a bias or dense mask of {shape.columns} columns: "
            f"one block of {shape.rows} rows does not fit {PAIR_BYTES} bytes of vector memory"
        )
    return None


def default_tiles(problem: Problem) -> Tiles:
    """Rows for the matrix unit, keys for long copies; one query an item when most decode."""
    mean = -(-problem.q.shape[0] // max(problem.num_seqs, 1))
    rows, block_k = (128, 256) if problem.q.dtype == jnp.float32 else (256, 512)
    block_q = max(1, min(rows, round_up(mean * problem.group, 8)) // problem.group)
    longest = 1 << max(problem.max_keys - 1, 0).bit_length()
    return Tiles(block_q, min(block_k, max(LANES, longest)))


def run(problem: Problem, tiles: Tiles | None, interpreter=None):
    """``out [T, H, Dv]`` in q's dtype and ``lse f32[T, H]`` (natural log)."""
    if mosaic_dense.fits(problem, tiles):
        return mosaic_dense.run(problem, tiles, _interpreter(interpreter))
    tiles = tiles or default_tiles(problem)
    problem = _copyable(problem)
    shape = LaunchShape.of(problem, tiles)
    plan, kv_lens = problem.items(tiles.block_q)
    cu = jnp.append(problem.cu_q_lens, problem.q.shape[0]).astype(jnp.int32)
    rows_of = item_rows(plan, cu, tiles.block_q)
    tree = jax.tree.structure((problem.mask, problem.scores, problem.sinks), is_leaf=is_operand)
    operands = _operands(problem)
    keys, where = _keys(problem, tiles)
    scalars = [plan.seq, plan.start, plan.count, cu, kv_lens, where.reshape(-1)]
    scalars += [x.value.reshape(-1) for x in operands if isinstance(x, PerHead | PerSequence)]
    tensors, specs = [fold(problem, rows_of, shape)], [block_spec(shape.rows, problem.q.shape[-1])]
    for x in operands:
        if isinstance(x, PerQuery | PerKey | PerPair):
            tensor, spec = tile_operand(problem, x, plan, rows_of, shape)
            tensors.append(tensor), specs.append(spec)
    kernel = functools.partial(
        _kernel,
        tree=tree,
        kinds=tuple(_described(x) for x in operands),
        shape=shape,
        scale=problem.scale,
        num_scalars=len(scalars),
        table_width=0 if isinstance(problem.keys, Packed) else problem.keys.tables.shape[1],
    )
    results = [
        jax.ShapeDtypeStruct((shape.kv_heads, shape.items, shape.rows, n), dtype)
        for n, dtype in ((shape.dv, problem.q.dtype), (1, jnp.float32))
    ]
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(scalars),
        grid=(shape.kv_heads, shape.items),
        in_specs=[*specs, *[pl.BlockSpec(memory_space=pl.ANY)] * 2],
        out_specs=[block_spec(shape.rows, shape.dv), block_spec(shape.rows, 1)],
        scratch_shapes=[
            *(pltpu.VMEM((2, tiles.block_k, x.shape[-1]), x.dtype) for x in keys),
            pltpu.SemaphoreType.DMA((2, 2)),
        ],
    )
    out, lse = pl.pallas_call(
        kernel,
        grid_spec=grid_spec,
        out_shape=results,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=_interpreter(interpreter),
        name="jaxattn_forward",
    )(*scalars, *tensors, *keys)
    return unfold(problem, out, rows_of, shape), unfold(problem, lse, rows_of, shape)[..., 0]


def _kernel(*refs, tree, kinds, shape, scale, num_scalars, table_width):
    scalars, tensors = list(refs[:num_scalars]), list(refs[num_scalars:])
    seqs, starts, counts, cu, kv_lens, where, *scalar_operands = scalars
    q_ref, *tensors = tensors
    k_hbm, v_hbm, out_ref, lse_ref, k_buf, v_buf, sems = tensors[-7:]
    mask, scores, sinks = _rebuild(tree, kinds, scalar_operands, tensors[:-7])
    head, item = pl.program_id(0), pl.program_id(1)
    count = counts[item]

    @pl.when(count > 0)
    def _():
        seq = seqs[item]
        rows = Rows(
            block_q=shape.block_q,
            rows=shape.rows,
            group=shape.group,
            kv_head=head,
            seq=jnp.minimum(seq, kv_lens.shape[0] - 2),
            start=starts[item],
            count=count,
            packed_start=cu[seq],
            q_len=cu[seq + 1] - cu[seq],
            kv_len=kv_lens[seq],
        )
        copies = Copies(k_hbm, v_hbm, k_buf, v_buf, sems, head)
        if shape.page_size:
            first = rows.seq * table_width
            source = CopiedPages(copies, shape, lambda i: where[first + i], mask.holes)
        else:
            source = CopiedSlices(copies, shape, where[rows.seq], mask.holes)
        env_at = functools.partial(BlockEnv, rows)
        out, lse = attend(q_ref[...], source, env_at, rows, mask, scores, sinks, scale, shape.dv)
        out_ref[...] = out.astype(out_ref.dtype)
        lse_ref[...] = lse


class Copies:
    """The buffers of one launch and the copies that fill them."""

    def __init__(self, k_hbm, v_hbm, k_buf, v_buf, sems, head):
        self.pairs = ((k_hbm, k_buf, 0), (v_hbm, v_buf, 1))
        self.k_buf, self.v_buf, self.sems, self.head = k_buf, v_buf, sems, head

    def of(self, slot, source_of, rows):
        """The two copies of ``rows`` (a slice of a buffer) from ``source_of(hbm)``."""
        for hbm, buf, kind in self.pairs:
            target = buf.at[slot, rows] if rows is not None else buf.at[slot]
            yield pltpu.make_async_copy(source_of(hbm), target, self.sems.at[kind, slot])


class _Copied:
    """Tiles in two slots: tile j + 1 is on its way while tile j computes.

    Where a mask has holes nobody knows yet whether tile j + 1 will be wanted: then each tile is
    copied when it is taken.
    """

    clean = False
    flat = False
    tail = None

    def __init__(self, copies, shape, holes):
        self.copies, self.shape, self.width, self.holes = copies, shape, shape.block_k, holes

    def begin(self, first, last, span):
        self.span = span
        if not self.holes:
            pl.when(first < last)(lambda: self._each(first, lambda copy: copy.start()))

    def ahead(self, j):
        return None

    def take(self, j, last, bounds, at):
        if self.holes:
            self._each(j, lambda copy: copy.start())
        else:
            pl.when(j + 1 < last)(lambda: self._each(j + 1, lambda copy: copy.start()))
        self._each(j, lambda copy: copy.wait())
        slot = rem(j, 2)
        return self.copies.k_buf[slot], self.copies.v_buf[slot]


class CopiedSlices(_Copied):
    """Packed keys ``[K, S, D]``: one copy a tile, from an aligned row at or before key 0."""

    ragged = True

    def __init__(self, copies, shape, start, holes):
        super().__init__(copies, shape, holes)
        self.shift = rem(start, ALIGN)
        self.aligned = start - self.shift

    def _each(self, j, do):
        row = pl.multiple_of(self.aligned + j * self.width, ALIGN)
        head = self.copies.head
        source = lambda hbm: hbm.at[head, pl.ds(row, self.width)]  # noqa: E731
        for copy in self.copies.of(rem(j, 2), source, None):
            do(copy)


class CopiedPages(_Copied):
    """A paged cache ``[P, K, page_size, D]``: one copy a page, or a slice of a page a tile.

    Pages without a key of the span are not copied: their table entries may be anything.
    """

    shift = 0
    ragged = False

    def __init__(self, copies, shape, page_at, holes):
        super().__init__(copies, shape, holes)
        self.page_at = page_at

    def _each(self, j, do):
        page_size, width, head = self.shape.page_size, self.width, self.copies.head
        slot = rem(j, 2)
        if page_size >= width:
            page = self.page_at(div(j * width, page_size))
            offset = pl.multiple_of(rem(j * width, page_size), width)
            source = lambda hbm: hbm.at[page, head, pl.ds(offset, width)]  # noqa: E731
            for copy in self.copies.of(slot, source, None):
                do(copy)
            return
        pages = width // page_size
        some = min(pages, UNROLL)

        def group(g, _):
            for i in range(some):
                index = j * pages + g * some + i
                key = index * page_size
                # The group's first row is a multiple of whole tiles, the rest is static.
                row = pl.multiple_of(g * some * page_size, some * page_size) + i * page_size

                @pl.when((key < self.span.hi) & (key + page_size > self.span.lo))
                def _(index=index, row=row):
                    page = self.page_at(index)
                    rows = pl.ds(row, page_size)
                    for copy in self.copies.of(slot, lambda hbm: hbm.at[page, head], rows):
                        do(copy)

        if pages == some:
            group(0, None)
        else:
            lax.fori_loop(np.int32(0), np.int32(pages // some), group, None)


class BlockEnv(Env):
    """Masks and scores read scalars from SMEM and tiles from blocks that the pipeline brought."""

    def scalar(self, operand, *index):
        flat, sizes = self.rows.seq, operand.value.shape[1:]
        for i, n in zip(index, sizes, strict=True):
            flat = flat * n + i
        return operand.value.ref[flat]

    def at_query(self, operand):
        return operand.value[...]

    def at_key(self, operand):
        return self._columns(operand.value)

    def at_pair(self, operand):
        return self._columns(operand.value)

    def _columns(self, ref):
        if ref.shape[-1] == self.width:
            return ref[...]
        return ref[:, pl.ds(pl.multiple_of(self.tile_index * self.width, self.width), self.width)]


@dataclasses.dataclass(frozen=True)
class _Flat:
    """A PerSequence operand in SMEM: a flat ref, and the shape it stands for."""

    ref: object
    shape: tuple


def _operands(problem):
    tree = (problem.mask, problem.scores, problem.sinks)
    return jax.tree.leaves(tree, is_leaf=is_operand)


def _described(x):
    return type(x), x.value.shape, getattr(x, "rows", None)


def _rebuild(tree, kinds, scalars, tensors):
    """The mask, scores and sinks with refs in the place of arrays."""
    leaves = []
    for kind, shape, rows in kinds:
        if kind is PerSequence:
            leaves.append(PerSequence(_Flat(scalars.pop(0), shape)))
        elif kind is PerHead:
            leaves.append(PerHead(scalars.pop(0)))
        elif kind is PerPair:
            leaves.append(PerPair(tensors.pop(0), rows))
        else:
            leaves.append(kind(tensors.pop(0)))
    return jax.tree.unflatten(tree, leaves)


def _copyable(problem):
    """The same problem; pages of less than a 32-bit row, which no copy moves, gathered by XLA."""
    keys = problem.keys
    if isinstance(keys, Packed) or keys.cache.page_size * keys.k.dtype.itemsize >= 4:
        return problem
    tables = jnp.clip(keys.tables, 0, keys.cache.num_pages - 1)
    k, v = keys.cache.gather(tables.reshape(-1))
    starts = arange(problem.num_seqs) * tables.shape[1] * keys.cache.page_size
    return dataclasses.replace(problem, keys=Packed(k, v, starts))


def _scalar_bytes(problem, tiles):
    shape = LaunchShape.of(problem, tiles)
    where = problem.keys.starts if isinstance(problem.keys, Packed) else problem.keys.tables
    small = [x.value.size for x in _operands(problem) if isinstance(x, PerHead | PerSequence)]
    return 4 * (3 * shape.items + 2 * problem.num_seqs + 3 + where.size + sum(small))


def _keys(problem, tiles):
    """Keys and values in HBM as the sources read them, and where sequences find theirs."""
    if not isinstance(problem.keys, Packed):
        return (problem.keys.k, problem.keys.v), problem.keys.tables
    pad = round_up(problem.keys.k.shape[0], ALIGN) - problem.keys.k.shape[0] + tiles.block_k

    def by_head(x):
        return jnp.pad(x.swapaxes(0, 1), ((0, 0), (0, pad), (0, 0)))

    return (by_head(problem.keys.k), by_head(problem.keys.v)), problem.keys.starts


def _interpreter(interpreter):
    if interpreter is None:
        return False
    return pltpu.InterpretParams(
        dma_execution_mode=interpreter.dma, detect_races=interpreter.detect_races
    )
