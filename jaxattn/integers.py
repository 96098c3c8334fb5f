"""int32 arithmetic on scalars and vectors that every target lowers, with 64-bit JAX too.

The divisors are static and positive, the dividends not negative: division truncates.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

__all__ = ["arange", "choose", "div", "rem"]


def div(a, n: int):
    """``a // n``."""
    return lax.div(jnp.asarray(a, jnp.int32), np.int32(n))


def rem(a, n: int):
    """``a % n``."""
    return lax.rem(jnp.asarray(a, jnp.int32), np.int32(n))


def arange(n: int):
    """``0 .. n - 1``."""
    return jnp.arange(n, dtype=jnp.int32)


def choose(condition, a, b):
    """``a`` where the condition holds, else ``b``.

    Arithmetic, since Pallas' Triton lowering gives a literal that meets a scalar select the
    condition's type (JAX 0.12)."""
    return b + (a - b) * condition.astype(jnp.int32)
