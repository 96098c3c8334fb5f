"""What XLA makes of plain attention: jax.nn.dot_product_attention, after a gather of the pages."""

import jax
import jax.numpy as jnp

from scripts.bench.arrays import contiguous
from scripts.bench.cases import Case
from scripts.bench.peers.presence import Unsuited
from scripts.bench.ways import JaxWay

MOST_LOGITS = 2**30  # elements: it keeps all of them, in float32
MOST_GATHERED = 2**32  # elements of keys and values, padded to the longest sequence


def absent() -> str | None:
    return None


def ways(case: Case) -> list[JaxWay]:
    longest_q, longest_k = max(case.q_lens), max(case.k_lens)
    if len(set(case.q_lens)) > 1:
        raise Unsuited("it has no batches of different query lengths")
    logits = len(case.q_lens) * case.heads * longest_q * longest_k
    if logits > MOST_LOGITS:
        raise Unsuited(f"it would keep {logits / 2**30:.1f} Gi logits")
    if case.page_size is None:
        return [JaxWay("xla", "", _attend(case), lambda arrays: contiguous(case, arrays))]
    gathered = len(case.q_lens) * longest_k * case.kv_heads * case.head_dim * 2
    if gathered > MOST_GATHERED:
        raise Unsuited(f"it would gather {gathered / 2**30:.1f} Gi elements of padded keys")
    return [JaxWay("xla", "", _paged(case), _paged_operands(case))]


def _attend(case: Case):
    def call(q, k, v, mask=None):
        return jax.nn.dot_product_attention(q, k, v, mask=mask, implementation="xla")

    if not case.causal:
        return call
    t, s = case.q_lens[0], case.k_lens[0]
    # is_causal would align at the top left.
    position = s - t + jnp.arange(t)[:, None]
    ahead = jnp.arange(s) - position
    mask = ahead <= 0 if case.window is None else (ahead <= 0) & (ahead > -case.window)
    return lambda q, k, v: call(q, k, v, mask)


def _paged(case: Case):
    def call(q, k, v, tables, seq_lens):
        n, t = q.shape[:2]
        k, v = (x[tables].reshape(n, -1, *x.shape[2:]) for x in (k, v))
        position = seq_lens[:, None] - t + jnp.arange(t)
        ahead = jnp.arange(k.shape[1]) - position[..., None]
        mask = ahead <= 0 if case.window is None else (ahead <= 0) & (ahead > -case.window)
        return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="xla")

    return call


def _paged_operands(case: Case):
    shape = (len(case.q_lens), case.q_lens[0], case.heads, case.head_dim)
    return lambda a: (a.q.reshape(shape), a.k, a.v, a.tables, a.seq_lens)
