"""How a case is computed, by us and by the kernels that ship with JAX: functions to compile.

All take the arrays that a model has: ``q [B, T, H, D]`` and ``k, v [B, S, K, D]``, or packed
``q [T, H, D]`` and their own paged cache. What a peer needs done to them counts as its own work.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from scripts.bench.cases import Case
from scripts.tpu.trips import Trips

OURS = "jaxattn"
DENSE_PEERS = ("flash_attention", "splash")
PAGED_PEERS = ("ragged_paged_attention",)
NAMES = (OURS, *DENSE_PEERS, *PAGED_PEERS)


@dataclasses.dataclass(frozen=True)
class Way:
    """``call(*shapes)`` to compile.

    kernel: part of the name of the kernels that count. tile: query rows and keys of one turn of
    their hottest loop. trips: how often the loops run; None where nobody outside the chip knows.
    static: whether the compiler knows that too.
    """

    call: Callable[..., Any]
    shapes: tuple
    kernel: str
    tile: tuple[int, int]
    trips: Trips | None
    static: bool


def names(case: Case) -> tuple[str, ...]:
    """The implementations that do such a case."""
    return (OURS, *(DENSE_PEERS if case.page_size is None else PAGED_PEERS))


def way(name: str, case: Case) -> Way:
    makers = {
        OURS: _ours,
        "flash_attention": _flash,
        "splash": _splash,
        "ragged_paged_attention": _ragged_paged,
    }
    return makers[name](case)


def _shape(*shape: int, dtype=jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _dense_shapes(case: Case) -> tuple:
    b, t, s = case.uniform
    k = _shape(b, s, case.kv_heads, case.head_dim)
    return _shape(b, t, case.heads, case.head_dim), k, k


def _paged_arrays(case: Case) -> tuple[int, tuple]:
    """Pages of the cache, and ``seq_lens``, ``cu_q_lens`` and tables of the right shapes."""
    n, width = len(case.k_lens), -(-max(case.k_lens) // case.page_size)
    i32 = functools.partial(_shape, dtype=jnp.int32)
    return n * width, (i32(n, width), i32(n), i32(n + 1))


def _ours(case: Case) -> Way:
    import jaxattn
    from scripts.bench.oracle import mask_of
    from scripts.tpu import ours

    options = {"mask": mask_of(case), "implementation": "mosaic"}
    tile, trips, static = ours.plan(case)
    if case.page_size is None:
        call = functools.partial(jaxattn.attention, **options)
        return Way(call, _dense_shapes(case), "jaxattn", tile, trips, static)
    pages, rest = _paged_arrays(case)
    page = _shape(pages, case.kv_heads, case.page_size, case.head_dim)
    call = functools.partial(jaxattn.paged_attention, **options)
    shapes = (_shape(sum(case.q_lens), case.heads, case.head_dim), jaxattn.PagedKV(page, page))
    return Way(call, (*shapes, *rest), "jaxattn", tile, trips, static)


def _flash(case: Case) -> Way:
    """With the best blocks: the whole of up to 1024 tokens, else 1024; padding is masked."""
    from jax.experimental.pallas.ops.tpu.flash_attention import (
        BlockSizes,
        SegmentIds,
        flash_attention,
    )

    b, t, s = case.uniform
    padded = -(-max(t, s) // 128) * 128
    block = padded if padded <= 1024 else 1024
    sizes = BlockSizes(block_q=block, block_k_major=block, block_k=block, block_b=1)
    ids = None
    if padded != s:
        ids = jnp.broadcast_to((jnp.arange(padded) >= s).astype(jnp.int32), (b, padded))

    def call(q, k, v):
        k, v = (jnp.repeat(x, case.group, axis=2) for x in (k, v))
        q, k, v = (
            jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, padded - x.shape[1]), (0, 0)))
            for x in (q, k, v)
        )
        segments = None if ids is None else SegmentIds(ids, ids)
        scale = case.head_dim**-0.5
        out = flash_attention(
            q, k, v, causal=case.causal, segment_ids=segments, sm_scale=scale, block_sizes=sizes
        )
        return out[:, :, :t].swapaxes(1, 2)

    steps = b * case.heads * (padded // block) ** 2
    return Way(call, _dense_shapes(case), "flash_attention", (block, block), Trips((steps,)), True)


def _splash(case: Case) -> Way:
    """With blocks of 1024 at most; how often it loops is known on the device only."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    _, t, s = case.uniform
    padded = -(-max(t, s) // 128) * 128
    block = padded if padded <= 1024 else 1024
    full = masks.CausalMask((padded, padded)) if case.causal else masks.FullMask((padded, padded))
    sizes = splash.BlockSizes(block_q=block, block_kv=block, block_kv_compute=block)
    ids = None
    if padded != s:
        ids = (jnp.arange(padded) >= s).astype(jnp.int32)

    def call(q, k, v):
        run = splash.make_splash_mha_single_device(
            masks.MultiHeadMask([full] * case.heads), block_sizes=sizes
        )
        k, v = (jnp.repeat(x, case.group, axis=2) for x in (k, v))
        q, k, v = (
            jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, padded - x.shape[1]), (0, 0)))
            for x in (q * case.head_dim**-0.5, k, v)
        )
        segments = None if ids is None else splash.SegmentIds(ids, ids)
        out = jax.vmap(lambda q, k, v: run(q, k, v, segments))(q, k, v)
        return out[:, :, :t].swapaxes(1, 2)

    return Way(call, _dense_shapes(case), "splash", (block, block), None, False)


def _ragged_paged(case: Case) -> Way:
    """The kernel that vLLM on TPU began with, in its own cache ``[P, page, 2 K, D]``."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

    pages, (tables, lens, cu) = _paged_arrays(case)
    cache = _shape(pages, case.page_size, 2 * case.kv_heads, case.head_dim)
    block_pages = max(1, 512 // case.page_size)
    queries = 1 if max(case.q_lens) == 1 else 64

    def call(q, cache, tables, lens, cu):
        return ragged_paged_attention(
            q,
            cache,
            lens,
            tables,
            cu,
            jnp.array([lens.shape[0]], jnp.int32),
            sm_scale=case.head_dim**-0.5,
            num_kv_pages_per_block=block_pages,
            num_queries_per_block=queries,
            vmem_limit_bytes=64 << 20,
        )

    q = _shape(sum(case.q_lens), case.heads, case.head_dim)
    tile = (queries * case.group, block_pages * case.page_size)
    return Way(call, (q, cache, tables, lens, cu), "ragged_paged", tile, None, False)
