"""What results are checked against: `implementation="reference"` on slices that fit anywhere.

The oracle's memory grows with queries times keys, so it gets a few queries of a few sequences, and
the first and the last kv head. It runs on the host's CPU, in float32.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxattn
from scripts.bench.arrays import DTYPE, Arrays, sequence_keys
from scripts.bench.cases import Case

ROWS = 16
# Of a row's norm. bf16 keeps 8 bits: results are off by 0.2 % when rounded, and as much for the
# weights that kernels round before the second product.
TOLERANCE = 0.02


@dataclasses.dataclass(frozen=True)
class Expected:
    """``values f32[rows, G, D]`` at ``rows`` of the packed result and query heads ``heads``."""

    rows: slice
    heads: slice
    values: np.ndarray


class _Pick(NamedTuple):
    """``count`` queries of sequence n from its ``first``, and the keys before ``seen``."""

    n: int
    first: int
    count: int
    seen: int


def expected(case: Case, arrays: Arrays) -> list[Expected]:
    """The oracle's results for the first and last queries of some sequences."""
    found = []
    starts = np.cumsum([0, *case.q_lens])
    keys: dict[int, tuple] = {}
    for pick in _picks(case):
        if pick.n not in keys:
            keys = {pick.n: sequence_keys(case, arrays, pick.n)}
        k, v = keys[pick.n]
        start = int(starts[pick.n]) + pick.first
        rows = slice(start, start + pick.count)
        q = np.asarray(arrays.q[rows])
        for head in sorted({0, case.kv_heads - 1}):
            heads = slice(head * case.group, (head + 1) * case.group)
            own = slice(head, head + 1)
            out = _run(case, q[:, heads], k[: pick.seen, own], v[: pick.seen, own])
            found.append(Expected(rows, heads, out))
    return found


def warm(case: Case) -> None:
    """Compile what ``expected`` will run."""
    for count, seen in {(pick.count, pick.seen) for pick in _picks(case)}:
        k = np.zeros((seen, 1, case.head_dim), DTYPE)
        _run(case, np.zeros((count, case.group, case.head_dim), DTYPE), k, k)


def _run(case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    with jax.default_device(_host()):
        out = _reference(q[None], k[None], v[None], case.causal, case.window)
        return np.asarray(out[0], np.float32)


def _host() -> jax.Device | None:
    """The CPU, where XLA compiles quickly; the default device if JAX was told to leave it out."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


@functools.partial(jax.jit, static_argnums=(3, 4))
def _reference(q, k, v, causal, window):
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    return jaxattn.attention(q, k, v, mask=_mask(causal, window), implementation="reference")


def mask_of(case: Case):
    """The case's mask, as jaxattn spells it."""
    return _mask(case.causal, case.window)


def _mask(causal, window):
    if not causal:
        return jaxattn.Full()
    return jaxattn.Causal() if window is None else jaxattn.Window(window - 1, 0)


def error_of(out: np.ndarray, checks: list[Expected]) -> float:
    """The largest distance of a row and head of ``out [T, H, D]`` from the oracle, over its norm.

    Infinite if ``out`` holds anything that is not finite, also where the oracle did not look.
    """
    if not np.isfinite(out).all():
        return float("inf")
    worst = 0.0
    for check in checks:
        off = np.linalg.norm(out[check.rows, check.heads] - check.values, axis=-1)
        norm = np.linalg.norm(check.values, axis=-1)
        worst = max(worst, float((off / np.maximum(norm, 1e-6)).max()))
    return worst


def _picks(case: Case) -> list[_Pick]:
    """The first and last queries of the first and last sequence, the shortest and the longest, and
    one with the most queries."""
    lengths = range(len(case.k_lens))
    chosen = {
        0,
        len(case.k_lens) - 1,
        min(lengths, key=case.k_lens.__getitem__),
        max(lengths, key=case.k_lens.__getitem__),
        max(lengths, key=case.q_lens.__getitem__),
    }
    picks = []
    for n in sorted(chosen):
        queries, keys = case.q_lens[n], case.k_lens[n]
        count = min(ROWS, queries)
        for first in sorted({0, queries - count}):
            # Later queries out, and the keys that only they see: positions count from the end.
            seen = keys - queries + first + count if case.causal else keys
            picks.append(_Pick(n, first, count, seen))
    return picks
