"""What the arguments that all public operations share may be: each check raises ``ValueError``."""

import math
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxattn.masks import Mask
from jaxattn.paging import DTYPES
from jaxattn.problem import COMPILERS, Tiles
from jaxattn.scores import Score

__all__ = ["ENVIRONMENT", "IMPLEMENTATIONS", "Options", "array", "ints", "options"]

IMPLEMENTATIONS = ("mosaic", "triton", "xla", "reference")
ENVIRONMENT = "JAXATTN_COMPILER"  # the compiler of calls that do not name one


class Options(NamedTuple):
    """How a call attends and runs, checked."""

    mask: Mask
    scores: tuple[Score, ...]
    scale: float
    sinks: jax.Array | None
    implementation: str | None
    compiler: str | None
    tiles: Tiles | None


def options(q, k, v, mask, score, scale, sinks, implementation, compiler, tiles, kv_axis=-2):
    """The options of a call over ``q [..., H, D]``, ``k [..., D]``, ``v [..., Dv]``, after checking
    that these can meet; ``kv_axis`` is the axis of kv heads in k."""
    _check_arrays(q, k, v, k.shape[kv_axis])
    if not isinstance(mask, Mask):
        raise ValueError(f"mask={mask!r}: must be a jaxattn mask, such as Causal()")
    scores = score if isinstance(score, tuple | list) else (score,)
    for one in scores:
        if not isinstance(one, Score):
            raise ValueError(f"score={score!r}: must be jaxattn scores, such as Softcap(50.0)")
    if implementation not in (None, *IMPLEMENTATIONS):
        names = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"implementation={implementation!r}: must be None or one of {names}")
    compiler = _compiler(compiler)
    if not (tiles is None or isinstance(tiles, Tiles)):
        raise ValueError(f"tiles={tiles!r}: must be None or a jaxattn.Tiles")
    return Options(mask, tuple(scores), _scale(scale, q), sinks, implementation, compiler, tiles)


def _compiler(compiler) -> str | None:
    """The compiler to use: the argument, else that of the environment, else the target's choice."""
    name, chosen = "compiler", compiler
    if compiler is None:
        name, chosen = ENVIRONMENT, os.environ.get(ENVIRONMENT) or None
    if chosen not in (None, *COMPILERS):
        raise ValueError(f"{name}={chosen!r}: must be one of {', '.join(COMPILERS)}")
    return chosen


def _scale(scale, q) -> float:
    if scale is None:
        return float(q.shape[-1] ** -0.5)
    try:
        number = math.nan if isinstance(scale, bool | str) else float(scale)
    except (TypeError, ValueError, jax.errors.ConcretizationTypeError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"scale={scale!r}: must be None or one finite number, known when tracing")
    return number


def _check_arrays(q, k, v, kv_heads):
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype not in DTYPES:
            raise ValueError(f"{name} is {x.dtype}: it must be bfloat16, float16 or float32")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}: all must be of one dtype")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q has head dim {q.shape[-1]}, k has {k.shape[-1]}: must be equal")
    for name, d in (("q and k", q.shape[-1]), ("v", v.shape[-1])):
        if d % 8 or not 8 <= d <= 256:
            raise ValueError(f"head dim of {name} is {d}: must be a multiple of 8 from 8 to 256")
    heads = q.shape[-2]
    if kv_heads == 0 or heads == 0 or heads % kv_heads:
        raise ValueError(f"q has {heads} heads, k {kv_heads}: q's must be a multiple of k's")


def array(name, x, ndim) -> jax.Array:
    """``x`` as an array of ``ndim`` axes."""
    if not hasattr(x, "dtype"):
        try:
            x = jnp.asarray(x)
        except (TypeError, ValueError):
            raise ValueError(f"{name} is a {type(x).__name__}: it must be an array") from None
    if x.ndim != ndim:
        raise ValueError(f"{name} has shape {tuple(x.shape)}: it must have {ndim} axes")
    return jnp.asarray(x)


def ints(name, x, ndim) -> jax.Array:
    """``x``, an array of integers with ``ndim`` axes, as int32."""
    try:
        x = jnp.asarray(x)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is a {type(x).__name__}: it must be an array") from None
    if x.ndim != ndim or not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(f"{name} is {x.dtype}{list(x.shape)}: must be integers with {ndim} axes")
    return x.astype(jnp.int32)
