"""Running the GPU and TPU kernels on any machine by Pallas' interpreters, for tests."""

import contextlib
import contextvars
import dataclasses

__all__ = ["Interpreter", "current", "interpret"]


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """How the interpreters run: ``dma`` and ``detect_races`` are the TPU interpreter's."""

    dma: str = "on_wait"
    detect_races: bool = True


_current: contextvars.ContextVar[Interpreter | None] = contextvars.ContextVar(
    "interpreter", default=None
)


def current() -> Interpreter | None:
    """The interpreter in force, or None."""
    return _current.get()


@contextlib.contextmanager
def interpret(dma: str = "on_wait", detect_races: bool = True):
    """Inside this context ``implementation="mosaic"`` and ``"triton"`` run interpreted.

    It acts when a function is traced: call the ops directly, or jit inside the context.

    Raises:
      ValueError: ``dma`` is neither "on_wait" nor "eager".
    """
    if dma not in ("on_wait", "eager"):
        raise ValueError(f'dma={dma!r}: must be "on_wait" or "eager"')
    token = _current.set(Interpreter(dma, detect_races))
    try:
        yield
    finally:
        _current.reset(token)
