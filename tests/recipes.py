"""Every mask and score by name: how it is built, and in numpy what it means."""

import math

import numpy as np
from problems import Call, Recipe

import jaxattn


def _each(call: Call, draw):
    """draw(rng, query length, key length) for every sequence, the same at every call."""
    return [draw(call.rng(f"sequence {n}"), *lens) for n, lens in enumerate(call.seqs)]


def _window(left, right):
    def means(call, n):
        q, k = call.positions(n)
        far = math.inf
        return (k >= q - (far if left is None else left)) & (
            k <= q + (far if right is None else right)
        )

    return Recipe(lambda call: jaxattn.Window(left, right), means)


def _chunked(size):
    def means(call, n):
        q, k = call.positions(n)
        return np.floor(q / size) == np.floor(k / size)

    return Recipe(lambda call: jaxattn.ChunkedLocal(size), means)


def _draw_ranges(rng, q_len, k_len):
    """Three ranges, one unused: two that may overlap or stick out of the sequence."""
    a, b = sorted(rng.integers(-3, k_len + 4, 2))
    c = rng.integers(0, k_len + 1)
    return np.array([[a, b], [k_len, 0], [c, c + k_len // 3]], np.int32)


def _build_ranges(call):
    ranges = np.stack(_each(call, _draw_ranges))
    idle = np.full((call.idle, 3, 2), 5, np.int32)
    return jaxattn.Ranges(np.concatenate([ranges, idle]))


def _mean_ranges(call, n):
    q, k = call.positions(n)
    out = np.zeros((q.shape[0], k.shape[1]), bool)
    for start, end in _each(call, _draw_ranges)[n]:
        for i in range(q.shape[0]):
            for j in range(k.shape[1]):
                out[i, j] |= start <= q[i, 0] < end and start <= k[0, j] < end
    return out


def _draw_segments(rng, q_len, k_len):
    """Ids that grow along the keys, and the queries', which are the last keys where that fits."""
    k_ids = np.sort(rng.integers(0, 4, k_len)).astype(np.int32)
    q_ids = np.concatenate(
        [np.full(max(q_len - k_len, 0), 9, np.int32), k_ids[max(k_len - q_len, 0) :]]
    )
    return q_ids, k_ids


def _build_segments(call):
    q_ids, k_ids = zip(*_each(call, _draw_segments), strict=True)
    return jaxattn.Segments(call.pack_rows(q_ids, 2), call.pack_keys(k_ids, 2))


def _mean_segments(call, n):
    q_ids, k_ids = _each(call, _draw_segments)[n]
    return q_ids[:, None] == k_ids[None, :]


def _pairs(call, shape, draw):
    """Arrays [H or 1, T_n, S_n] from draw(rng, shape)."""
    return _each(call, lambda rng, q_len, k_len: draw(rng, (shape, q_len, k_len)))


def _draw_dense(rng, shape):
    """Two thirds kept, and some rows and columns not at all."""
    keep = rng.random(shape) < 0.67
    keep &= rng.random((1, shape[1], 1)) < 0.9
    return keep & (rng.random((1, 1, shape[2])) < 0.9)


def _dense(per_head):
    heads = lambda call: call.heads[0] if per_head else 1  # noqa: E731
    return Recipe(
        lambda call: jaxattn.Dense(call.pack_pairs(_pairs(call, heads(call), _draw_dense), True)),
        lambda call, n: _pairs(call, heads(call), _draw_dense)[n],
    )


def _causal(call, n):
    q, k = call.positions(n)
    return k <= q


MASKS = {
    "full": Recipe(lambda call: jaxattn.Full(), lambda call, n: np.ones((1, 1), bool)),
    "causal": Recipe(lambda call: jaxattn.Causal(), _causal),
    "left": _window(9, None),
    "window": _window(5, 0),
    "around": _window(11, 6),
    "chunked": _chunked(12),
    "ranges": Recipe(_build_ranges, _mean_ranges),
    "segments": Recipe(_build_segments, _mean_segments),
    "dense": _dense(per_head=False),
    "dense per head": _dense(per_head=True),
}


def window(left, right=0) -> Recipe:
    """A window of any size."""
    return _window(left, right)


def chunked(size) -> Recipe:
    """Chunks of any size."""
    return _chunked(size)


def softcap(cap) -> Recipe:
    def means(call, n):
        return lambda s: cap * np.tanh(s / cap)

    return Recipe(lambda call: jaxattn.Softcap(cap), means)


def _slopes(call):
    h = call.heads[0]
    return (2.0 ** (-8.0 * np.arange(1, h + 1) / h)).astype(np.float32)


def _mean_alibi(call, n):
    q, k = call.positions(n)
    return lambda s: s + _slopes(call).astype(np.float64)[:, None, None] * (k - q)


def _draw_bias(rng, shape):
    """Normal, with a tenth at -inf, as additive masks are."""
    bias = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.1, -np.inf, bias).astype(np.float32)


def _bias(per_head):
    heads = lambda call: call.heads[0] if per_head else 1  # noqa: E731
    return Recipe(
        lambda call: jaxattn.Bias(call.pack_pairs(_pairs(call, heads(call), _draw_bias), np.nan)),
        lambda call, n: lambda s: s + _pairs(call, heads(call), _draw_bias)[n],
    )


SCORES = {
    "softcap": softcap(2.0),
    "alibi": Recipe(lambda call: jaxattn.Alibi(_slopes(call)), _mean_alibi),
    "bias": _bias(per_head=False),
    "bias per head": _bias(per_head=True),
}


def sinks(call: Call):
    """f32[H], positive, negative and none at all."""
    x = call.rng("sinks").standard_normal(call.heads[0]).astype(np.float32) * 3
    x[-1] = -np.inf
    return x
