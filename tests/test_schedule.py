"""Work items: every query row in one of them, whatever the lengths, and no more than the bound."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn import schedule as module
from jaxattn.schedule import find, item_bound, schedule, uniform_item
from jaxattn.tuning_shape import MOST_FEW

# The launches of a call: one for all sequences, or one for many queries and one for few.
ONE, BOTH = ((0, None),), ((MOST_FEW + 1, None), (0, MOST_FEW))


@functools.cache
def jitted(tokens, block_q, least, most):
    how = {"num_tokens": tokens, "block_q": block_q, "least": least, "most": most}
    return jax.jit(functools.partial(schedule, **how))


def draw(rng, seqs, tokens):
    """Query lengths of sequences that fill some of the rows: many empty, short, one long."""
    lens = rng.integers(0, rng.choice([1, 2, MOST_FEW + 2, 60]), seqs)
    if seqs:
        lens[rng.integers(seqs)] = rng.integers(0, tokens + 1)
    lens[rng.random(seqs) < 0.3] = rng.integers(MOST_FEW, MOST_FEW + 2)
    ends = np.minimum(np.cumsum([0, *lens]), tokens)
    return np.concatenate([[0], rng.permutation(np.diff(ends))]).cumsum().astype(np.int32)


def rows_of(cu, tokens, block_q, least, most):
    """The rows that the items of one launch have, each as often as it comes."""
    plan = jax.tree.map(np.asarray, jitted(tokens, block_q, least, most)(jnp.asarray(cu)))
    seqs = len(cu) - 1
    assert plan.seq.shape == (item_bound(tokens, seqs, block_q, least, most),)
    assert plan.items <= len(plan.seq), "more items than the bound"
    used = plan.count > 0
    assert used[: used.sum()].all(), "unused items are not last"
    assert used.sum() == plan.items
    begins = np.append(cu, tokens)
    rows = []
    for seq, start, count in zip(plan.seq[used], plan.start[used], plan.count[used], strict=True):
        assert count <= block_q
        assert start % block_q == 0
        q_len = begins[seq + 1] - begins[seq]
        assert start + count <= q_len
        if seq < seqs:
            assert q_len >= least
        assert most is None or (seq < seqs and q_len <= most)
        rows += range(begins[seq] + start, begins[seq] + start + count)
    return rows


@pytest.mark.parametrize("launches", [ONE, BOTH], ids=["one launch", "two"])
@pytest.mark.parametrize(
    ("seqs", "tokens", "block_q"),
    [(1, 1, 1), (1, 50, 16), (3, 40, 4), (8, 8, 16), (8, 100, 1), (20, 90, 7), (40, 500, 16)],
)
def test_every_row_is_in_one_item(seqs, tokens, block_q, launches):
    rng = np.random.default_rng(tokens)
    for _ in range(25):
        cu = draw(rng, seqs, tokens)
        rows = [row for each in launches for row in rows_of(cu, tokens, block_q, *each)]
        assert sorted(rows) == list(range(tokens))


@pytest.mark.parametrize("block_q", [1, 16])
def test_lengths_that_need_the_most_items(block_q):
    """One query more than fills a block, in as many sequences as there is room for."""
    for q_len in (1, MOST_FEW, MOST_FEW + 1, block_q + 1):
        tokens = 12 * q_len
        cu = (np.arange(13) * q_len).astype(np.int32)
        rows = [row for each in BOTH for row in rows_of(cu, tokens, block_q, *each)]
        assert sorted(rows) == list(range(tokens))


@pytest.mark.parametrize(("q_len", "block_q"), [(1, 1), (7, 3), (16, 16), (33, 16), (5, 64)])
def test_lengths_that_are_alike_need_no_table(q_len, block_q):
    seqs = 4
    cu = jnp.arange(seqs + 1, dtype=jnp.int32) * q_len
    plan = schedule(cu, seqs * q_len, block_q)
    n = int(plan.items)
    got = uniform_item(jnp.arange(n, dtype=jnp.int32), q_len, block_q)
    for mine, want in zip(got, (plan.seq, plan.start, plan.count), strict=True):
        np.testing.assert_array_equal(mine, want[:n])


def test_both_ways_to_search_find_the_same(monkeypatch):
    rng = np.random.default_rng(0)
    ends = jnp.asarray(np.cumsum(rng.integers(0, 4, 50)), jnp.int32)  # with repeated entries
    x = jnp.arange(-2, 120, dtype=jnp.int32)
    want = [int(np.sum(np.asarray(ends) <= i)) for i in np.asarray(x)]
    used = []
    search = jnp.searchsorted
    monkeypatch.setattr(
        jnp,
        "searchsorted",
        lambda *a, method, **k: used.append(method) or search(*a, method=method, **k),
    )
    for small in (0, ends.size * x.size):
        monkeypatch.setattr(module, "SMALL_SEARCH", small)
        found = find(ends, x)
        assert found.dtype == jnp.int32
        np.testing.assert_array_equal(found, want)
    assert len(set(used)) == 2
