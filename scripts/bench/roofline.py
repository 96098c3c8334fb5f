"""What the device does at best in this run: read and copy bandwidth, and matrix products."""

import dataclasses
import time
from collections.abc import Callable

from scripts.timing import ROUND_SECONDS, Chain

LARGE = 2**31  # bytes, many times the caches of any chip
MATMUL = 8192
NOMINAL_FLOPS = 5e14  # only sizes the chain that is timed
SMALL, SMALL_MATMUL, SMALL_FLOPS = 2**22, 256, 1e10
ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Roofline:
    """copy: bytes read and bytes written, added up."""

    read_bytes_per_second: float
    copy_bytes_per_second: float
    flops_per_second: float


def measure(small: bool = False) -> Roofline:
    """Measure the device. ``small`` does so in a moment, and says little."""
    import jax
    import jax.numpy as jnp

    size = SMALL if small else LARGE
    x = jnp.ones((size // 2**14, 2**12), jnp.int32)
    # The best of two ways to read, since neither shape of reduction is the best on every chip.
    by_row = _fastest(lambda x: x.max(1), x)
    by_cell = _fastest(lambda x: x.max(), x)
    copying = _fastest(lambda x: x + 1, x)
    del x
    n = SMALL_MATMUL if small else MATMUL
    # Standard normal rows stay standard normal: a chip computes faster with zeros.
    x, a = (jax.random.normal(jax.random.key(i), (n, n), jnp.bfloat16) for i in range(2))
    work = 2 * n**3  # a multiplication and an addition for each entry of each row
    guess = work / (SMALL_FLOPS if small else NOMINAL_FLOPS)
    product = Chain(jnp.matmul, x, a * n**-0.5, guess=guess).time(rounds=ROUNDS)
    return Roofline(size / min(by_row, by_cell), 2 * size / copying, work / product.median)


def _fastest(call: Callable, x) -> float:
    """Seconds of the fastest round of calls that need not wait for one another."""
    import jax

    run = jax.jit(call)
    jax.block_until_ready(run(x))

    def seconds(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            out = run(x)
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / count

    count = max(1, round(ROUND_SECONDS / seconds(2)))
    return min(seconds(count) for _ in range(ROUNDS))
