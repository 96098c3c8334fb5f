"""Seconds a call takes on the device, free of what launching it from Python costs.

A jitted function makes several calls in a row, each fed by the one before, and a round runs it
several times without waiting in between: the device is never idle while Python works. The calls
form one chain, so the compiler can neither merge nor drop nor overlap any of them.

What the calls share besides the chain (a schedule made of the same lengths, say) is computed once
for all calls of one jit, as it is for the layers of a model.
"""

import copy
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

ROUND_SECONDS = 0.015  # long against a launch, short enough for many rounds
UNROLLED = 32  # calls in one jit: as many as a model has layers; compile time grows with them
ROUNDS = 7
BUDGET_SECONDS = 1.0  # of one measurement; a slow implementation gets fewer rounds, 3 at least
LEAST_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per call of every round; ``calls`` were timed in each round."""

    rounds: tuple[float, ...]
    calls: int

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


class Chain:
    """``call(x, *rest)`` compiled as a chain of calls, and timed.

    Args:
      call: traceable by JAX; returns one array.
      x: what the result of a call replaces. Where the result has another shape or dtype, one
        element of it is written into x instead.
      rest: further arguments (pytrees), the same for all calls.
      guess: seconds a call will about take, which sizes the chain; None measures one call first
        and costs one more compilation.
      most: the longest chain.

    With ``guess`` given, x and rest may be ShapeDtypeStructs, and ``on`` brings the arrays.

    Raises:
      what compiling or running ``call`` raises.
    """

    def __init__(
        self,
        call: Callable,
        x: Any,
        *rest: Any,
        guess: float | None = None,
        most: int = UNROLLED,
    ):
        import jax

        self._x, self._rest = x, rest
        if guess is None:
            guess = wall_time(call, x, *rest, rounds=3).median
        self._unrolled = max(1, min(most, math.ceil(ROUND_SECONDS / max(guess, 1e-9))))

        step = jax.jit(call)  # traced once, however long the chain

        def chain(x, *rest):
            x, first = _link(step, x, rest)
            for _ in range(self._unrolled - 1):
                x, _ = _link(step, x, rest)
            return x, first

        self._run = jax.jit(chain).lower(x, *rest).compile()

    def on(self, x: Any, *rest: Any) -> "Chain":
        """The same compiled chain for other arrays of the same shapes."""
        other = copy.copy(self)
        other._x, other._rest = x, rest
        return other

    def first(self) -> Any:
        """The result of the first call, which got the caller's x."""
        return self._run(self._x, *self._rest)[1]

    def time(self, rounds: int = ROUNDS) -> Timing:
        """Time up to ``rounds`` rounds, fewer where BUDGET_SECONDS runs out."""
        self._seconds(1)
        once = self._seconds(1)
        repeats = max(1, round(ROUND_SECONDS / once))
        rounds = _affordable(rounds, repeats * once)
        calls = repeats * self._unrolled
        return Timing(tuple(self._seconds(repeats) / calls for _ in range(rounds)), calls)

    def _seconds(self, repeats: int) -> float:
        import jax

        x = self._x
        start = time.perf_counter()
        for _ in range(repeats):
            x, _ = self._run(x, *self._rest)
        jax.block_until_ready(x)
        return time.perf_counter() - start


def wall_time(call: Callable, *operands: Any, rounds: int = ROUNDS) -> Timing:
    """Seconds from a jitted call in Python to its result, waiting for each: launches included."""
    import jax

    run = jax.jit(call).lower(*operands).compile()
    for _ in range(2):
        jax.block_until_ready(run(*operands))

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(run(*operands))
        return time.perf_counter() - start

    return Timing(tuple(once() for _ in range(_affordable(rounds, once()))), 1)


def time_torch(call: Callable[[], Any], rounds: int = ROUNDS) -> Timing:
    """Device seconds of a PyTorch ``call()``, between CUDA events around a CUDA graph of calls.

    A call that cannot be captured is launched from Python instead: its time may then include gaps.
    """
    import torch

    for _ in range(2):
        call()
    torch.cuda.synchronize()
    once = _between_events(torch, call)
    calls = max(1, min(4 * UNROLLED, math.ceil(ROUND_SECONDS / once)))
    run = _captured(torch, call, calls) or (lambda: [call() for _ in range(calls)])
    _between_events(torch, run)
    rounds = _affordable(rounds, calls * once)
    return Timing(tuple(_between_events(torch, run) / calls for _ in range(rounds)), calls)


def _link(call: Callable, x: Any, rest: tuple) -> tuple[Any, Any]:
    """(x of the next call, result): the next x cannot be had without making the call."""
    out = call(x, *rest)
    if out.shape == x.shape and out.dtype == x.dtype:
        return out, out
    corner = (0,) * x.ndim
    return x.at[corner].set(out[(0,) * out.ndim].astype(x.dtype)), out


def _affordable(rounds: int, seconds: float) -> int:
    return min(rounds, max(LEAST_ROUNDS, int(BUDGET_SECONDS / max(seconds, 1e-9))))


def _captured(torch: Any, call: Callable, calls: int) -> Callable | None:
    """A function that replays ``calls`` calls as one CUDA graph; None if capturing them fails."""
    graph = torch.cuda.CUDAGraph()
    try:
        # Other threads of the process (JAX's) may call CUDA meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def _between_events(torch: Any, run: Callable) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
