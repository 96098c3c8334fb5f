"""The order in which one launch takes the items of two kinds."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxattn import triton_items

COUNT, KIND = triton_items.COLUMNS.index("count"), triton_items.KIND


def table(items, used, mark):
    """Items of which the first ``used`` have a query; column 0 tells them apart."""
    rows = np.zeros((items, 16), np.int32)
    rows[:, 0] = mark + np.arange(items)
    rows[:used, COUNT] = 1
    return jnp.asarray(rows)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_each_kind_is_spread_among_the_other(many, few, data):
    used_many = data.draw(st.integers(0, many))
    used_few = data.draw(st.integers(0, few))
    got = np.asarray(triton_items.mixed(table(many, used_many, 0), table(few, used_few, 1000)))
    used = got[:, COUNT] > 0
    assert used[: used_many + used_few].all()
    assert not used[used_many + used_few :].any()
    np.testing.assert_array_equal(got[:, KIND], got[:, 0] >= 1000)
    marks = got[used, 0]
    of_few = marks[marks >= 1000]
    np.testing.assert_array_equal(marks[marks < 1000], np.arange(used_many)[::-1])
    np.testing.assert_array_equal(of_few, 1000 + np.arange(used_few))
    if used_many and used_few:
        # However many have started, those of few are their share of them, to an item.
        share = np.cumsum(marks >= 1000) - np.arange(1, len(marks) + 1) * used_few / len(marks)
        assert np.abs(share).max() <= 1
    assert sorted(got[:, 0]) == [*range(many), *range(1000, 1000 + few)]
