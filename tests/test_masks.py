"""`keep` against plain numpy, and `span` against `keep`, for every mask and every pair of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import Call, kept
from recipes import MASKS

import jaxattn
from jaxattn import masks

CALL = Call("varlen", ((7, 41), (30, 30), (9, 4), (1, 17), (5, 0)), (2, 1, 8, 8))
PAIRS = {
    f"{a} {sign} {b}": MASKS[a] & MASKS[b] if sign == "&" else MASKS[a] | MASKS[b]
    for a, b in itertools.combinations(MASKS, 2)
    for sign in "&|"
}
COMPOSED = {
    "gemma-3 with images": (MASKS["causal"] & MASKS["left"]) | MASKS["ranges"],
    "ranges inside the window": (MASKS["causal"] | MASKS["ranges"]) & MASKS["around"],
    "documents with prefixes": (MASKS["causal"] | MASKS["ranges"]) & MASKS["segments"],
    "three chunked": MASKS["chunked"] & MASKS["causal"] & MASKS["left"],
}
ALL = MASKS | PAIRS | COMPOSED


class NumpyEnv:
    """What masks read, for one sequence and head of CALL."""

    def __init__(self, n, head):
        self.n, self.head = n, head
        self.rows = slice(CALL.cu_q_lens[n], CALL.cu_q_lens[n + 1])
        self.cols = slice(CALL.cu_k_lens[n], CALL.cu_k_lens[n + 1])

    def scalar(self, operand, *index):
        return operand.value[(self.n, *index)]

    def at_query(self, operand):
        return operand.value[self.rows, None]

    def at_key(self, operand):
        return operand.value[None, self.cols]

    def at_pair(self, operand):
        of_head = operand.value[self.head if len(operand.value) > 1 else 0]
        return of_head[self.rows, : CALL.seqs[self.n][1]]


@pytest.mark.parametrize("name", ALL)
def test_keep(name):
    mask, want = ALL[name].build(CALL), kept(CALL, ALL[name])
    for n, head in itertools.product(range(len(CALL.seqs)), range(2)):
        got = mask.keep(*map(jnp.asarray, CALL.positions(n)), NumpyEnv(n, head))
        shape = CALL.seqs[n]
        np.testing.assert_array_equal(np.broadcast_to(got, shape), want[n][head], f"sequence {n}")


@pytest.mark.parametrize("name", ALL)
def test_span(name):
    """No kept key lies outside the span, and every key in its full part is kept by all."""
    mask, want, rng = ALL[name].build(CALL), kept(CALL, ALL[name]), np.random.default_rng(0)
    for n, (q_len, k_len) in enumerate(CALL.seqs):
        for _ in range(8):
            first, last = sorted(rng.choice(q_len + 1, 2, replace=False))
            shift = k_len - q_len
            lo, hi, full_lo, full_hi = (
                int(x) for x in mask.span(int(first + shift), int(last + shift), NumpyEnv(n, 0))
            )
            k, keep = np.arange(k_len), want[n][:, first:last]
            where = f"sequence {n}, queries {first}:{last}, span {(lo, hi, full_lo, full_hi)}"
            assert not keep[..., (k < lo) | (k >= hi)].any(), f"{where}: a kept key outside"
            full = (k >= full_lo) & (k < full_hi) & (k >= lo) & (k < hi)
            assert keep[..., full].all(), f"{where}: the full part is not full"


@pytest.mark.parametrize(
    ("mask", "q", "span"),
    [
        (masks.Causal(), (100, 108), (0, 108, 0, 101)),
        (masks.Window(16, 0), (100, 108), (84, 108, 91, 101)),
        (masks.Window(3, 5), (100, 104), (97, 109, 100, 106)),
        (masks.ChunkedLocal(64), (60, 70), (0, 128, 64, 64)),
        (masks.ChunkedLocal(64), (70, 80), (64, 128, 64, 128)),
        (masks.Window(16, 0) & masks.Causal(), (100, 108), (84, 108, 91, 101)),
        (masks.Full(), (0, 1), (0, masks.FAR, 0, masks.FAR)),
    ],
)
def test_span_is_tight(mask, q, span):
    """A span that is merely safe would load tiles for nothing."""
    assert tuple(int(x) for x in mask.span(*q, None)) == span


def test_spans_of_a_union_join():
    ranges = np.array([[[10, 30]]], np.int32)
    mask = masks.Causal() | masks.Ranges(ranges)
    lo, hi, full_lo, full_hi = (int(x) for x in mask.span(12, 20, NumpyEnv(0, 0)))
    assert (lo, hi, full_lo, full_hi) == (0, 30, 0, 30)


@pytest.mark.parametrize("name", ["ranges", "segments", "dense", "causal & ranges"])
def test_masks_are_pytrees(name):
    mask = ALL[name].build(CALL)
    leaves, tree = jax.tree.flatten(mask)
    assert all(isinstance(x, np.ndarray) for x in leaves)
    assert jax.tree.structure(jax.tree.unflatten(tree, [jnp.asarray(x) for x in leaves])) == tree
    assert jax.eval_shape(lambda m: m, mask) is not None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: jaxattn.Window(-1, 0), "left=-1"),
        (lambda: jaxattn.Window(right=-2), "right=-2"),
        (lambda: jaxattn.ChunkedLocal(0), "size=0"),
        (lambda: jaxattn.Window(2.5), "left=2.5"),
        (lambda: jaxattn.Window(True), "left=True"),
        (lambda: jaxattn.ChunkedLocal(3.0), "size=3.0"),
    ],
)
def test_bad_values_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()
