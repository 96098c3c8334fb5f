"""Random lengths against the oracle, in one bucket of shapes: one program serves them all."""

import jax
import numpy as np
from checking import agree
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_oracle import attend_all
from problems import Call
from recipes import MASKS

import jaxattn

ROWS, POOL, WIDTH = 36, 40, 12  # query rows, pages, columns of the block table

lengths = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 40)), min_size=3, max_size=3)
STEP = jax.jit(
    lambda q, cache, tables, lens, cu: jaxattn.paged_attention(
        q, cache, tables, lens, cu, implementation="xla", return_lse=True
    )
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seqs=lengths, seed=st.integers(0, 9))
def test_any_lengths_agree_with_the_oracle(seqs, seed):
    padding = ROWS - sum(q_len for q_len, _ in seqs)
    call = Call("paged", tuple(seqs), (2, 1, 8, 8), 4, seed=seed, padding=padding)
    q, cache, tables, lens, cu = call.args()
    pool = [np.full((POOL, *x.shape[1:]), np.nan, np.float32) for x in (cache.k, cache.v)]
    for to, x in zip(pool, (cache.k, cache.v), strict=True):
        to[: len(x)] = x
    table = np.full((len(lens), WIDTH), -1, np.int32)
    table[:, : tables.shape[1]] = tables
    got = STEP(q, jaxattn.PagedKV(*pool), table, lens, cu)
    agree(got, attend_all(call, MASKS["causal"]), 1e-5)
    assert STEP._cache_size() == 1
