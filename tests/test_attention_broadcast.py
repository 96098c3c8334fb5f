"""Dense masks and biases in every shape that broadcasts, in every kind of call."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import agree, jitted
from problems import Call

import jaxattn
from jaxattn import Bias, Dense

B, H, T, S = 2, 4, 9, 40
DENSE = Call("attention", ((T, S),) * B, (H, 2, 16, 16))
PACKED = {
    kind: Call(kind, ((6, 25), (1, S), (3, 9)), (H, 2, 16, 16)) for kind in ("varlen", "paged")
}
ROWS = PACKED["paged"].rows
SHAPES = {
    "attention": [
        (S,), (T, S), (H, T, S), (H, 1, S), (1, T, 1), (B, 1, 1, S), (B, H, 1, S), (1, H, T, S),
        (B, 1, T, S), (B, H, T, 1), (1, 1, 1, 1),
    ],
    "varlen": [(S,), (ROWS, S), (H, 1, S), (1, ROWS, S), (H, ROWS, S)],
}  # fmt: skip
SHAPES["paged"] = SHAPES["varlen"]


def check(kind, operand, target):
    call = DENSE if kind == "attention" else PACKED[kind]
    args = jax.tree.map(jnp.asarray, call.args())
    how = {"mask": jaxattn.Full()} | operand
    want = jitted(kind, "oracle", None, None, None)(*args, **how)
    with contextlib.nullcontext() if target == "xla" else jaxattn.interpret():
        got = jitted(kind, target, None, None, None)(*args, **how)
    agree(got, want, 1e-5)


def operands(shape):
    rng = np.random.default_rng(len(shape))
    keep, bias = rng.random(shape) < 0.7, rng.standard_normal(shape).astype(np.float32)
    return {"mask": Dense(jnp.asarray(keep)), "score": Bias(jnp.asarray(bias))}


ALL = [(kind, shape) for kind, shapes in SHAPES.items() for shape in shapes]


@pytest.mark.parametrize(("kind", "shape"), ALL)
def test_xla(kind, shape):
    check(kind, operands(shape), "xla")


@pytest.mark.parametrize(("kind", "shape"), ALL[::4])
def test_triton(kind, shape):
    check(kind, operands(shape), "triton")


@pytest.mark.parametrize(("kind", "shape"), ALL[1::4])
def test_mosaic(kind, shape):
    check(kind, operands(shape), "mosaic")


@pytest.mark.parametrize("columns", [2, 30, S + 9])
@pytest.mark.parametrize("target", ["xla", "triton", "mosaic"])
def test_keys_past_the_last_column(columns, target):
    """A dense mask does not keep them, a bias adds nothing to them."""
    shape = (ROWS, columns)
    check("paged", {"mask": Dense(jnp.ones(shape, bool))}, target)
    check("varlen", {"score": operands(shape)["score"]}, target)
