"""The work items of a step are computed once, whatever the number of layers.

Each layer's call computes them, as plain array operations on the same lengths, and XLA drops what
is computed already. tests/gpu looks at whole calls.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optimized import work

import jaxattn
from jaxattn import triton_items
from jaxattn.operands import Layout, bind
from jaxattn.problem import Paged, Problem

N, T, W = 6, 90, 40
RANGES = jaxattn.Causal() | jaxattn.Ranges(np.ones((N, 2, 2), np.int32))


def problem(q, cu, lens, mask):
    cache = jaxattn.PagedKV.create(N * W, 16, 2, 16, dtype=jnp.float32)
    tables = jnp.zeros((N, W), jnp.int32)
    return Problem(
        q=q, keys=Paged(cache, tables), cu_q_lens=cu, kv_lens=lens,
        key_base=jnp.arange(N, dtype=jnp.int32) * W * 16, mask=mask, scores=(), sinks=None,
        scale=1.0, max_keys=W * 16,
    )  # fmt: skip


def tables(layers, mask, qs, cu, lens):
    """The tables of a call's launches, of so many layers with queries of their own."""

    @jax.jit
    def layer(q):
        one = problem(q, cu, lens, bind(mask, Layout(N, 4, T, None, table_keys=W * 16)))
        return [
            triton_items.table(one, 16, wanted, block_q=4, **limits)
            for limits, wanted in (({"least": 9}, 0), ({"most": 8}, 32))
        ]

    return jax.tree.map(lambda *tables: sum(tables), *map(layer, qs[:layers]))


@pytest.mark.parametrize(
    ("mask", "search"), [(RANGES, "compare_all"), (jaxattn.Window(99), "sort")], ids=["few", "many"]
)
def test_tables_of_layers_are_one(mask, search, monkeypatch):
    if search == "sort":
        monkeypatch.setattr("jaxattn.schedule.SMALL_SEARCH", 0)
    qs = tuple(jnp.zeros((T, 4, 16)) for _ in range(5))
    lengths = jnp.arange(N + 1, dtype=jnp.int32) * 7, jnp.full(N, 300, jnp.int32)
    three, five = (work(functools.partial(tables, layers, mask), qs, *lengths) for layers in (3, 5))
    assert five == three
    assert three["fusion"] > 10
    assert ("sort" in three) == (search == "sort")
