"""The operands of a case, the same for every implementation."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from scripts.bench.cases import Case

DTYPE = jnp.bfloat16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Arrays:
    """``q [T, H, D]``; keys in pages ``k, v [P, page_size, K, D]``, or contiguous ``[B, S, K, D]``.

    ``tables i32[N, W]`` (None without pages) names the pages, in no order; ``seq_lens i32[N]``;
    ``cu_q_lens i32[N + 1]``.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    tables: jax.Array | None
    seq_lens: jax.Array
    cu_q_lens: jax.Array


def make(case: Case) -> Arrays:
    """Standard normal q, k and v. Traceable."""
    tables = page_tables(case)
    if tables is None:
        b, _, s = case.uniform
        rows = (b, s)
    else:
        rows = (sum(_pages(case)), case.page_size)
    # A generator that compiles in half the time of the usual one.
    q_key, k_key, v_key = jax.random.split(jax.random.key(0, impl="rbg"), 3)
    keys = (*rows, case.kv_heads, case.head_dim)
    return Arrays(
        q=jax.random.normal(q_key, (sum(case.q_lens), case.heads, case.head_dim), DTYPE),
        k=jax.random.normal(k_key, keys, DTYPE),
        v=jax.random.normal(v_key, keys, DTYPE),
        tables=None if tables is None else jnp.asarray(tables),
        seq_lens=jnp.asarray(case.k_lens, jnp.int32),
        cu_q_lens=jnp.asarray(np.cumsum([0, *case.q_lens]), jnp.int32),
    )


def page_tables(case: Case) -> np.ndarray | None:
    """i32[N, W]: the pages of each sequence, shuffled over the whole cache; None without pages."""
    if case.page_size is None:
        return None
    counts = _pages(case)
    shuffled = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
    tables = np.zeros((len(counts), max(counts)), np.int32)
    tables[np.arange(tables.shape[1]) < np.array(counts)[:, None]] = shuffled
    return tables


def _pages(case: Case) -> list[int]:
    return [-(-length // case.page_size) for length in case.k_lens]


def contiguous(case: Case, arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q ``[B, T, H, D]`` and contiguous k, v ``[B, S, K, D]`` of a case with one length."""
    b, t, s = case.uniform
    q = arrays.q.reshape(b, t, case.heads, case.head_dim)
    if arrays.tables is None:
        return q, arrays.k, arrays.v

    def gather(pages):
        rows = pages[arrays.tables].reshape(b, -1, case.kv_heads, case.head_dim)
        return rows[:, :s]

    return q, gather(arrays.k), gather(arrays.v)


def sequence_keys(case: Case, arrays: Arrays, n: int) -> tuple[np.ndarray, np.ndarray]:
    """k and v ``[S, K, D]`` of sequence n, on the host."""
    if arrays.tables is None:
        return np.asarray(arrays.k[n]), np.asarray(arrays.v[n])
    pages = jnp.asarray(page_tables(case)[n, : _pages(case)[n]])

    def gather(cache):
        rows = np.asarray(cache[pages]).reshape(-1, case.kv_heads, case.head_dim)
        return rows[: case.k_lens[n]]

    return gather(arrays.k), gather(arrays.v)
