"""Facts of the TPU generations that the compiler here knows."""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Tpu:
    """Facts of one generation. A device is what JAX calls one: a chip, or half of one."""

    hbm: float  # bytes a device's programs may take
    flops: float  # bf16 operations a second of a chip
    bandwidth: float  # bytes a second between HBM and a chip
    link: float  # bytes a second through one link between chips, one way
    axes: int  # dimensions of the network
    wraps: int  # an axis is a ring where the slice is a multiple of this long
    per_chip: int  # devices
    most: tuple[int, ...]  # chips along each axis of the largest slice


# FLOPs, bandwidths and sizes: Google Cloud's pages on v4, v5e, v5p, v6e and TPU7x. They give the
# ICI of a chip over all its links, two an axis: 1600 Gbit/s one way for v5e; 800 GB/s both ways for
# v6e, 1200 for v5p and TPU7x. v4's links: Jouppi et al. 2023 (arXiv 2304.01433). HBM: what the
# compiler says is available when a program does not fit; the rest of the chip's is reserved.
TPUS = {
    "v4": Tpu(15.25 * GIB, 275e12, 1200e9, 50e9, 3, 4, 2, (16, 16, 16)),
    "v5e": Tpu(15.75 * GIB, 197e12, 819e9, 50e9, 2, 16, 1, (16, 16)),
    "v5p": Tpu(95.73 * GIB, 459e12, 2765e9, 100e9, 3, 4, 1, (16, 16, 24)),
    "v6e": Tpu(31.24 * GIB, 918e12, 1638e9, 100e9, 2, 16, 1, (16, 16)),
    "tpu7x": Tpu(94.74 * GIB, 2307e12, 7380e9, 100e9, 3, 4, 2, (16, 16, 36)),
}
# A float32 product is six of bfloat16 (jax.lax.Precision.HIGHEST).
PASSES = {"bfloat16": 1, "float32": 6}
