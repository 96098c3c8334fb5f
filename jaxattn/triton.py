"""NVIDIA and AMD GPUs: the shared body over gathered loads, compiled by Triton.

The only file that knows Pallas' Triton backend. It has no scratch memory and no scalar prefetch,
takes arrays whose sizes are powers of two, and hides latency by itself: a source is a load.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from jaxattn.integers import arange, choose, div, rem
from jaxattn.kernel import Env, Rows, attend
from jaxattn.operands import PerPair, is_operand
from jaxattn.problem import Packed, Problem, Tiles
from jaxattn.schedule import uniform_item
from jaxattn.triton_compiler import compiler_params

__all__ = ["default_tiles", "reason_not", "run"]

MIN_DOT = 16  # Triton's smallest side of a product
NUM_INDEX = 7  # integer arrays that say which rows and keys an item has


def reason_not(problem: Problem, tiles: Tiles | None) -> str | None:
    """Why this target cannot do the problem, or None."""
    del problem
    if tiles is not None and tiles.block_k < MIN_DOT:
        return f"tiles.block_k={tiles.block_k}: Triton needs at least {MIN_DOT}"
    return None


def default_tiles(problem: Problem) -> Tiles:
    """Few rows (decode): long tiles in flight. Many: as many rows as registers hold."""
    group, d = problem.group, max(problem.q.shape[-1], problem.keys.v.shape[-1])
    wide = d > 128 or problem.q.dtype == jnp.float32
    mean = -(-problem.q.shape[0] // max(problem.num_seqs, 1))
    rows = min(_pow2(mean * group), 64 if wide else 128)
    block_k = min(32 if wide else 64, _pow2(max(problem.max_keys, 1)))
    warps = 8 if rows >= 128 and d <= 64 else 4
    pairs = any(
        isinstance(x, PerPair)
        for x in jax.tree.leaves((problem.mask, problem.scores), is_leaf=is_operand)
    )
    stages = 2 if wide or pairs else 3  # a stage holds tiles of k, v and pair operands
    return Tiles(max(1, rows // group), max(MIN_DOT, block_k), warps, stages)


def run(problem: Problem, tiles: Tiles | None, interpreter=None, compiler="xla"):
    """``out [T, H, Dv]`` in q's dtype and ``lse f32[T, H]`` (natural log)."""
    tiles = tiles or default_tiles(problem)
    plan, kv_lens = problem.items(tiles.block_q)
    num_tokens, heads, _ = problem.q.shape
    keys = problem.keys
    where = keys.starts if isinstance(keys, Packed) else keys.tables
    cu = jnp.append(problem.cu_q_lens, num_tokens).astype(jnp.int32)
    index = (plan.seq, plan.start, plan.count, cu, kv_lens, where, problem.key_base)
    leaves, tree = jax.tree.flatten((problem.mask, problem.scores, problem.sinks))
    operands = (*index, problem.q, keys.k, keys.v, *leaves)
    shapes = (
        jax.ShapeDtypeStruct((num_tokens, heads, keys.v.shape[-1]), problem.q.dtype),
        jax.ShapeDtypeStruct((num_tokens, heads), jnp.float32),
    )
    kernel = functools.partial(
        _kernel,
        tree=tree,
        tiles=tiles,
        group=problem.group,
        scale=problem.scale,
        num_seqs=problem.num_seqs,
        uniform=None if problem.uniform is None else (problem.uniform, problem.max_keys),
        paged=not isinstance(keys, Packed),
    )
    return pl.pallas_call(
        kernel,
        grid=(plan.seq.shape[0] * keys.num_kv_heads,),  # one axis: CUDA's others end at 65535
        in_specs=[_whole(x) for x in operands],
        out_specs=[_whole(x) for x in shapes],
        out_shape=shapes,
        compiler_params=compiler_params(
            compiler, num_warps=tiles.num_warps or 4, num_stages=tiles.num_stages or 2
        ),
        interpret=interpreter is not None,
        name="jaxattn_forward",
    )(*operands)


def _whole(x):
    return pl.BlockSpec(x.shape, lambda *_: (0,) * len(x.shape))


def _kernel(*refs, tree, tiles, group, scale, num_seqs, uniform, paged):
    *index, q_ref, k_ref, v_ref = refs[: NUM_INDEX + 3]
    *leaves, out_ref, lse_ref = refs[NUM_INDEX + 3 :]
    where, key_base = index[-2:]
    # Later blocks see more keys under a causal mask: they start first, so that short ones fill in.
    # The heads of a block are neighbours, whose keys lie side by side in a page.
    kv_heads = k_ref.shape[1]
    head = rem(pl.program_id(0), kv_heads)
    item = div(pl.num_programs(0) - 1 - pl.program_id(0), kv_heads)
    padded = max(_pow2(tiles.block_q * group), MIN_DOT)
    sizes = {"block_q": tiles.block_q, "rows": padded, "group": group, "kv_head": head}
    rows = _rows(item, index, num_seqs, uniform, sizes)

    mask, scores, sinks = jax.tree.unflatten(tree, leaves)
    if paged:
        source = LoadPages(k_ref, v_ref, head, tiles.block_k, where, rows.seq)
    else:
        start = where[rows.seq] if uniform is None else rows.seq * uniform[1]
        source = LoadSlices(k_ref, v_ref, head, tiles.block_k, start)
    env_at = functools.partial(LoadEnv, rows, key_base)
    q = _load(q_ref, (rows.packed(), rows.head()), rows.real())
    dv = _pow2_dim(v_ref.shape[-1])
    out, lse = attend(q, source, env_at, rows, mask, scores, sinks, scale, dv)
    # Padding rows are masked; they name other rows' places, since Pallas' interpreter writes
    # back what it read there, and the last query's place would lose its result.
    place = (rows.packed(clamp=False), rows.head())
    _store(out_ref, place, out.astype(out_ref.dtype), rows.real())
    plt.store(lse_ref.at[place], lse, mask=rows.real())


def _rows(item, index, num_seqs, uniform, sizes):
    """The :class:`Rows` of a work item: by arithmetic when sequences are alike, else by tables."""
    seqs, starts, counts, cu, kv_lens, *_ = index
    if uniform is not None:
        q_len, kv_len = uniform
        seq, start, count = uniform_item(item, q_len, sizes["block_q"])
        lens = {"packed_start": seq * q_len, "q_len": q_len, "kv_len": kv_len}
        return Rows(seq=seq, start=start, count=count, **lens, **sizes)
    seq, count = seqs[item], counts[item]
    # An unused item has no queries: without keys either it does nothing, and needs no branch, which
    # Triton would not pipeline loops inside as well.
    first, kv_len = cu[seq], choose(count > 0, kv_lens[seq], 0)
    lens = {"packed_start": first, "q_len": cu[seq + 1] - first, "kv_len": kv_len}
    seq = jnp.minimum(seq, num_seqs - 1)
    return Rows(seq=seq, start=starts[item], count=count, **lens, **sizes)


class _Loaded:
    """Key tiles by gathered loads; the hardware and Triton's pipeliner hide the latency."""

    shift = 0
    ragged = False
    clean = True
    flat = True

    def __init__(self, k_ref, v_ref, head, width):
        self.k_ref, self.v_ref, self.head, self.width = k_ref, v_ref, head, width

    def begin(self, first, last, span):
        pass

    def take(self, j, last, bounds):
        key = j * self.width + arange(self.width)
        ok = None if bounds is None else (key >= bounds[0]) & (key < bounds[1])
        place = self._place(key, ok)
        return _load(self.k_ref, place, ok), _load(self.v_ref, place, ok)


class LoadSlices(_Loaded):
    """Packed keys ``[S, K, D]``."""

    def __init__(self, k_ref, v_ref, head, width, start):
        super().__init__(k_ref, v_ref, head, width)
        self.start = start

    def _place(self, key, ok):
        return self.start + key, self.head


class LoadPages(_Loaded):
    """A paged cache ``[P, K, page_size, D]``: any tile width with any page size."""

    def __init__(self, k_ref, v_ref, head, width, tables, seq):
        super().__init__(k_ref, v_ref, head, width)
        self.tables, self.seq = tables, seq

    def _place(self, key, ok):
        page_size = self.k_ref.shape[2]
        entry = self.tables.at[self.seq, div(key, page_size)]
        page = plt.load(entry) if ok is None else plt.load(entry, mask=ok, other=0)
        return page, self.head, rem(key, page_size)


class LoadEnv(Env):
    """Masks and scores read their operands by loads of the shape of the tile."""

    def __init__(self, rows, key_base, *where):
        super().__init__(rows, *where)
        self.key_base = key_base

    def at_query(self, operand):
        return plt.load(operand.value.at[self.rows.packed()])

    def at_key(self, operand):
        place = self.key_base[self.rows.seq] + self.k_idx
        inside = self.k_idx < self.rows.kv_len
        return plt.load(operand.value.at[place], mask=inside, other=0)

    def at_pair(self, operand):
        ref, rows, k_idx = operand.value, self.rows, self.k_idx
        shape = (rows.rows, self.width)
        head = rows.head() if ref.shape[0] > 1 else 0
        row = {
            "global": rows.packed,
            "local": lambda: rows.start + rows.query(),
            "sequence": lambda: rows.seq,
            "one": lambda: 0,
        }[operand.rows]()
        spread = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.int32), shape)  # noqa: E731
        inside = spread(k_idx) < ref.shape[2]
        place = (spread(head), spread(row), spread(k_idx))
        return plt.load(ref.at[place], mask=inside, other=0)


def _load(ref, place, ok):
    """Rows of ``ref`` at ``place`` (vectors and scalars), the last axis padded to a power of two
    by zeros. ``ok`` masks rows."""
    place = tuple(_as_column(x) for x in place)
    ok = None if ok is None else _as_column(ok)
    d, padded = ref.shape[-1], _pow2_dim(ref.shape[-1])
    lane = lax.broadcasted_iota(jnp.int32, (1, padded), 1)
    if padded != d:
        ok = lane < d if ok is None else ok & (lane < d)
    at = ref.at[(*place, lane)]
    if ok is None:
        return plt.load(at)
    rows = max(x.shape[0] for x in place if getattr(x, "ndim", 0))
    return plt.load(at, mask=jnp.broadcast_to(ok, (rows, padded)), other=0.0)


def _store(ref, place, x, ok):
    d, padded = ref.shape[-1], x.shape[-1]
    lane = lax.broadcasted_iota(jnp.int32, (1, padded), 1)
    ok = jnp.broadcast_to(ok & (lane < d), x.shape)
    plt.store(ref.at[(*place, lane)], x, mask=ok)


def _as_column(x):
    return x[:, None] if getattr(x, "ndim", 0) == 1 else x


def _pow2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _pow2_dim(d: int) -> int:
    return max(_pow2(d), MIN_DOT)
