"""PyTorch's scaled_dot_product_attention: its cuDNN and FlashAttention-2 backends."""

from scripts.bench.arrays import Arrays, contiguous
from scripts.bench.cases import Case
from scripts.bench.peers.cudnn import self_attention
from scripts.bench.peers.presence import no_torch_gpu
from scripts.bench.ways import TorchWay

BACKENDS = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION"}


def absent() -> str | None:
    return no_torch_gpu()


def ways(case: Case) -> list[TorchWay]:
    self_attention(case)
    return [
        TorchWay(
            f"torch-sdpa {name}",
            "",
            lambda arrays, backend=backend: _prepare(case, arrays, backend),
            lambda out: out.transpose(1, 2).float().cpu(),
        )
        for name, backend in BACKENDS.items()
    ]


def _prepare(case: Case, arrays: Arrays, backend: str):
    import jax
    import torch
    from torch.nn import attention, functional

    operands = jax.block_until_ready(contiguous(case, arrays))
    # [B, T, H, D] -> [B, H, T, D], laid out so.
    q, k, v = (torch.from_dlpack(x).transpose(1, 2).contiguous() for x in operands)

    def call():
        with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=case.causal, enable_gqa=case.group > 1
            )

    return call
