"""How the operations behave under JAX's own transformations and settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxattn
from jaxattn import Causal, PagedKV, Window, attention, paged_attention

RANDOM = np.random.default_rng(3)
Q = RANDOM.standard_normal((1, 5, 4, 16), np.float32)
K = RANDOM.standard_normal((1, 7, 2, 16), np.float32)
MASK = Causal() & Window(left=3)
WANT = attention(Q, K, K, mask=MASK, implementation="reference")


def test_numpy_arrays_and_lists_are_taken():
    np.testing.assert_allclose(attention(Q, K, K, mask=MASK), WANT, atol=1e-5)
    as_lists = attention(Q.tolist(), K.tolist(), K.tolist(), mask=MASK)
    np.testing.assert_allclose(as_lists, WANT, atol=1e-5)


def test_64_bit_jax_changes_nothing():
    with jax.enable_x64(True):
        out, lse = attention(Q, K, K, mask=MASK, return_lse=True)
        cache = PagedKV.create(4, 2, 2, 16, dtype=jnp.float32)
        cache = cache.append(K[0], K[0], np.arange(7))
        paged = paged_attention(Q[0], cache, np.arange(4)[None], [7], [0, 5], mask=MASK)
    assert out.dtype == lse.dtype == jnp.float32
    np.testing.assert_allclose(out, WANT, atol=1e-5)
    np.testing.assert_allclose(paged, WANT[0], atol=1e-5)


def test_slots_of_any_integer_type():
    cache = PagedKV.create(2, 256, 2, 16, dtype=jnp.float32)
    for dtype in (np.uint8, np.int16, np.int32):
        stored = cache.append(K[0], K[0], np.arange(7, dtype=dtype))
        np.testing.assert_array_equal(stored.gather(jnp.array([0]))[0][:7], K[0])


def test_vmap_equals_a_batch():
    stacked = jax.vmap(lambda q: attention(q[None], K, K, mask=MASK)[0])(np.stack([Q[0], -Q[0]]))
    np.testing.assert_allclose(stacked[0], WANT[0], atol=1e-5)


def test_a_gradient_is_refused_in_words_and_the_oracle_has_one():
    def loss(q, implementation=None):
        return attention(q, K, K, mask=MASK, implementation=implementation).sum()

    with pytest.raises(NotImplementedError, match="no gradient yet"):
        jax.grad(loss)(Q)
    assert np.isfinite(jax.grad(loss)(Q, "reference")).all()
    stopped = jax.grad(lambda q: (q * jax.lax.stop_gradient(attention(q, K, K))).sum())(Q)
    assert np.isfinite(stopped).all()


def test_a_mask_has_no_truth_value():
    with pytest.raises(TypeError, match="&"):
        Causal() and Window(3)


def test_masks_stack_like_other_pytrees():
    both = [jaxattn.Ranges(np.full((1, 1, 2), n)) for n in (1, 2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *both)
    assert jax.tree.leaves(stacked)[0].shape == (2, 1, 1, 2)
