"""FlashAttention-3 through its JAX binding: contiguous, and over a paged cache."""

from scripts.bench.arrays import contiguous
from scripts.bench.cases import Case
from scripts.bench.peers.presence import Unsuited, missing, no_gpu
from scripts.bench.ways import JaxWay

SPLITS = (1, 4, 16, 32)  # of the keys; the binding chooses none by itself


def absent() -> str | None:
    return no_gpu() or missing("flash_attn3_jax")


def ways(case: Case) -> list[JaxWay]:
    if len(set(case.q_lens)) > 1:
        raise Unsuited("its binding has no paged batches of different query lengths")
    found = []
    if case.uniform is not None and case.q_lens == case.k_lens:
        found.append(_contiguous(case))
    if case.page_size is not None:
        # Splitting is for few queries: a whole prompt fills the chip without.
        splits = SPLITS if max(case.q_lens) <= 16 else SPLITS[:1]
        found += [_paged(case, count) for count in splits]
    if not found:
        raise Unsuited("contiguous keys are compared on whole sequences only")
    return found


def _window(case: Case) -> tuple[int, int]:
    return (-1, -1) if case.window is None else (case.window - 1, 0)


def _contiguous(case: Case) -> JaxWay:
    import flash_attn3_jax

    def call(q, k, v):
        return flash_attn3_jax.flash_mha(q, k, v, is_causal=case.causal, window_size=_window(case))

    return JaxWay("fa3", "", call, lambda arrays: contiguous(case, arrays))


def _paged(case: Case, splits: int) -> JaxWay:
    import flash_attn3_jax

    def call(q, k, v, tables, seq_lens):
        return flash_attn3_jax.flash_mha_with_kvcache(
            q,
            k,
            v,
            cache_seqlens=seq_lens,
            page_table=tables,
            is_causal=case.causal,
            window_size=_window(case),
            num_splits=splits,
        )

    shape = (len(case.q_lens), case.q_lens[0], case.heads, case.head_dim)
    return JaxWay(
        "fa3 paged",
        f"num_splits {splits}",
        call,
        lambda a: (a.q.reshape(shape), a.k, a.v, a.tables, a.seq_lens),
    )
