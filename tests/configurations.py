"""Every public kernel configuration as shapes, for the tests that compile without the hardware."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import jaxattn
from jaxattn import (
    Alibi,
    Bias,
    Causal,
    ChunkedLocal,
    Dense,
    Full,
    Ranges,
    Segments,
    Softcap,
    Window,
)


class Config(NamedTuple):
    """A function and the `jax.ShapeDtypeStruct`s of its arguments."""

    call: object
    args: tuple


def _a(shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def _i32(*shape):
    return _a(shape, jnp.int32)


FULL = Full()


def dense(d, mask=FULL, b=2, t=2048, h=8, k=8, dv=None, dtype=jnp.bfloat16, **how):
    """attention(), by default B2 T2048 H8."""
    args = _a((b, t, h, d), dtype), _a((b, t, k, d), dtype), _a((b, t, k, dv or d), dtype)
    return Config(functools.partial(jaxattn.attention, mask=mask, **how), args)


def varlen(d, make=None, n=4, t=2048, h=8, k=2, **how):
    """varlen_attention(); `make` builds mask and scores from arrays of the shapes given first."""
    args = _a((t, h, d)), _a((t, k, d)), _a((t, k, d)), _i32(n + 1), _i32(n + 1)
    return _made(functools.partial(jaxattn.varlen_attention, **how), args, make)


def paged(page_size, d=128, n=8, t=512, h=32, k=8, keys=2048, make=None, dv=None, **how):
    """paged_attention() over `keys` a sequence; decode where t == n."""
    width, pages = keys // page_size, n * keys // page_size
    cache = jaxattn.PagedKV(_a((pages, k, page_size, d)), _a((pages, k, page_size, dv or d)))
    args = _a((t, h, d)), cache, _i32(n, width), _i32(n), _i32(n + 1)
    return _made(functools.partial(jaxattn.paged_attention, **how), args, make)


def _made(call, args, make):
    if make is None:
        return Config(call, args)
    shapes, build = make
    last = len(args)
    return Config(lambda *xs: call(*xs[:last], **build(*xs[last:])), (*args, *shapes))


def _mask(shapes, build):
    return shapes, lambda *xs: {"mask": build(*xs)}


H, T, S, N = 32, 512, 2048, 8  # of paged(16)
ALL = {
    "dense full D64": dense(64),
    "dense causal D128": dense(128, Causal()),
    "dense full ViT-L/14-336": dense(64, b=4, t=577, h=16, k=16),
    "varlen causal D128": varlen(128, mask=Causal()),
    "decode page 16": paged(16, n=64, t=64),
    "mixed page 16": paged(16),
    "mixed page 128": paged(128),
    "mixed page 16 window, softcap, sinks": paged(
        16,
        mask=Window(1023, 0),
        score=Softcap(50.0),
        make=([_a((H,), jnp.float32)], lambda sinks: {"sinks": sinks}),
    ),
    "dense full D72": dense(72),
    "dense full D256": dense(256),
    "dense causal D192 Dv128": dense(192, Causal(), dv=128),
    "dense full D8, lse": dense(8, return_lse=True),
    "dense chunked": dense(128, Causal() & ChunkedLocal(512)),
    "varlen segments": varlen(
        64, _mask([_i32(2048), _i32(2048)], lambda q, k: Segments(q, k) & Causal())
    ),
    "dense causal D64 f32": dense(64, Causal(), t=256, dtype=jnp.float32),
    "decode page 1": paged(1, n=64, t=64),
    "decode page 128": paged(128, n=64, t=64),
    "decode MQA 71": paged(16, d=64, n=64, t=64, h=71, k=1),
    "mixed page 1": paged(1),
    "mixed window": paged(16, mask=Window(1023, 0)),
    "mixed ranges": paged(
        16, make=_mask([_i32(N, 4, 2)], lambda r: (Causal() & Window(1023)) | Ranges(r))
    ),
    "mixed segments": paged(
        16, make=_mask([_i32(T), _i32(N, S)], lambda q, k: Segments(q, k) & Causal())
    ),
    "mixed dense mask": paged(16, make=_mask([_a((1, T, S), jnp.bool_)], Dense)),
    "mixed alibi": paged(
        16, make=([_a((H,), jnp.float32)], lambda slopes: {"score": Alibi(slopes)})
    ),
    "mixed bias": paged(
        16, make=([_a((1, T, S), jnp.float32)], lambda bias: {"score": Bias(bias)})
    ),
}
# What ordinary runs compile for every generation; `-m every_chip` compiles the rest.
EVERYWHERE = (
    "dense causal D128",
    "dense full ViT-L/14-336",
    "decode page 16",
    "mixed page 16",
)


def marked() -> list:
    """All names; those that ordinary runs compile for one generation only carry `every_chip`."""
    return [
        name if name in EVERYWHERE else pytest.param(name, marks=pytest.mark.every_chip)
        for name in ALL
    ]
