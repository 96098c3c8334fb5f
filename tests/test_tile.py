"""The online softmax's pieces against float64 numpy: parts gathered, halves added, columns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_merge import by_hand, states

from jaxattn import tile

WIDTHS = (64, 16)  # the columns of an array of 80


def cut(x):
    """``x [..., 80]`` as the tuple of its columns."""
    return tuple(jnp.split(x, np.cumsum(WIDTHS)[:-1], axis=-1))


def whole(x):
    return jnp.concatenate(x, axis=-1)


def close(got, want, tolerance=1e-5):
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def gathered(out, lse, together, dv=None):
    """One row of the sets ``out f32[n, Dv], lse f32[n]``, so many at a time."""
    state = tile.init(None, out.shape[1] if dv is None else dv)
    for i in range(0, len(lse), together):
        some = jnp.asarray(out[i : i + together])
        some = some if dv is None else cut(some)
        state = tile.gather(state, some, jnp.asarray(lse[i : i + together]))
    return tile.finish(state)


@pytest.mark.parametrize("together", [1, 4, 32])
def test_gathered_parts_are_the_softmax_over_all(together):
    out, lse = states(13, tokens=6, heads=1, dim=80, empty=0.4)
    lse[:, 0] = -np.inf  # a row without keys
    lse[1:, 1] = -np.inf  # and of one part
    lse[:, 2] *= 1000  # lse far apart
    out[np.isneginf(lse)] = 0
    for row in range(out.shape[1]):
        want = by_hand(out[:, row, 0], lse[:, row, 0])
        close(gathered(out[:, row, 0], lse[:, row, 0], together), want)
    assert np.isneginf(gathered(out[:, 0, 0], lse[:, 0, 0], together)[1])


def test_gather_agrees_with_merge_states():
    out, lse = (x[:, 0, 0] for x in states(5, tokens=1, heads=1, empty=0.3))
    merged = jnp.asarray(out[0]), jnp.asarray(lse[0])
    for i in range(1, 5):
        merged = tile.merge(*merged, jnp.asarray(out[i]), jnp.asarray(lse[i]))
    close(gathered(out, lse, 2), merged)


def test_gathered_columns_are_the_whole():
    out, lse = (x[:, 0, 0] for x in states(9, tokens=1, heads=1, dim=80))
    columns, lse_columns = gathered(out, lse, 4, WIDTHS)
    close((whole(columns), lse_columns), gathered(out, lse, 4))


def arrays(dtype=jnp.float32, rows=7, keys=32, d=80, seed=0):
    """q, three tiles of k and of v, and which keys are kept of each."""
    rng = np.random.default_rng(seed)
    make = lambda *shape: jnp.asarray(rng.standard_normal(shape), dtype)  # noqa: E731
    keep = [None, jnp.asarray(rng.random((rows, keys)) < 0.5).at[0].set(False), None]
    return make(rows, d), make(3, keys, d), make(3, keys, d), keep


def in_numpy(q, k, v, keep, scale, sink=None):
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s = np.concatenate([q @ each.T for each in k], axis=1) * scale
    seen = [np.ones((len(q), k.shape[1]), bool) if each is None else each for each in keep]
    s = np.where(np.concatenate(seen, axis=1), s, -np.inf)
    values = np.concatenate(v)
    if sink is not None:
        s = np.concatenate([s, np.asarray(sink, np.float64)], axis=1)
        values = np.concatenate([values, np.zeros((1, v.shape[2]))])
    top = s.max(1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(1, keepdims=True)
    return p @ values / total, top + np.log(total)


def absorbed(q, k, v, keep, scale, split=lambda x: x, sink=None, flat=False):
    state = tile.init(len(q), WIDTHS if split is cut else v.shape[-1], sink, flat=flat)
    for i in range(len(k)):
        logits = tile.logits(split(q), split(k[i]), scale)
        state = tile.absorb(state, logits, split(v[i]), keep[i])
    return tile.finish(state)


@pytest.mark.parametrize("flat", [False, True])
def test_absorbed_tiles_are_the_softmax_over_all(flat):
    q, k, v, keep = arrays()
    sink = jnp.linspace(-2, 3, len(q))[:, None]
    for some in (None, sink):
        want = in_numpy(q, k, v, keep, 0.3, some)
        close(absorbed(q, k, v, keep, 0.3, sink=some, flat=flat), want)
        out, lse = absorbed(q, k, v, keep, 0.3, cut, some, flat)
        close((whole(out), lse), want)


def test_a_sink_is_in_the_first_part_only():
    """Parts of the keys, each by itself, gather to the whole with its sink once."""
    q, k, v, keep = arrays()
    sink = jnp.full((len(q), 1), 1.5)
    outs, lses = [], []
    for i in range(len(k)):
        state = tile.init(len(q), v.shape[-1], sink, jnp.asarray(i == 0))
        logits = tile.logits(q, k[i], 0.3)
        out, lse = tile.finish(tile.absorb(state, logits, v[i], keep[i]))
        outs.append(np.asarray(out)), lses.append(np.asarray(lse)[:, 0])
    out, lse = np.stack(outs), np.stack(lses)
    want_out, want_lse = in_numpy(q, k, v, keep, 0.3, sink)
    for row in range(len(q)):
        close(gathered(out[:, row], lse[:, row], 2), (want_out[row], want_lse[row, 0]))
