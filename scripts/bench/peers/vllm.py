"""vLLM's unified Triton kernel: paged, prefills and decodes in one launch."""

from scripts.bench.arrays import Arrays
from scripts.bench.cases import Case
from scripts.bench.peers.presence import Unsuited, missing, no_torch_gpu
from scripts.bench.ways import TorchWay

MODULE = "vllm.v1.attention.ops.triton_unified_attention"
# As vLLM's backend sets them: decodes of so few sequences that they do not fill the chip are cut
# into segments.
SEGMENTS, MOST_SPLIT_PROGRAMS = 16, 128


def absent() -> str | None:
    return no_torch_gpu() or missing(MODULE)


def ways(case: Case) -> list[TorchWay]:
    if case.page_size is None:
        raise Unsuited("it has paged attention only")
    if case.window is not None or not case.causal:
        raise Unsuited("it is compared on causal attention without a window")
    return [
        TorchWay("vllm", "", lambda arrays: _prepare(case, arrays), lambda out: out.float().cpu())
    ]


def _prepare(case: Case, arrays: Arrays):
    import importlib

    import jax
    import torch

    unified_attention = importlib.import_module(MODULE).unified_attention
    jax.block_until_ready(arrays)
    q, k, v, tables, seq_lens, cu_q_lens = (
        torch.from_dlpack(x)
        for x in (arrays.q, arrays.k, arrays.v, arrays.tables, arrays.seq_lens, arrays.cu_q_lens)
    )
    out = torch.empty_like(q)
    split_seqs = MOST_SPLIT_PROGRAMS // case.kv_heads
    width = 1 << (case.head_dim - 1).bit_length()
    partial = torch.empty(
        split_seqs, case.heads, SEGMENTS, width, device=q.device, dtype=torch.float32
    )
    maxima, sums = torch.empty_like(partial[..., 0]), torch.empty_like(partial[..., 0])

    def call():
        unified_attention(
            q,
            k,
            v,
            out,
            cu_q_lens,
            max(case.q_lens),
            seq_lens,
            max(case.k_lens),
            case.head_dim**-0.5,
            True,
            (-1, -1),
            tables,
            0.0,  # soft cap
            None,
            None,
            None,
            split_seqs,
            SEGMENTS,
            partial,
            maxima,
            sums,
        )
        return out

    return call
