"""How much arithmetic a case needs and how many bytes it has to move, term by term.

Only what the mask keeps counts, and only true columns of a head: padding is nobody's work.
"""

from scripts.bench.cases import Case

BYTES_PER_ELEMENT = 2  # bf16
# A multiplication and an addition in each of the two products, q k^T and p v.
FLOPS_PER_PAIR_AND_COLUMN = 2 * 2


def flops(case: Case) -> int:
    """4 * (pairs of a query and a key it sees) * H * D. The softmax is not counted."""
    lengths = zip(case.q_lens, case.k_lens, strict=True)
    pairs = sum(kept_pairs(q, k, case) for q, k in lengths)
    return FLOPS_PER_PAIR_AND_COLUMN * pairs * case.heads * case.head_dim


def kept_pairs(queries: int, keys: int, case: Case) -> int:
    """How many (query, key) pairs of one sequence the mask keeps."""
    if not case.causal:
        return queries * keys
    # Query i stands at position keys - queries + i and sees the keys up to its own.
    seen = range(keys - queries + 1, keys + 1)
    if case.window is None:
        return (seen[0] + seen[-1]) * queries // 2
    return sum(min(case.window, count) for count in seen)


def moved_bytes(case: Case) -> int:
    """q read once + out written once + k and v of every key that is seen read once."""
    column = case.head_dim * BYTES_PER_ELEMENT
    q = sum(case.q_lens) * case.heads * column
    out = q
    k = sum(seen_keys(t, s, case) for t, s in zip(case.q_lens, case.k_lens, strict=True))
    k *= case.kv_heads * column
    v = k
    return q + out + k + v


def seen_keys(queries: int, keys: int, case: Case) -> int:
    """How many keys of one sequence some query sees."""
    if case.window is None:
        return keys
    # The first query, at keys - queries, sees back to window - 1 keys before its own.
    return min(keys, queries - 1 + case.window)


def bound(case: Case, flops_per_second: float, bytes_per_second: float) -> tuple[float, str]:
    """(seconds that no implementation can beat, "compute" or "memory": which of the two limits)."""
    compute, memory = flops(case) / flops_per_second, moved_bytes(case) / bytes_per_second
    return max(compute, memory), "compute" if compute >= memory else "memory"
