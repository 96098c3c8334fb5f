"""Compiled programs on the GPU at hand: what they compute once, and the memory they take."""

import functools

import jax
import jax.numpy as jnp
import pytest
from optimized import work

import jaxattn

pytestmark = pytest.mark.gpu

H, K, D, PAGE = 32, 8, 128, 16


def shapes(tokens, seqs, keys):
    """The arguments of paged_attention for sequences of at most ``keys`` keys."""
    width = keys // PAGE
    pages = jax.ShapeDtypeStruct((seqs * width, K, PAGE, D), jnp.bfloat16)
    ints = [jax.ShapeDtypeStruct(x, jnp.int32) for x in ((seqs, width), (seqs,), (seqs + 1,))]
    q = jax.ShapeDtypeStruct((tokens, H, D), jnp.bfloat16)
    return q, jaxattn.PagedKV(pages, pages), *ints


def layers(number, q, cache, *lengths):
    for _ in range(number):
        q = jaxattn.paged_attention(q, cache, *lengths, implementation="triton")
    return q


@pytest.mark.parametrize(
    ("tokens", "seqs", "keys"), [(32, 32, 8192), (600, 20, 4096)], ids=["decode", "mixed"]
)
def test_layers_share_their_work_items(tokens, seqs, keys):
    """Beside its kernels a layer costs nothing: what makes the table runs once a step."""
    args = shapes(tokens, seqs, keys)
    one, four = (work(functools.partial(layers, number), *args) for number in (1, 4))
    assert one["fusion"] > 0
    assert four == one


@pytest.mark.parametrize("seqs", [1, 3])
def test_memory_of_a_prefill_is_linear_in_its_length(seqs):
    taken = {}
    for length in (8192, 32_768):
        compiled = (
            jax.jit(functools.partial(layers, 1)).lower(*shapes(length, seqs, length)).compile()
        )
        taken[length] = compiled.memory_analysis().temp_size_in_bytes
    out = 8192 * H * D * 2  # bytes of the shorter one's result
    assert taken[32_768] <= 4.5 * max(taken[8192], out)
    assert taken[8192] <= 4 * out, "more than parts of results"
