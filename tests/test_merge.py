"""merge_states: against numpy, associative, order-free, and at home with empty sets."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn
from jaxattn import reference

# tokens, heads, dim: of vLLM's test_merge_attn_states.py.
SHAPES = [(256, 4, 32), (613, 8, 64), (512, 16, 128), (256, 4, 256)]


def states(n, tokens=7, heads=3, dim=8, seed=0, empty=0.2):
    """n parts of one softmax: outputs f32 and natural-log lse, some of them empty."""
    rng = np.random.default_rng(seed)
    out = rng.standard_normal((n, tokens, heads, dim)).astype(np.float32)
    lse = (rng.standard_normal((n, tokens, heads)) * 20).astype(np.float32)
    lse[rng.random(lse.shape) < empty] = -np.inf
    return out, lse


def by_hand(out, lse):
    """All parts at once in float64."""
    lse = lse.astype(np.float64)
    top = np.where(np.isneginf(lse.max(0)), 0, lse.max(0))
    w = np.exp(lse - top)
    total = w.sum(0)
    with np.errstate(divide="ignore"):
        merged_lse = top + np.log(total)
    w = w / np.where(total == 0, 1, total)
    return (w[..., None] * out).sum(0), merged_lse


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("merge", [jaxattn.merge_states, reference.merge_states])
def test_against_numpy(shape, merge):
    out, lse = states(2, *shape, empty=0.1)
    got = merge(*(jnp.asarray(x) for x in (out[0], lse[0], out[1], lse[1])))
    for mine, want in zip(got, by_hand(out, lse), strict=True):
        np.testing.assert_allclose(mine, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("left_first", [True, False])
def test_order_and_grouping_do_not_matter(order, left_first):
    out, lse = states(3, empty=0.3)
    a, b, c = ((jnp.asarray(out[i]), jnp.asarray(lse[i])) for i in order)
    merge = jaxattn.merge_states
    got = merge(*merge(*a, *b), *c) if left_first else merge(*a, *merge(*b, *c))
    for mine, want in zip(got, by_hand(out, lse), strict=True):
        np.testing.assert_allclose(mine, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("none", [-np.inf, np.inf])
@pytest.mark.parametrize("junk", [0.0, np.nan, np.inf])
def test_an_empty_set_changes_nothing_whatever_its_output(none, junk):
    """Bit for bit; some kernels say +inf for an empty set."""
    out, lse = states(1, empty=0)
    blank, no_lse = np.full_like(out[0], junk), np.full_like(lse[0], none)
    for got in (
        jaxattn.merge_states(*map(jnp.asarray, (out[0], lse[0], blank, no_lse))),
        jaxattn.merge_states(*map(jnp.asarray, (blank, no_lse, out[0], lse[0]))),
    ):
        np.testing.assert_array_equal(got[0], out[0])
        np.testing.assert_allclose(got[1], lse[0], rtol=1e-6)


def test_two_empty_sets_are_empty():
    got = jaxattn.merge_states(*map(jnp.asarray, (
        np.full((2, 1, 8), np.nan, np.float32), np.full((2, 1), -np.inf, np.float32),
    ) * 2))  # fmt: skip
    assert not got[0].any()
    assert np.isneginf(got[1]).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_keeps_the_dtype_of_the_outputs(dtype):
    out, lse = (jnp.asarray(x) for x in states(2))
    got = jaxattn.merge_states(out[0].astype(dtype), lse[0], out[1].astype(dtype), lse[1])
    assert got[0].dtype == dtype
    assert got[1].dtype == jnp.float32


def test_shapes_that_do_not_fit_are_named():
    out, lse = (jnp.asarray(x) for x in states(2))
    with pytest.raises(ValueError, match="lse_b"):
        jaxattn.merge_states(out[0], lse[0], out[1], lse[1].T)
