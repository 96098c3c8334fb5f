"""A way to compute a case: how one implementation is called, with which operands."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from scripts.bench.arrays import Arrays


@dataclasses.dataclass(frozen=True)
class JaxWay:
    """``call(x, *rest)`` of ``operands(arrays) = (x, *rest)``, traceable, as timing.Chain has it.

    implementation: what the tables call it. variant: a setting of it; the fastest counts.
    packed: brings the result to the rows and heads of ``[T, H, D]``.
    """

    implementation: str
    variant: str
    call: Callable
    operands: Callable[[Arrays], tuple]
    packed: Callable[[Any], Any] = dataclasses.field(default=lambda out: out)


@dataclasses.dataclass(frozen=True)
class TorchWay:
    """``prepare(arrays)`` gives a function without arguments that PyTorch runs."""

    implementation: str
    variant: str
    prepare: Callable[[Arrays], Callable[[], Any]]
    packed: Callable[[Any], Any] = dataclasses.field(default=lambda out: out)


def rows_of(out: Any, heads: int) -> np.ndarray:
    """A result ``[B, T, H, D]`` or ``[T, H, D]`` as f32[T, H, D] on the host."""
    host = np.asarray(out, np.float32)
    return host.reshape(-1, heads, host.shape[-1])
