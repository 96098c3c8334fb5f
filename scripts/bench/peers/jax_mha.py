"""The attention kernels that come with JAX: Pallas on Triton, whole sequences and paged decode."""

import contextlib
import warnings

import jax.numpy as jnp

from scripts.bench.arrays import contiguous
from scripts.bench.cases import Case
from scripts.bench.peers.presence import Unsuited, missing, no_gpu
from scripts.bench.ways import JaxWay

# (block_q, block_k, warps, stages): those that were the fastest on some shape.
BLOCKS = ((128, 128, 8, 2), (128, 64, 4, 3), (128, 64, 8, 3))
KEYS_A_STEP, SPLITS = 64, 8


def absent() -> str | None:
    with _quiet():
        return no_gpu() or missing(
            "jax.experimental.pallas.ops.gpu.attention",
            "jax.experimental.pallas.ops.gpu.paged_attention",
        )


def ways(case: Case) -> list[JaxWay]:
    if case.window is not None:
        raise Unsuited("it has no sliding window")
    if case.page_size is not None and set(case.q_lens) == {1}:
        return [_paged(case)]
    if case.uniform is None or case.q_lens != case.k_lens:
        raise Unsuited("it has whole sequences of one length, and paged decode")
    return [_mha(case, *block) for block in BLOCKS]


def _mha(case: Case, block_q: int, block_k: int, warps: int, stages: int) -> JaxWay:
    with _quiet():
        from jax.experimental.pallas.ops.gpu import attention

    def call(q, k, v):
        with _quiet():
            return attention.mha(
                q,
                k,
                v,
                None,
                sm_scale=case.head_dim**-0.5,
                causal=case.causal,
                num_warps=warps,
                num_stages=stages,
                block_sizes=attention.BlockSizes(block_q=block_q, block_k=block_k),
            )

    def operands(arrays):  # it wants a kv head for every query head; the copy is not timed
        q, k, v = contiguous(case, arrays)
        return q, jnp.repeat(k, case.group, 2), jnp.repeat(v, case.group, 2)

    variant = f"{block_q}x{block_k}, {warps} warps, {stages} stages"
    return JaxWay("jax-mha", variant, call, operands)


def _paged(case: Case) -> JaxWay:
    with _quiet():
        from jax.experimental.pallas.ops.gpu import paged_attention

    def call(q, k, v, tables, lengths):
        with _quiet():
            return paged_attention.paged_attention(
                # It leaves the scale to the caller.
                q * case.head_dim**-0.5,
                k,
                v,
                tables,
                lengths,
                pages_per_compute_block=max(1, KEYS_A_STEP // case.page_size),
                k_splits=SPLITS,
            )

    return JaxWay(
        "jax paged",
        "",
        call,
        lambda a: (
            a.q,
            jnp.moveaxis(a.k, 2, 0),
            jnp.moveaxis(a.v, 2, 0),
            _whole(a.tables, case.page_size),
            a.seq_lens,
        ),
    )


def _whole(tables, page_size: int):
    """The tables widened so that every split has the same whole number of steps."""
    step = SPLITS * max(1, KEYS_A_STEP // page_size)
    return jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % step)))


@contextlib.contextmanager
def _quiet():
    """Without the warning that these kernels are deprecated, which a comparison need not repeat."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
