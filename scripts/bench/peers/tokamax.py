"""tokamax's attention kernels: Pallas on Triton, and Pallas on Mosaic GPU."""

import functools

from scripts.bench.arrays import contiguous
from scripts.bench.cases import Case
from scripts.bench.peers.cudnn import self_attention
from scripts.bench.peers.presence import missing, no_gpu
from scripts.bench.ways import JaxWay

KERNELS = ("mosaic_gpu", "triton")


def absent() -> str | None:
    return no_gpu() or missing("tokamax")


def ways(case: Case) -> list[JaxWay]:
    self_attention(case)
    import tokamax

    def way(kernel):
        call = functools.partial(
            tokamax.dot_product_attention, is_causal=case.causal, implementation=kernel
        )
        return JaxWay(
            f"tokamax {kernel}",
            "",
            lambda q, k, v: call(q, k, v),
            lambda arrays: contiguous(case, arrays),
        )

    return [way(kernel) for kernel in KERNELS]
