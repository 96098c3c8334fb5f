"""The cases that every target is tested on, by name: a call, a mask, scores, sinks."""

import itertools
from typing import NamedTuple

import shapes
from problems import Call, Recipe
from recipes import MASKS, SCORES, chunked, softcap, window


class Case(NamedTuple):
    call: Call
    mask: Recipe = MASKS["causal"]
    score: tuple = ()
    with_sinks: bool = False
    scale: float | None = None


# Lengths that meet every mask in the middle of a tile, and small heads, so that compiling is all
# that a case costs.
SMALL = ((7, 90), (40, 40), (0, 9), (1, 64), (12, 5), (3, 0), (1, 33))
KINDS = {
    "paged": Call("paged", SMALL, (4, 2, 16, 24)),
    "varlen": Call("varlen", SMALL, (4, 2, 16, 24)),
    "attention": Call("attention", ((41, 90),) * 2, (4, 2, 16, 24)),
}


def tiny(named: dict) -> dict:
    """The same cases on calls as small as they can be: the TPU interpreter takes its time."""
    few = {
        "paged": Call("paged", ((7, 90), (1, 33), (12, 5), (2, 0)), (2, 1, 16, 24)),
        "varlen": Call("varlen", ((7, 90), (1, 33), (12, 5), (2, 0)), (2, 1, 16, 24)),
        "attention": Call("attention", ((9, 50),) * 2, (2, 1, 16, 24)),
    }
    return {name: case._replace(call=few[case.call.kind]) for name, case in named.items()}


def _rotate(named: dict) -> dict:
    """Each case in one of the three kinds in turn, so that every kind meets all of them in part."""
    kinds = itertools.cycle(KINDS.items())
    return {
        f"{kind}: {name}": case._replace(call=call)
        for (name, case), (kind, call) in zip(named.items(), kinds)  # noqa: B905 - endless
    }


def sample(named: dict, every: int, first: int = 0) -> dict:
    """Every so many of the cases."""
    return dict(itertools.islice(named.items(), first, None, every))


def _everywhere(named: dict) -> dict:
    return {
        f"{kind}: {name}": case._replace(call=call)
        for kind, call in KINDS.items()
        for name, case in named.items()
    }


def _score_cases(names) -> dict:
    return {" then ".join(n): Case(None, score=tuple(SCORES[one] for one in n)) for n in names}


ALONE = _everywhere(
    {name: Case(None, mask) for name, mask in MASKS.items()}
    | _score_cases((name,) for name in SCORES)
    | {"sinks": Case(None, with_sinks=True), "scale": Case(None, scale=0.9)}
)
# All of both signs are in test_masks.py, where they cost nothing.
MASK_PAIRS = _rotate(
    {
        f"{a} {sign} {b}": Case(None, MASKS[a] & MASKS[b] if sign == "&" else MASKS[a] | MASKS[b])
        for (a, b), sign in zip(
            itertools.combinations([m for m in MASKS if m != "full"], 2), itertools.cycle("&|")
        )
    }
)
SCORE_PAIRS = _rotate(_score_cases(itertools.permutations(SCORES, 2)))
MASK_AND_SCORE = _rotate(
    {
        f"{m}, {s}": Case(None, MASKS[m], (SCORES[s],), with_sinks=s == "softcap")
        for m, s in itertools.product(MASKS, SCORES)
        if m != "causal"
    }
)
MODELS_MASKED = {
    "gemma-3 with images": Case(
        Call("paged", ((70, 70), (9, 61), (1, 44)), (4, 1, 32, 32)),
        (MASKS["causal"] & window(16, None)) | MASKS["ranges"],
        (softcap(50.0),),
    ),
    "llama-4 chunks": Case(
        Call("paged", ((33, 65), (1, 64)), (5, 1, 32, 32)), MASKS["causal"] & chunked(32)
    ),
    "gpt-oss": Case(
        Call("paged", ((20, 50), (1, 70)), (8, 1, 32, 32)), window(16), with_sinks=True
    ),
    "bloom": Case(Call("attention", ((40, 40),), (4, 4, 32, 32)), score=(SCORES["alibi"],)),
}


def _paged(seqs, heads, page_size=16, dtype="f32", **more) -> Call:
    return Call("paged", tuple(seqs), heads, page_size, dtype, **more)


# Four sequences: prefill, chunk, decode and one with more queries than keys.
MIXED = ((19, 19), (8, 37), (1, 50), (6, 4))
GROUPS = {f"group {g}": Case(_paged(MIXED, (g, 1, 16, 16))) for g in shapes.GROUPS}
HEAD_DIMS = {f"D {d}": Case(_paged(MIXED, (2, 1, d, d))) for d in shapes.HEAD_DIMS} | {
    f"D {d} Dv {dv}": Case(_paged(MIXED, (2, 1, d, dv))) for d, dv in shapes.UNEQUAL_DIMS
}
PAGE_SIZES = {f"page {p}": Case(_paged(MIXED, (2, 1, 16, 16), p)) for p in shapes.PAGE_SIZES}
DTYPES = {
    f"{kind} {dtype}": Case(Call(kind, seqs, (4, 2, 32, 32), dtype=dtype))
    for kind, seqs in (("paged", MIXED), ("varlen", MIXED), ("attention", ((20, 37),)))
    for dtype in ("bf16", "f16")
}
EDGES = {
    f"{kind} {i}": Case(Call(kind, seqs, (4, 2, 16, 16)), mask, with_sinks=i % 2 == 1)
    for kind, mask in (("paged", MASKS["causal"]), ("varlen", MASKS["full"]))
    for i, seqs in enumerate(shapes.EDGES)
}
LARGE_LOGITS = {
    f"{kind}: logits of thousands, softcap": Case(
        Call(kind, seqs, (2, 1, 16, 16), spread=3000.0), score=(softcap(50.0),)
    )
    for kind, seqs in (("paged", MIXED), ("attention", ((20, 37),)))
} | {
    "paged: logits of hundreds": Case(Call("paged", MIXED, (2, 1, 16, 16), spread=100.0)),
}
FEATURES = MODELS_MASKED | GROUPS | HEAD_DIMS | PAGE_SIZES | DTYPES | EDGES | LARGE_LOGITS


def vit(lengths=shapes.VIT_LENGTHS, dtype="f32", batch=1, heads=2) -> dict:
    """No mask, scale D**-0.5, and logits so small that a padded key would shrink every output."""
    dims = (64, 72, 80)
    return {
        f"ViT {s} D {d} {dtype}": Case(
            Call("attention", ((s, s),) * batch, (heads, heads, d, d), dtype=dtype, spread=0.1),
            MASKS["full"],
        )
        for s, d in zip(lengths, itertools.cycle(dims))
    }


def vllm(dtype="bf16", heads=shapes.VLLM_HEADS, dims=shapes.VLLM_HEAD_DIMS) -> dict:
    """The grid of vLLM's unified attention test; a window of w is (w - 1, 0)."""
    return {
        f"vllm {i} H {h}/{k} D {d} window {w} cap {cap}": Case(
            _paged(seqs, (h, k, d, d), dtype=dtype, idle=0, padding=0),
            MASKS["causal"] if w is None else window(w - 1, 0),
            () if cap is None else (softcap(cap),),
        )
        for i, seqs in enumerate(shapes.VLLM_SEQS)
        for h, k in heads
        for d in dims
        for w in shapes.VLLM_WINDOWS
        for cap in shapes.VLLM_SOFTCAPS
    }


def flash(kind, seqs, heads, dims, pages=(16,), dtype="bf16") -> dict:
    """FlashAttention's varlen and kvcache tests: all their lengths in one packed call."""
    masks = {"full": MASKS["full"], "causal": MASKS["causal"], "local": window(63, 31)}
    return {
        f"flash {kind} H {h}/{k} D {d} page {page} {name} cap {cap}": Case(
            Call(kind, tuple(seqs), (h, k, d, d), page, dtype),
            mask,
            () if cap is None else (softcap(cap),),
        )
        for h, k in heads
        for d in dims
        for page in pages
        for name, mask in masks.items()
        for cap in (None, 15.0)
    }


def flashinfer(pages=(1, 16)) -> dict:
    """FlashInfer's mixed batches, some of them with fewer sequences."""
    return {
        f"flashinfer {i} page {page}": Case(
            _paged(seqs, (g, 1, 128, 128), page, "bf16"), score=(softcap(50.0),) * (i % 2)
        )
        for page in pages
        for i, (seqs, g) in enumerate(zip(shapes.FLASHINFER_MIXED, itertools.cycle((4, 8, 7, 1))))
    }


def models(dtype) -> dict:
    """Real models' head layouts, one kv head's worth of each, on a mixed paged batch."""
    return {
        name: Case(_paged(((70, 150), (1, 200), (33, 33)), _one_group(heads), 16, dtype))
        for name, heads in shapes.MODELS.items()
    }


def _one_group(heads):
    one = heads.one_group()
    return one.h, one.k, one.d, one.value_dim
