"""NVIDIA and AMD GPUs: the shared body over gathered loads, compiled by Triton.

Only the files of this target know Pallas' Triton backend. It has no scratch memory and no scalar
prefetch, takes arrays whose sizes are powers of two, and hides latency by itself: a source is a
load. A call is one launch, or two that share the output: sequences of few queries (decode, where
key ranges are split so that every core has work) and of many (prefill). See docs/architecture.md.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxattn import triton_items, tuning
from jaxattn.integers import div, rem
from jaxattn.kernel import attend
from jaxattn.masks import Full
from jaxattn.parts import part_bound
from jaxattn.problem import Packed, Problem, Tiles
from jaxattn.triton_compiler import compiler_params, usable
from jaxattn.triton_merge import merge
from jaxattn.triton_sources import (
    LoadEnv,
    LoadPages,
    LoadSlices,
    load,
    store,
    whole,
)
from jaxattn.tuning_shape import MIN_SIDE, MOST_FEW, columns, side

__all__ = ["default_tiles", "reason_not", "run"]


def reason_not(problem: Problem, tiles: Tiles | None) -> str | None:
    """Why this target cannot do the problem, or None."""
    del problem
    if tiles is not None and tiles.block_k < MIN_SIDE:
        return f"tiles.block_k={tiles.block_k}: Triton needs at least {MIN_SIDE}"
    return None


@dataclasses.dataclass(frozen=True)
class Kind:
    """Sequences of ``least`` to ``most`` queries, and the tiles of their items."""

    tiles: Tiles
    least: int = 0
    most: int | None = None

    def items(self, problem: Problem) -> int:
        return problem.num_items(self.tiles.block_q, self.least, self.most)

    def wanted(self, problem: Problem) -> int:
        """How many parts of items are wanted, a kv head; 0 where nothing is cut."""
        wanted = -(-(self.tiles.programs or 0) // problem.keys.num_kv_heads)
        # Lengths that are not known may be very unlike: one long sequence must not run alone.
        return wanted if problem.uniform is None or self.items(problem) < 2 * wanted else 0


@dataclasses.dataclass(frozen=True)
class Block:
    """What the kernel knows of a kind: the sizes of its tiles, and whether its keys are cut."""

    block_q: int
    block_k: int
    group: int
    cut: bool

    @property
    def rows(self) -> int:
        return side(self.block_q * self.group)


def run(problem: Problem, tiles: Tiles | None, interpreter=None, compiler=None):
    """``out [T, H, Dv]`` in q's dtype and ``lse f32[T, H]`` (natural log)."""
    kinds = [kind for kind in _kinds(problem, tiles) if kind.items(problem)]
    compiler = _compiler(compiler, kinds[0].tiles)
    return _launch(problem, kinds, interpreter is not None, compiler)


def _kinds(problem: Problem, tiles: Tiles | None) -> tuple[Kind, ...]:
    """The kinds of sequences of a call: two if there may be some of many queries and some of few.

    They share a launch, so that loads of the few run beside products of the many.
    """
    if tiles is not None:
        return (Kind(tiles),)
    tokens, seqs = problem.q.shape[0], problem.num_seqs
    queries = problem.uniform or -(-tokens // seqs)
    if problem.uniform is not None or seqs == 1 or queries == 1:
        return (Kind(default_tiles(problem, queries <= MOST_FEW, queries)),)
    many, few = tuning.pair(
        tuning.Shape.of(problem, False, max(queries, MOST_FEW + 1)),
        tuning.Shape.of(problem, True, queries if queries <= MOST_FEW else 1),
        tuning.chip(),
    )
    # Rows that a tile is padded to anyway may as well be of a sequence's next queries.
    few = dataclasses.replace(few, block_q=max(few.block_q, MIN_SIDE // problem.group))
    return Kind(many, least=MOST_FEW + 1), Kind(few, most=MOST_FEW)


def default_tiles(problem: Problem, few: bool, queries: int) -> Tiles:
    """The tiles of a launch for sequences of about ``queries`` queries, few or many."""
    chosen = tuning.tiles(tuning.Shape.of(problem, few, queries), tuning.chip())
    if not _has_official():
        chosen = dataclasses.replace(chosen, compiler="xla")
    return chosen


def _compiler(asked: str | None, tiles: Tiles) -> str:
    """The call's, the tiles', or the official one where it is installed."""
    return asked or tiles.compiler or ("triton" if _has_official() else "xla")


def _has_official() -> bool:
    # A program for a CPU is traced for GPUs too, and should not load a compiler for them.
    return tuning.chip() is not None and usable()


def _launch(problem: Problem, kinds, interpret: bool, compiler: str):
    """The results of one launch of the kernel, and of a merge for each kind whose keys are cut."""
    keys, tiles, group = problem.keys, kinds[0].tiles, problem.group
    num_tokens, heads, _ = problem.q.shape
    kv_heads, dv = keys.num_kv_heads, keys.v.shape[-1]
    shapes = [
        jax.ShapeDtypeStruct((num_tokens, heads, dv), problem.q.dtype),
        jax.ShapeDtypeStruct((num_tokens, heads), jnp.float32),
    ]
    tables, merges, blocks = [], [], []
    for kind in kinds:
        wanted = kind.wanted(problem)
        which = {"block_q": kind.tiles.block_q, "least": kind.least, "most": kind.most}
        table, merged = triton_items.table(problem, kind.tiles.block_k, wanted, **which)
        block = Block(kind.tiles.block_q, kind.tiles.block_k, group, cut=wanted > 0)
        tables.append(table)
        blocks.append(block)
        if wanted:
            merges.append((merged, {"rows": block.block_q * group, "most": wanted}))
            parts = (part_bound(kind.items(problem), wanted)[2], kv_heads, block.rows)
            shapes.append(jax.ShapeDtypeStruct((*parts, dv), jnp.float32))
            shapes.append(jax.ShapeDtypeStruct(parts, jnp.float32))
    table = tables[0] if len(tables) == 1 else triton_items.mixed(*tables)
    where = keys.starts if isinstance(keys, Packed) else keys.tables
    leaves, tree = jax.tree.flatten((problem.mask, problem.scores, problem.sinks))
    operands = (table, where, problem.key_base, problem.q, keys.k, keys.v, *leaves)
    kernel = functools.partial(
        _kernel,
        tree=tree,
        blocks=blocks,
        scale=problem.scale,
        uniform=None if problem.uniform is None or merges else (problem.uniform, problem.max_keys),
        paged=not isinstance(keys, Packed),
    )
    out, lse, *parts = pl.pallas_call(
        kernel,
        grid=(table.shape[0] * kv_heads,),  # one axis: CUDA's others end at 65535
        in_specs=[whole(x) for x in operands],
        out_specs=[whole(x) for x in shapes],
        out_shape=shapes,
        compiler_params=compiler_params(
            compiler, num_warps=tiles.num_warps or 4, num_stages=tiles.num_stages or 2
        ),
        interpret=interpret,
        name="jaxattn_forward",
    )(*operands)
    how = {"group": group, "interpret": interpret, "compiler": compiler}
    for i, (merged, sizes) in enumerate(merges):
        out, lse = merge(merged, parts[2 * i : 2 * i + 2], (out, lse), **sizes, **how)
    return out, lse


def _kernel(*refs, tree, blocks, scale, uniform, paged):
    table, where, key_base, q_ref, k_ref, v_ref, *refs = refs
    leaves, (out_ref, lse_ref, *parts) = refs[: tree.num_leaves], refs[tree.num_leaves :]
    mask, scores, sinks = jax.tree.unflatten(tree, leaves)
    # The heads of an item are neighbours, whose keys lie side by side in a page.
    kv_heads = k_ref.shape[1]
    head = rem(pl.program_id(0), kv_heads)
    # Later blocks see more keys under a causal mask: they start first, so that short ones fill in.
    # Parts are of like sizes, and unused ones come last.
    given = parts or len(blocks) > 1
    turn = pl.program_id(0) if given else pl.num_programs(0) - 1 - pl.program_id(0)
    item = div(turn, kv_heads)

    def work(block, parts):
        sizes = {"block_q": block.block_q, "rows": block.rows, "group": block.group}
        sizes["kv_head"] = head
        rows, slot = triton_items.read(item, table, uniform, sizes, block.cut)
        if paged:
            source = LoadPages(k_ref, v_ref, head, block.block_k, where, rows.seq)
        else:
            start = where[rows.seq] if uniform is None else rows.seq * uniform[1]
            known = uniform is not None and isinstance(mask, Full)
            rest = uniform[1] % block.block_k if known else 0
            source = LoadSlices(k_ref, v_ref, head, block.block_k, start, rest)
        env_at = functools.partial(LoadEnv, rows, key_base)
        q = load(q_ref, (rows.packed(), rows.head()), rows.real())
        dv = columns(v_ref.shape[-1])
        out, lse = attend(q, source, env_at, rows, mask, scores, sinks, scale, dv)
        # Padding rows are masked; they name other rows' places, since Pallas' interpreter writes
        # back what it read there, and the last query's place would lose its result.
        place = (rows.packed(clamp=False), rows.head())
        ok = rows.real()
        if block.cut:
            _store_part(parts, slot, head, out, lse, ok & (slot >= 0))
            ok &= slot < 0
        store(out_ref, place, out, ok)
        plt.store(lse_ref.at[place], lse, mask=ok)

    if len(blocks) == 1:
        work(blocks[0], parts)
    else:
        many, few = blocks
        of_many, of_few = parts[: 2 * many.cut], parts[2 * many.cut :]
        is_few = triton_items.is_few(table, item)
        lax.cond(is_few, lambda: work(few, of_few), lambda: work(many, of_many))


def _store_part(parts, slot, head, out, lse, ok):
    out_ref, lse_ref = parts
    row = lax.broadcasted_iota(jnp.int32, lse.shape, 0)
    place = (jnp.maximum(slot, 0), head, row)
    store(out_ref, place, out, ok)
    plt.store(lse_ref.at[place], lse, mask=ok)
