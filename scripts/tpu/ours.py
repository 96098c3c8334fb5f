"""What our own kernel does for a case: its tile and the turns of its loops, by its own rules."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn
from jaxattn import kernel, mosaic, mosaic_dense
from jaxattn.mosaic_blocks import ALIGN
from jaxattn.problem import Packed, Paged, Problem
from scripts.bench.cases import Case
from scripts.bench.oracle import mask_of
from scripts.tpu.trips import Trips


def plan(case: Case) -> tuple[tuple[int, int], Trips, bool]:
    """(query rows and keys of a tile, turns of the loops, whether the compiler knows them)."""
    problem = problem_of(case)
    if mosaic_dense.fits(problem, None):
        return _dense(problem)
    tiles = mosaic.default_tiles(problem)
    tile = tiles.block_q * problem.group, tiles.block_k
    steps, turns = _turns(problem, tiles)
    copies = _copy_loop(problem, tiles)
    few = tiles.block_q == 1 or tile[0] <= kernel.FEW_ROWS
    before, full, after = turns
    # In the order of the code: the grid, and in it the loops over key tiles that kernel.attend has.
    if few:
        loops = [before + full + after]
    elif case.page_size is None:
        loops = [before, full, after]
    else:
        loops = [full, after]
    counts = [steps, *([copies * steps] if copies else [])]
    for loop in loops:
        counts += [loop, *([copies * loop] * 2 if copies else [])]
    return tile, Trips(tuple(counts)), False


def _dense(problem: Problem) -> tuple[tuple[int, int], Trips, bool]:
    """The grid is one loop. Its length the compiler knows, not which of two bodies a step has."""
    shape = mosaic_dense.shape_of(problem, None)
    masked = mosaic_dense.masked_steps(problem, shape)
    bodies = tuple(n for n in (len(masked) - sum(masked), sum(masked)) if n)
    return (shape.rows, shape.width), Trips((len(masked),), bodies), len(bodies) == 1


def problem_of(case: Case) -> Problem:
    """The case as a target gets it: lengths as values, the rest as shapes."""
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)  # noqa: E731
    n, d = len(case.q_lens), case.head_dim
    starts = np.cumsum([0, *case.k_lens[:-1]]).astype(np.int32)
    if case.page_size is None:
        rows = array(sum(case.k_lens), case.kv_heads, d)
        keys, most = Packed(rows, rows, starts), max(case.k_lens)
    else:
        width = -(-max(case.k_lens) // case.page_size)
        pages = array(n * width, case.kv_heads, case.page_size, d)
        tables = jax.ShapeDtypeStruct((n, width), jnp.int32)
        keys, most = Paged(jaxattn.PagedKV(pages, pages), tables), width * case.page_size
    return Problem(
        q=array(sum(case.q_lens), case.heads, d),
        keys=keys,
        cu_q_lens=np.cumsum([0, *case.q_lens]).astype(np.int32),
        kv_lens=np.array(case.k_lens, np.int32),
        key_base=starts,
        mask=mask_of(case),
        scores=(),
        sinks=None,
        scale=d**-0.5,
        max_keys=most,
        uniform=case.uniform[1] if case.page_size is None else None,
    )


def _turns(problem: Problem, tiles) -> tuple[int, list[int]]:
    """Steps of the grid, and key tiles before, inside and after what needs no mask, in all items
    of all kv heads."""
    items, kv_lens = problem.items(tiles.block_q)
    cu = jnp.append(problem.cu_q_lens, problem.q.shape[0])
    packed = isinstance(problem.keys, Packed)
    shifts = jnp.append(problem.keys.starts, 0) % ALIGN if packed else jnp.zeros_like(kv_lens)

    def of_item(seq, start, count):
        keys = kv_lens[seq]
        position = keys - (cu[seq + 1] - cu[seq]) + start
        span = problem.mask.span(position, position + count, None).clip(0, keys)
        edges = jnp.stack(kernel._tiles(span, tiles.block_k, shifts[seq]))
        return jnp.where(count > 0, edges[1:] - edges[:-1], 0)

    turns = jax.vmap(of_item)(items.seq, items.start, items.count).sum(0).tolist()
    heads = problem.keys.num_kv_heads
    return heads * items.seq.shape[0], [heads * n for n in turns]


def _copy_loop(problem: Problem, tiles) -> int:
    """Turns of the loop that starts a tile's page copies; 0 where they are written out."""
    if isinstance(problem.keys, Packed):
        return 0
    pages = tiles.block_k // problem.keys.cache.page_size
    return 0 if pages <= mosaic.UNROLL else pages // mosaic.UNROLL
