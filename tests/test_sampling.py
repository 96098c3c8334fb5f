"""Sampling on the device against a NumPy oracle: exact sets, then distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxattn.engine.sampling import SamplingRows, _first_above, kept_logits, sample
from jaxattn.engine.sequence import SamplingParams

VOCAB = 300  # not a multiple of the draw's block of 256
run = jax.jit(sample)
keep = jax.jit(kept_logits)


def rows(*settings_of_rows, seeds=None):
    """SamplingRows from (temperature, top_k, top_p, min_p) each."""
    t, k, p, m = zip(*settings_of_rows, strict=True)
    seeds = [[0, row] for row in range(len(t))] if seeds is None else seeds
    f32, i32 = jnp.float32, jnp.int32
    return SamplingRows(
        jnp.array(t, f32), jnp.array(k, i32), jnp.array(p, f32), jnp.array(m, f32),
        jnp.array(seeds, jnp.uint32),
    )  # fmt: skip


def oracle_keep(logits, temperature, top_k, top_p, min_p):
    """(bool[V], margin) in float64, by sorting: temperature, top-k, top-p, min-p in this order.

    The margin is how far the nearest token was from the edge of top-p or min-p: below float32's
    rounding either side is right.
    """
    x = logits.astype(np.float64) / temperature
    order = np.argsort(-x, kind="stable")
    p = np.exp(x[order] - x.max())
    if top_k:
        p[top_k:] = 0
    p /= p.sum()
    before = np.cumsum(p) - p
    kept = (p > 0) & ((before < top_p) if top_p < 1 else True) & (p >= min_p * p[0])
    margin = np.abs(before - top_p).min() if top_p < 1 else 1.0
    if 0 < min_p < 1:
        margin = min(margin, np.abs(p / p[0] - min_p).min())
    result = np.zeros(len(x), bool)
    result[order[kept]] = True
    return result, margin


def random_logits(seed, count=1, scale=3.0):
    return np.random.default_rng(seed).standard_normal((count, VOCAB)).astype(np.float32) * scale


SETTINGS = st.tuples(
    st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    st.sampled_from([0, 1, 2, 5, 50, 299, 300, 301, 2**31 - 1]),
    st.sampled_from([0.05, 0.3, 0.5, 0.9, 0.99, 1.0]),
    st.sampled_from([0.0, 0.01, 0.2, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.lists(SETTINGS, min_size=4, max_size=4))
def test_the_kept_sets_are_the_oracles(seed, each):
    logits = random_logits(seed, 4)
    kept = np.asarray(keep(logits, rows(*each))) > -np.inf
    for row, setting in enumerate(each):
        expected, margin = oracle_keep(logits[row], *setting)
        if margin > 2e-6:
            np.testing.assert_array_equal(kept[row], expected)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ((1.0, 2, 1.0, 0.0), [0, 3]),
        ((1.0, 0, 0.499, 0.0), [3]),
        ((1.0, 0, 0.51, 0.0), [0, 3]),
        ((1.0, 0, 0.8, 0.0), [0, 1, 3]),  # .5 + .25 falls short
        ((1.0, 2, 0.6, 0.0), [3]),  # of .5 and .25 the first is two thirds
        ((2.0, 0, 0.75, 0.0), [0, 1, 3]),  # .343 .243 .172 .121 .121: flatter
        ((1.0, 0, 1.0, 0.4), [0, 3]),
        ((1.0, 0, 1.0, 0.499), [0, 3]),
        ((1.0, 0, 1.0, 0.51), [3]),
        ((1.0, 0, 1.0, 1.0), [3]),
        ((1.0, 0, 1e-6, 0.0), [3]),
    ],
)
def test_known_sets(setting, expected):
    """Probabilities 1/4, 1/8, 1/16, 1/2, 1/16."""
    logits = jnp.log2(jnp.array([[0.25, 0.125, 0.0625, 0.5, 0.0625]])) * np.log(2)
    kept = np.flatnonzero(np.asarray(keep(logits, rows(setting)))[0] > -np.inf)
    np.testing.assert_array_equal(kept, expected)


def test_ties_with_the_last_kept_token_are_kept():
    logits = jnp.array([[1.0, 2.0, 2.0, 2.0, 0.0]])
    assert (np.asarray(keep(logits, rows((1.0, 2, 1.0, 0.0)))) > -np.inf).sum() == 3


def test_neighbouring_floats_are_told_apart():
    """The threshold is exact to the last bit: 100 logits one unit in the last place apart."""
    logits = np.full((1, 101), 8.0, np.float32)
    logits[0, 1:] = -np.arange(100) * 2.0**-20  # 8 to 16 below the largest: spaced as floats are
    for top_k in (2, 37, 64):
        kept = np.asarray(keep(logits, rows((1.0, top_k, 1.0, 0.0))))[0] > -np.inf
        np.testing.assert_array_equal(kept, np.arange(101) < top_k)


def test_rounding_never_draws_an_impossible_token():
    """Where the target reaches the whole sum, the last possible entry is taken."""
    weights = jnp.array([[0.0, 1.0, 2.0, 0.0, 0.0]] * 4)
    index, rest = _first_above(weights, jnp.array([0.0, 1.0, 2.5, 3.0]))
    np.testing.assert_array_equal(index, [1, 2, 2, 2])
    np.testing.assert_array_equal(rest, [0.0, 0.0, 1.5, 2.0])


@pytest.mark.parametrize(
    "setting",
    [(1.0, 0, 1.0, 0.0), (0.5, 0, 1.0, 0.0), (1.3, 12, 1.0, 0.0), (1.0, 0, 0.7, 0.0),
     (1.0, 0, 1.0, 0.1), (0.8, 40, 0.9, 0.02)],
)  # fmt: skip
def test_frequencies_follow_the_probabilities(setting):
    """A chi-square test over 20,000 positions of one seed."""
    draws = 20_000
    logits = random_logits(1, scale=2.0)[0]
    many = SamplingRows(*(jnp.repeat(x, draws, 0) for x in jax.tree.leaves(rows(setting))))
    ids = np.asarray(run(jnp.broadcast_to(logits, (draws, VOCAB)), many, jnp.arange(draws)))
    kept, _ = oracle_keep(logits, *setting)
    assert kept[ids].all()
    p = np.where(kept, np.exp(logits.astype(np.float64) / setting[0]), 0)
    expected = p / p.sum() * draws
    counts = np.bincount(ids, minlength=VOCAB)
    often = expected >= 5  # pool the rest, as the test asks for
    pooled = [(counts[often], expected[often])]
    if expected[~often].sum() > 0:
        pooled.append(([counts[~often].sum()], [expected[~often].sum()]))
    observed, wanted = (np.concatenate(x) for x in zip(*pooled, strict=True))
    chi2 = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(wanted) - 1
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom) + 8


def test_greedy_takes_the_first_of_the_largest():
    logits = random_logits(2, 3)
    logits[1, [40, 7, 200]] = 50.0
    ids = run(logits, rows(*[(0.0, 5, 0.3, 0.5)] * 3), jnp.zeros(3, jnp.int32))
    np.testing.assert_array_equal(ids, logits.argmax(-1))
    assert ids[1] == 7


def test_a_greedy_row_is_the_same_beside_sampled_ones():
    logits = random_logits(3, 2)
    ids = run(logits, rows((0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0)), jnp.array([5, 6]))
    assert ids[0] == logits[0].argmax()


def test_a_row_is_the_same_alone_and_in_any_batch():
    """The same seed and position give the same id, whatever the row and its neighbours."""
    logits = random_logits(4)[0]
    setting, seed, position = (1.0, 50, 0.95, 0.01), [3, 1234], 77
    alone = int(run(logits[None], rows(setting, seeds=[seed]), jnp.array([position]))[0])
    for row in range(4):
        others = random_logits(5 + row, 4)
        others[row] = logits
        each = [(0.0, 0, 1.0, 0.0), (2.0, 0, 1.0, 0.0), (1.0, 3, 0.5, 0.0), (0.3, 0, 0.9, 0.2)]
        each[row] = setting
        seeds = [[9, 9], [0, 1], [7, 7], [2, 2]]
        seeds[row] = seed
        positions = jnp.array([1, 2, 3, 4]).at[row].set(position)
        assert int(run(others, rows(*each, seeds=seeds), positions)[row]) == alone


def test_seed_halves_and_position_all_count():
    logits = np.zeros((1, VOCAB), np.float32)
    setting = (1.0, 0, 1.0, 0.0)

    def draw(high, low, position):
        return int(run(logits, rows(setting, seeds=[[high, low]]), jnp.array([position]))[0])

    base = [draw(0, 0, position) for position in range(8)]
    assert len(set(base)) > 4
    assert base != [draw(0, 1, position) for position in range(8)]
    assert base != [draw(1, 0, position) for position in range(8)]
    assert base == [draw(0, 0, position) for position in range(8)]


def test_a_token_of_no_probability_is_never_drawn():
    """Also where one weight swamps the running sum and where most blocks are empty."""
    logits = np.full((64, VOCAB), -np.inf, np.float32)
    logits[:, 299] = 0.0
    logits[:, 3] = -20.0
    many = rows(*[(1.0, 0, 1.0, 0.0)] * 64)
    ids = np.asarray(run(logits, many, jnp.arange(64)))
    assert set(ids.tolist()) <= {3, 299}
    assert (ids == 299).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_reported(temperature, bad):
    logits = random_logits(6, 3)
    logits[1, 17] = bad
    ids = np.asarray(run(logits, rows(*[(temperature, 0, 1.0, 0.0)] * 3), jnp.zeros(3, jnp.int32)))
    assert ids[1] == -1
    assert ids[0] >= 0
    assert ids[2] >= 0


def test_a_new_setting_does_not_compile_again():
    logits = random_logits(7, 2)
    before = run._cache_size()
    for setting in [(0.0, 0, 1.0, 0.0), (0.9, 7, 0.8, 0.1), (1.4, 2, 1.0, 0.0)]:
        run(logits, rows(setting, setting), jnp.array([1, 2]))
    assert run._cache_size() - before <= 1


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("max_new_tokens", 0, "at least 1"),
        ("temperature", -0.1, "0 .greedy. or a finite number from 1e-05 up"),
        ("temperature", float("nan"), "0 .greedy."),
        ("temperature", float("inf"), "0 .greedy."),
        ("temperature", 1e-9, "0 .greedy."),
        ("top_k", -1, "at least 0"),
        ("top_p", 0.0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_p", float("nan"), "above 0 and at most 1"),
        ("min_p", -0.01, "from 0 to 1"),
        ("min_p", 1.5, "from 0 to 1"),
        ("seed", -1, "from 0 to"),
        ("seed", 2**64, "from 0 to"),
        ("stop", ("a", ""), "at least one character"),
        ("stop", "text", "a tuple of strings"),
    ],
)
def test_bad_parameters_are_refused_by_name(field, value, rule):
    with pytest.raises(ValueError, match=f"{field} must be .*{rule}"):
        SamplingParams(**{field: value})
