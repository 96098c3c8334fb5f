"""PagedKV: what append writes, drops and refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import PagedKV, paged_attention


def numbered(tokens, heads=2, dim=8, dtype=jnp.float32):
    x = jnp.arange(1, tokens * heads * dim + 1, dtype=jnp.float32).reshape(tokens, heads, dim)
    return x.astype(dtype)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_append_then_gather(page_size, dtype):
    cache = PagedKV.create(32 // page_size, page_size, 2, 8, dtype=dtype)
    slots = np.random.default_rng(0).permutation(32)[:9]
    k, v = numbered(9, dtype=dtype), -numbered(9, dtype=dtype)
    cache = cache.append(k, v, jnp.asarray(slots))
    got_k, got_v = cache.gather(jnp.arange(cache.num_pages))
    want = np.zeros((32, 2, 8), dtype)
    want[slots] = k
    np.testing.assert_array_equal(got_k, want)
    np.testing.assert_array_equal(got_v, -want)


@pytest.mark.parametrize("slot", [-1, -5, -(2**31), 32, 2**31 - 1])
def test_a_slot_outside_is_dropped(slot):
    cache = PagedKV.create(8, 4, 2, 8, dtype=jnp.float32)
    after = cache.append(numbered(1), numbered(1), jnp.array([slot], jnp.int32))
    assert not after.k.any()
    assert not after.v.any()


def test_append_keeps_what_was_there():
    cache = PagedKV.create(4, 4, 2, 8, head_dim_v=16, dtype=jnp.float32)
    step = jax.jit(PagedKV.append, donate_argnums=0)
    for slot in range(16):
        cache = step(cache, numbered(1) + slot, numbered(1, dim=16) - slot, jnp.array([slot]))
    k, v = cache.gather(jnp.arange(4))
    np.testing.assert_array_equal(k[:, 0, 0], 1 + np.arange(16))
    np.testing.assert_array_equal(v[:, 0, 0], 1 - np.arange(16))


def test_properties():
    cache = PagedKV.create(5, 16, 3, 24, head_dim_v=40)
    assert (cache.num_pages, cache.page_size, cache.num_kv_heads) == (5, 16, 3)
    assert (cache.head_dim, cache.head_dim_v, cache.dtype) == (24, 40, jnp.bfloat16)
    assert len(jax.tree.leaves(cache)) == 2


@pytest.mark.parametrize(
    ("sizes", "says"),
    [((0, 16, 2, 8), "num_pages=0"), ((4, 12, 2, 8), "page_size=12"), ((4, 512, 2, 8), "512")],
)
def test_bad_sizes_are_named(sizes, says):
    with pytest.raises(ValueError, match=says):
        PagedKV.create(*sizes)


@pytest.mark.parametrize(
    ("k", "v", "slots", "says"),
    [
        (numbered(2, heads=3), numbered(2), [0, 1], "k is"),
        (numbered(2), numbered(3), [0, 1], "v is"),
        (numbered(2, dtype=jnp.bfloat16), numbered(2), [0, 1], "bfloat16"),
        (numbered(2), numbered(2), [[0, 1]], "slots is int32"),
    ],
)
def test_append_refuses_what_does_not_fit(k, v, slots, says):
    cache = PagedKV.create(4, 4, 2, 8, dtype=jnp.float32)
    with pytest.raises(ValueError, match=says):
        cache.append(k, v, jnp.array(slots))


def test_a_prompt_written_token_by_token_reads_as_one_written_at_once():
    k, v, q = numbered(6) / 96, numbered(6) / 50, numbered(6, heads=4) / 192
    slots = jnp.array([9, 2, 14, 5, 0, 7])
    empty = PagedKV.create(16, 1, 2, 8, dtype=jnp.float32)
    slowly = empty
    for i in range(6):
        slowly = slowly.append(k[i : i + 1], v[i : i + 1], slots[i : i + 1])
    read = [
        paged_attention(q, cache, slots[None], jnp.array([6]), jnp.array([0, 6]))
        for cache in (empty.append(k, v, slots), slowly)
    ]
    np.testing.assert_array_equal(*read)
    assert np.abs(read[0]).max() > 0
