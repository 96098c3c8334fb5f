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
    columns,
    load,
    store,
    whole,
)
from jaxattn.tuning_shape import MIN_SIDE, MOST_FEW, side

__all__ = ["default_tiles", "reason_not", "run"]


def reason_not(problem: Problem, tiles: Tiles | None) -> str | None:
    """Why this target cannot do the problem, or None."""
    del problem
    if tiles is not None and tiles.block_k < MIN_SIDE:
        return f"tiles.block_k={tiles.block_k}: Triton needs at least {MIN_SIDE}"
    return None


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of the kernel: its tiles, and the queries of the sequences it does."""

    tiles: Tiles
    least: int = 0
    most: int | None = None


def run(problem: Problem, tiles: Tiles | None, interpreter=None, compiler=None):
    """``out [T, H, Dv]`` in q's dtype and ``lse f32[T, H]`` (natural log)."""
    results = None
    for launch in _launches(problem, tiles):
        chosen = _compiler(compiler, launch.tiles)
        results = _launch(problem, launch, results, interpreter is not None, chosen)
    return results


def _launches(problem: Problem, tiles: Tiles | None) -> tuple[Launch, ...]:
    """The launches of a call: two if its sequences may be of both kinds."""
    if tiles is not None:
        return (Launch(tiles),)
    tokens, seqs = problem.q.shape[0], problem.num_seqs
    queries = problem.uniform or -(-tokens // seqs)
    if problem.uniform is not None or seqs == 1 or queries == 1:
        return (Launch(default_tiles(problem, queries <= MOST_FEW, queries)),)
    few = default_tiles(problem, True, queries if queries <= MOST_FEW else 1)
    # Rows that a tile is padded to anyway may as well be of a sequence's next queries.
    few = dataclasses.replace(few, block_q=max(few.block_q, MIN_SIDE // problem.group))
    many = default_tiles(problem, False, max(queries, MOST_FEW + 1))
    return Launch(many, least=MOST_FEW + 1), Launch(few, most=MOST_FEW)


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


def _launch(problem: Problem, launch: Launch, into, interpret: bool, compiler: str):
    """The results of one launch; ``into`` are those of the launches before it, or None."""
    tiles, keys = launch.tiles, problem.keys
    num_tokens, heads, _ = problem.q.shape
    kv_heads, dv = keys.num_kv_heads, keys.v.shape[-1]
    shapes = (
        jax.ShapeDtypeStruct((num_tokens, heads, dv), problem.q.dtype),
        jax.ShapeDtypeStruct((num_tokens, heads), jnp.float32),
    )
    rows = side(tiles.block_q * problem.group)
    items = problem.num_items(tiles.block_q, launch.least, launch.most)
    if items == 0:
        return into
    wanted = -(-(tiles.programs or 0) // kv_heads)
    # Lengths that are not known may be very unlike: one long sequence must not run alone.
    cut = wanted > 0 and (items < 2 * wanted or problem.uniform is None)
    uniform = None if problem.uniform is None or cut else (problem.uniform, problem.max_keys)
    which = {"block_q": tiles.block_q, "least": launch.least, "most": launch.most}
    table, merges = triton_items.table(problem, tiles.block_k, wanted if cut else 0, **which)
    if cut:
        items, _, slots = part_bound(items, wanted)
        parts = (slots, kv_heads, rows)
        shapes += (
            jax.ShapeDtypeStruct((*parts, dv), jnp.float32),
            jax.ShapeDtypeStruct(parts, jnp.float32),
        )
    where = keys.starts if isinstance(keys, Packed) else keys.tables
    leaves, tree = jax.tree.flatten((problem.mask, problem.scores, problem.sinks))
    operands = (table, where, problem.key_base, problem.q, keys.k, keys.v, *leaves, *(into or ()))
    kernel = functools.partial(
        _kernel,
        tree=tree,
        tiles=tiles,
        sizes={"block_q": tiles.block_q, "rows": rows, "group": problem.group},
        scale=problem.scale,
        uniform=uniform,
        paged=not isinstance(keys, Packed),
        num_into=len(into or ()),
    )
    first = len(operands) - len(into or ())
    results = pl.pallas_call(
        kernel,
        grid=(items * kv_heads,),  # one axis: CUDA's others end at 65535
        in_specs=[whole(x) for x in operands],
        out_specs=[whole(x) for x in shapes],
        out_shape=shapes,
        input_output_aliases={first + i: i for i in range(len(into or ()))},
        compiler_params=compiler_params(
            compiler, num_warps=tiles.num_warps or 4, num_stages=tiles.num_stages or 2
        ),
        interpret=interpret,
        name="jaxattn_forward",
    )(*operands)
    if not cut:
        return tuple(results)
    written, parts = results[:2], results[2:]
    sizes = {"rows": tiles.block_q * problem.group, "group": problem.group, "most": wanted}
    return merge(merges, parts, written, **sizes, interpret=interpret, compiler=compiler)


def _kernel(*refs, tree, tiles, sizes, scale, uniform, paged, num_into):
    table, where, key_base, q_ref, k_ref, v_ref, *refs = refs
    leaves, refs = refs[: tree.num_leaves], refs[tree.num_leaves + num_into :]
    out_ref, lse_ref, *parts = refs
    # Later blocks see more keys under a causal mask: they start first, so that short ones fill in.
    # The heads of a block are neighbours, whose keys lie side by side in a page.
    kv_heads = k_ref.shape[1]
    head = rem(pl.program_id(0), kv_heads)
    # Parts are of like sizes, and unused ones come last.
    turn = pl.program_id(0) if parts else pl.num_programs(0) - 1 - pl.program_id(0)
    item = div(turn, kv_heads)
    rows, slot = triton_items.read(item, table, uniform, sizes | {"kv_head": head}, bool(parts))

    mask, scores, sinks = jax.tree.unflatten(tree, leaves)
    if paged:
        source = LoadPages(k_ref, v_ref, head, tiles.block_k, where, rows.seq)
    else:
        start = where[rows.seq] if uniform is None else rows.seq * uniform[1]
        known = uniform is not None and isinstance(mask, Full)
        rest = uniform[1] % tiles.block_k if known else 0
        source = LoadSlices(k_ref, v_ref, head, tiles.block_k, start, rest)
    env_at = functools.partial(LoadEnv, rows, key_base)
    q = load(q_ref, (rows.packed(), rows.head()), rows.real())
    out, lse = attend(q, source, env_at, rows, mask, scores, sinks, scale, columns(v_ref.shape[-1]))
    # Padding rows are masked; they name other rows' places, since Pallas' interpreter writes
    # back what it read there, and the last query's place would lose its result.
    place = (rows.packed(clamp=False), rows.head())
    ok = rows.real()
    if parts:
        _store_part(parts, slot, head, out, lse, ok & (slot >= 0))
        ok &= slot < 0
    store(out_ref, place, out, ok)
    plt.store(lse_ref.at[place], lse, mask=ok)


def _store_part(parts, slot, head, out, lse, ok):
    out_ref, lse_ref = parts
    row = lax.broadcasted_iota(jnp.int32, lse.shape, 0)
    place = (jnp.maximum(slot, 0), head, row)
    store(out_ref, place, out, ok)
    plt.store(lse_ref.at[place], lse, mask=ok)
