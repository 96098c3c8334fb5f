"""How many pages fit."""

import jax
import jax.numpy as jnp
import pytest

from jaxattn import PagedKV
from jaxattn.engine.memory import default_pages, device_bytes, page_bytes, pages_in_memory

SPEC = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 16, "head_dim_v": 8, "dtype": jnp.bfloat16}


def test_page_bytes_are_those_of_the_caches():
    layer = {name: value for name, value in SPEC.items() if name != "num_layers"}
    caches = [PagedKV.create(5, 4, **layer) for _ in range(SPEC["num_layers"])]
    assert sum(x.nbytes for x in jax.tree.leaves(caches)) == 5 * page_bytes(SPEC, 4)
    same = {**SPEC, "head_dim_v": None}
    assert page_bytes(same, 4) == page_bytes({**SPEC, "head_dim_v": 16}, 4)


def test_a_fraction_of_the_memory():
    memory = device_bytes()
    assert memory > 2**28
    pages = pages_in_memory(SPEC, 4, 0.25)
    assert 0 <= memory * 0.25 - pages * page_bytes(SPEC, 4) < page_bytes(SPEC, 4)
    assert pages_in_memory(SPEC, 4, 0.5) in (2 * pages, 2 * pages + 1)
    assert default_pages(SPEC, 4, 100) == 100
    assert default_pages(SPEC, 4, 10**15) == pages_in_memory(SPEC, 4, 0.5)


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.01, float("nan")])
def test_a_bad_fraction_is_refused(fraction):
    with pytest.raises(ValueError, match="memory_fraction must be above 0 and at most 1"):
        pages_in_memory(SPEC, 4, fraction)


def test_memory_for_no_page_is_refused():
    with pytest.raises(ValueError, match=r"memory_fraction 1e-12 of .* holds no page of"):
        pages_in_memory(SPEC, 4, 1e-12)
