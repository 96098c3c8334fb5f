"""The oracle: naive float32 attention, one sequence at a time, sharing no formula with the kernels.

Names and signatures are those of the public functions, less `implementation`, `compiler` and
`tiles`. A dead slot is replaced before it is multiplied, so no NaN in it can leak. Memory grows
with T * S.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxattn import masks, scores

FULL, CAUSAL = masks.Full(), masks.Causal()

# What masks and scores do at query positions q [T, 1] and key positions k [S]. `of` takes from an
# array that they carry what is about the sequence at hand: an item, q_ids, k_ids, or a grid that
# broadcasts to [H, T, S].
KEEP = {
    masks.Full: lambda m, q, k, of: jnp.bool_(True),
    masks.Causal: lambda m, q, k, of: k <= q,
    masks.Window: lambda m, q, k, of: _within(k - q, m.left, m.right),
    masks.ChunkedLocal: lambda m, q, k, of: q // m.size == k // m.size,
    masks.Ranges: lambda m, q, k, of: _inside(of["item"](m.ranges.value)[..., None, None], q, k),
    masks.Segments: lambda m, q, k, of: of["q"](m.q_ids.value)[:, None] == of["k"](m.k_ids.value),
    masks.Dense: lambda m, q, k, of: of["grid"](m.kept.value),
    masks.And: lambda m, *at: KEEP[type(m.a)](m.a, *at) & KEEP[type(m.b)](m.b, *at),
    masks.Or: lambda m, *at: KEEP[type(m.a)](m.a, *at) | KEEP[type(m.b)](m.b, *at),
}
CHANGE = {
    scores.Softcap: lambda c, s, q, k, of: c.cap * jnp.tanh(s / c.cap),
    scores.Alibi: lambda c, s, q, k, of: s + c.slopes.value[:, None, None] * (k - q),
    scores.Bias: lambda c, s, q, k, of: s + of["grid"](c.bias.value),
}


def attention(q, k, v, *, mask=FULL, score=(), scale=None, sinks=None, return_lse=False):
    (b, t, h, _), s = q.shape, k.shape[1]

    def one(i):
        of = dict.fromkeys(("item", "q", "k"), lambda x: x[i])
        of["grid"] = lambda x: jnp.broadcast_to(x, (b, h, t, s))[i]
        return _sequence(q[i], k[i], v[i], t, s, of, mask, score, scale, sinks)

    state = lax.map(one, jnp.arange(b))
    return state if return_lse else state[0]


def varlen_attention(q, k, v, cu_q_lens, cu_k_lens, *, mask=FULL, score=(), scale=None,
                     sinks=None, return_lse=False):  # fmt: skip
    def own(n, x):  # packed keys: those of sequence n first, then dead ones; never an empty axis
        x = jnp.pad(x, [(0, 1)] + [(0, 0)] * (x.ndim - 1))
        return jnp.take(x, cu_k_lens[n] + jnp.arange(len(x)), 0, mode="clip")

    options = own, return_lse, mask, score, scale, sinks
    return _packed(q, k, v, cu_q_lens, jnp.diff(cu_k_lens), own, *options)


def paged_attention(q, cache, block_tables, seq_lens, cu_q_lens, *, mask=CAUSAL, score=(),
                    scale=None, sinks=None, return_lse=False):  # fmt: skip
    def own(n, pages):  # [P, K, page_size, D] -> [W * page_size, K, D]
        pages = jnp.take(pages, block_tables[n], 0, mode="clip").swapaxes(1, 2)
        return pages.reshape(-1, *pages.shape[2:])

    options = (lambda n, ids: ids[n]), return_lse, mask, score, scale, sinks
    return _packed(q, cache.k, cache.v, cu_q_lens, seq_lens, own, *options)


def merge_states(out_a, lse_a, out_b, lse_b):
    lse = jnp.logaddexp(lse_a, lse_b)
    w = [jnp.where(x > -jnp.inf, jnp.exp(x - lse), 0)[..., None] for x in (lse_a, lse_b)]
    return sum(jnp.where(x > 0, x * o, 0) for x, o in zip(w, (out_a, out_b), strict=True)), lse


def _packed(q, k, v, cu_q_lens, k_lens, own, own_ids, return_lse, *options):
    def step(state, n):
        rows, k_n, v_n = cu_q_lens[n] + jnp.arange(len(q)), own(n, k), own(n, v)

        def grid(x):  # the rows of this sequence; columns past the last are 0
            x = jnp.broadcast_to(x, (q.shape[1], len(q), jnp.shape(x)[-1]))
            x = jnp.take(x, rows, 1, mode="clip")
            return jnp.take(x, jnp.arange(len(k_n)), 2, mode="fill", fill_value=0)

        of = {"item": lambda x: x[n], "k": lambda x: own_ids(n, x), "grid": grid}
        q_n, of["q"] = jnp.take(q, rows, 0, mode="clip"), lambda x: jnp.take(x, rows, mode="clip")
        new = _sequence(q_n, k_n, v_n, cu_q_lens[n + 1] - cu_q_lens[n], k_lens[n], of, *options)
        put = jnp.where(rows < cu_q_lens[n + 1], rows, len(q))
        return tuple(a.at[put].set(b, mode="drop") for a, b in zip(state, new, strict=True)), None

    state = jnp.zeros((*q.shape[:2], v.shape[-1]), q.dtype), jnp.full(q.shape[:2], -jnp.inf)
    state, _ = lax.scan(step, state, jnp.arange(len(k_lens)))
    return state if return_lse else state[0]


def _sequence(q, k, v, q_len, k_len, of, mask, score, scale, sinks):
    """q [T, H, D], k [S, K, D], of which q_len and k_len count -> out [T, H, Dv], lse [T, H]."""
    (t, h, d), row, col = q.shape, jnp.arange(q.shape[0])[:, None], jnp.arange(k.shape[0])
    live, at = row < q_len, (k_len - q_len + row, col, of)
    keep = jnp.broadcast_to(live & (col < k_len) & KEEP[type(mask)](mask, *at), (h, t, len(col)))
    kv = (jnp.repeat(x.astype(jnp.float32), h // x.shape[1], axis=1) for x in (k, v))
    k, v = (jnp.where(keep.any(1).T[..., None], x, 0) for x in kv)
    q = jnp.where(live[..., None], q, 0).astype(jnp.float32)
    s = jnp.einsum("thd,shd->hts", q, k, precision="highest")
    s = s * (d**-0.5 if scale is None else scale)
    for change in score if isinstance(score, (tuple, list)) else (score,):
        s = CHANGE[type(change)](change, s, *at)
    s = jnp.where(keep, s, -jnp.inf)
    sink = -jnp.inf if sinks is None else jnp.asarray(sinks, jnp.float32)[:, None, None]
    sink = jnp.broadcast_to(sink, (h, t, 1))
    lse = jax.nn.logsumexp(jnp.concatenate([s, sink], axis=2), axis=2)
    p = jnp.where(s > -jnp.inf, jnp.exp(s - lse[..., None]), 0)
    lse = jnp.where(live[:, 0], lse, -jnp.inf)
    return jnp.einsum("hts,shd->thd", p, v, precision="highest").astype(q.dtype), lse.T


def _within(ahead, left, right):
    ok = jnp.bool_(True) if left is None else ahead >= -left
    return ok if right is None else ok & (ahead <= right)


def _inside(ranges, q, k):
    lo, hi = ranges[:, 0], ranges[:, 1]
    return ((lo <= q) & (q < hi) & (lo <= k) & (k < hi)).any(0)
