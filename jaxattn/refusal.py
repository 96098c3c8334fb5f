"""A reason not to run, carried to lowering: only there is it known which target was wanted."""

from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir

__all__ = ["refuse"]

_refuse_p = Primitive("refuse")
_refuse_p.multiple_results = True


def refuse(reason: str, shapes):
    """Arrays of ``shapes`` that raise ``ValueError(reason)`` when they are compiled or run."""
    shapes = tuple((tuple(s.shape), s.dtype) for s in shapes)
    return _refuse_p.bind(reason=reason, shapes=shapes)


@_refuse_p.def_abstract_eval
def _(*, reason, shapes):
    del reason
    return [ShapedArray(shape, dtype) for shape, dtype in shapes]


@_refuse_p.def_impl
def _(*, reason, shapes):
    raise ValueError(reason)


def _lower(ctx, *, reason, shapes):
    raise ValueError(reason)


mlir.register_lowering(_refuse_p, _lower)
