"""The oracle against plain numpy in float64, every mask and score."""

import jax.numpy as jnp
import numpy as np
import pytest
from checking import agree, run
from numpy_oracle import attend_all
from problems import Call
from recipes import MASKS, SCORES, sinks

from jaxattn import reference

HEADS = (4, 2, 8, 16)
SEQS = ((5, 30), (9, 4), (0, 6), (3, 0), (1, 17), (12, 12))
CALLS = {
    "attention": Call("attention", ((11, 24),) * 2, HEADS),
    "varlen": Call("varlen", SEQS, HEADS),
    "paged": Call("paged", SEQS, HEADS, page_size=4),
}


def compare(call, mask, score=(), with_sinks=False, scale=None):
    want = attend_all(call, mask, score, scale, sinks(call) if with_sinks else None)
    agree(run(call, "oracle", mask, score, with_sinks, scale=scale), want, 1e-5)


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("mask", MASKS)
def test_masks(kind, mask):
    compare(CALLS[kind], MASKS[mask])


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("score", SCORES)
def test_scores(kind, score):
    compare(CALLS[kind], MASKS["causal"], (SCORES[score],))


@pytest.mark.parametrize("kind", CALLS)
def test_compositions(kind):
    mask = (MASKS["causal"] | MASKS["ranges"]) & MASKS["segments"]
    compare(CALLS[kind], mask, (SCORES["alibi"], SCORES["softcap"]), with_sinks=True, scale=0.7)


def test_scores_keep_their_order():
    call = CALLS["varlen"]
    one, two = SCORES["softcap"], SCORES["alibi"]
    compare(call, MASKS["causal"], (one, two))
    compare(call, MASKS["causal"], (two, one))
    a, b = (run(call, "oracle", score=order)[0] for order in ((one, two), (two, one)))
    assert np.abs(a - b).max() > 1e-3


def test_merge_of_halves_is_the_whole():
    call = CALLS["attention"]
    q, k, v = map(jnp.asarray, call.args())
    parts = slice(10), slice(10, None)
    halves = [reference.attention(q, k[:, s], v[:, s], return_lse=True) for s in parts]
    whole = reference.attention(q, k, v, return_lse=True)
    agree(reference.merge_states(*halves[0], *halves[1]), whole, 1e-6)
