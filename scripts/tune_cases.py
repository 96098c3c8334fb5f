"""The launches that `scripts.tune` tunes: their sizes, their arrays, and their right results."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxattn.tuning import MOST_FEW, Shape
from scripts import case_text

KINDS = ("full", "prefill", "decode")
DTYPES = {16: "float16", 32: "float32", None: "bfloat16"}
SYNTAX = case_text.syntax(
    "full (no mask), prefill or decode (causal)",
    "  V64       head dim of the values (default D)",
    "  F32       float32, or F16 float16; without it bfloat16",
)
# Logits of the reference that are in memory at a time, in bytes.
REFERENCE_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Case:
    """One launch of sequences that are all alike; its queries are the last of its keys."""

    seqs: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    page_size: int | None
    causal: bool
    dtype: str

    def __post_init__(self):
        case_text.check_heads(self.heads, self.kv_heads)
        case_text.check_head_dim("head_dim", self.head_dim)
        case_text.check_head_dim("head_dim_v", self.head_dim_v)
        case_text.check_page_size(self.page_size)
        case_text.check_lengths([(self.queries, self.keys)], self.seqs * self.keys)

    @property
    def few(self) -> bool:
        return self.queries <= MOST_FEW

    @property
    def name(self) -> str:
        """What `parse` reads."""
        kind = case_text.kind_of(self.causal, self.queries, self.keys)
        return case_text.spell(
            kind,
            [
                *case_text.spell_batch(kind, self.seqs, self.queries, self.keys),
                case_text.spell_heads(self.heads, self.kv_heads),
                f"D{self.head_dim}",
                f"V{self.head_dim_v}" if self.head_dim_v != self.head_dim else None,
                f"P{self.page_size}" if self.page_size is not None else None,
                {"float16": "F16", "float32": "F32"}.get(self.dtype),
            ],
        )

    @property
    def shape(self) -> Shape:
        pages = None if self.page_size is None else -(-self.keys // self.page_size)
        return Shape(
            few=self.few,
            dtype=self.dtype,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            group=self.heads // self.kv_heads,
            kv_heads=self.kv_heads,
            page_size=self.page_size,
            queries=self.queries,
            num_seqs=self.seqs,
            max_keys=self.keys if pages is None else pages * self.page_size,
            masked=self.causal,
            pair_operands=False,
        )


def parse(text: str) -> Case:
    """The case that ``text`` names, in the syntax of SYNTAX; ValueError if it names none."""
    try:
        fields = case_text.read(text, KINDS, "BSTHDVPF", "SHD")
        if fields.number("F") not in DTYPES:
            raise ValueError("F must be 16 or 32")
        seqs, queries, keys = fields.batch
        heads, kv_heads = fields.heads
        return Case(
            seqs=seqs,
            queries=queries,
            keys=keys,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=fields.number("D"),
            head_dim_v=fields.number("V", fields.number("D")),
            page_size=fields.number("P"),
            causal=fields.kind != "full",
            dtype=DTYPES[fields.number("F")],
        )
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error


# A run that is out of time has done the first ones. Llama-3-8B's heads where not said otherwise.
NAMES = (
    "decode:B16,S8192,H32/8,D128,P16",
    "decode:B128,S2048,H32/8,D128,P16",
    "decode:B1,S32768,H32/8,D128,P16",
    "prefill:B1,S8192,H32/8,D128,P16",
    "full:B64,S577,H16,D64",  # ViT-L/14 at 336 pixels
    "full:B128,S197,H12,D64",  # ViT-B/16 at 224
    # Decode: batch and context, then several queries at once, page sizes, groups, head dims.
    "decode:B64,S2048,H32/8,D128,P16",
    "decode:B256,S2048,H32/8,D128,P16",
    "decode:B1,S2048,H32/8,D128,P16",
    "decode:B1,S131072,H32/8,D128,P16",
    "decode:B4,S8192,H32/8,D128,P16",
    "decode:B16,S1024,H32/8,D128,P16",
    "decode:B32,S4096,H32/8,D128,P16",
    "decode:B32,S4096,T4,H32/8,D128,P16",
    "decode:B32,S4096,T8,H32/8,D128,P16",
    "decode:B16,S8192,H32/8,D128,P1",
    "decode:B16,S8192,H32/8,D128,P64",
    "decode:B16,S8192,H32/8,D128,P256",
    "decode:B16,S8192,H8,D128,P16",
    "decode:B16,S8192,H40/8,D128,P16",
    "decode:B16,S8192,H64/8,D128,P16",
    "decode:B1,S32768,H64/8,D64,P16",
    "decode:B16,S8192,H64/8,D64,P16",
    "decode:B128,S2048,H64/8,D64,P16",
    "decode:B16,S4096,H32/8,D80,P16",
    "decode:B16,S4096,H32/8,D96,P16",
    "decode:B1,S32768,H16/8,D256,P16",
    "decode:B16,S8192,H16/8,D256,P16",
    "decode:B128,S2048,H16/8,D256,P16",
    "full:B16,S8192,T1,H32/8,D128",
    "decode:B16,S4096,H32/8,D128,P16,F32",
    # Prefill, whole and in chunks.
    "prefill:B1,S2048,H32/8,D128,P16",
    "prefill:B8,S1024,H32/8,D128,P16",
    "prefill:B1,S512,H32/8,D128,P16",
    "decode:B1,S8192,T512,H32/8,D128,P16",
    "decode:B4,S2048,T256,H32/8,D128,P16",
    "prefill:B1,S8192,H32/8,D128,P1",
    "prefill:B1,S8192,H32/8,D128,P64",
    "prefill:B1,S8192,H32/8,D128,P256",
    "prefill:B1,S8192,H8,D128,P16",
    "prefill:B1,S8192,H40/8,D128,P16",
    "prefill:B1,S4096,H64/8,D64,P16",
    "prefill:B1,S4096,H32,D80,P16",
    "prefill:B1,S4096,H32,D96,P16",
    "prefill:B1,S4096,H16/8,D256,P16",
    "prefill:B1,S2048,H32/8,D128,P16,F32",
    # Dense batches: ViT-H/14, SigLIP-so400m and its neighbours, DINOv2.
    "full:B64,S257,H16,D80",
    "full:B32,S729,H16,D72",
    "full:B32,S729,H16,D96",
    "full:B32,S729,H16,D128",
    "full:B8,S1369,H16,D64",
    "full:B32,S577,H16,D64,F32",
    "full:B4,S4096,H16,D128",
    "prefill:B4,S4096,H16,D128",
    "prefill:B2,S4096,H16,D64",
    "full:B1,S4096,H16/8,D256",
)
# The whole machinery in seconds on a CPU.
SMALL_NAMES = (
    "decode:B3,S72,H4/2,D16,P16,F32",
    "decode:B2,S40,T9,H4/2,D16,V8,F32",
    "prefill:B1,S33,H2,D16,P8,F32",
)


def operands(case: Case) -> tuple[Any, ...]:
    """Random arrays of the call: q first. The pages of a cache lie in no order."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 4)
    make = lambda key, *shape: jax.random.normal(key, shape, jnp.float32).astype(case.dtype)  # noqa: E731
    b, t, s, h, k = case.seqs, case.queries, case.keys, case.heads, case.kv_heads
    if case.page_size is None:
        return (
            make(keys[0], b, t, h, case.head_dim),
            make(keys[1], b, s, k, case.head_dim),
            make(keys[2], b, s, k, case.head_dim_v),
        )
    from jaxattn import PagedKV

    width = -(-s // case.page_size)
    page = (b * width, k, case.page_size)
    return (
        make(keys[0], b * t, h, case.head_dim),
        PagedKV(make(keys[1], *page, case.head_dim), make(keys[2], *page, case.head_dim_v)),
        jax.random.permutation(keys[3], b * width).reshape(b, width).astype(jnp.int32),
        jnp.full((b,), s, jnp.int32),
        jnp.arange(b + 1, dtype=jnp.int32) * t,
    )


def call(case: Case, **options: Any) -> Callable[..., Any]:
    """The public function that takes `operands`, with options such as ``tiles``."""
    import functools

    from jaxattn import Causal, Full, attention, paged_attention

    function = attention if case.page_size is None else paged_attention
    return functools.partial(function, mask=Causal() if case.causal else Full(), **options)


def right(case: Case, arrays: tuple[Any, ...]) -> Any:
    """What the reference computes from `operands`, a few queries of every sequence at a time."""
    import jax
    import jax.numpy as jnp

    run = jax.jit(call(case, implementation="reference"))
    q, *rest = arrays
    b, t, s = case.seqs, case.queries, case.keys
    together = b if case.page_size is not None else 1  # sequences whose logits exist at once
    block = max(1, REFERENCE_BYTES // (4 * case.heads * s * together))
    q = q.reshape(b, t, *q.shape[-2:])
    parts = []
    for first in range(0, t, block):
        rows = q[:, first : first + block]
        count = rows.shape[1]
        seen = s - t + first + count if case.causal else s  # the last row of the part sees these
        if case.page_size is None:
            out = run(rows, *(x[:, :seen] for x in rest))
        else:
            cache, tables, *_ = rest
            lens, cu = jnp.full((b,), seen, jnp.int32), jnp.arange(b + 1, dtype=jnp.int32) * count
            out = run(rows.reshape(b * count, *q.shape[-2:]), cache, tables, lens, cu)
        parts.append(out.reshape(b, count, *out.shape[-2:]))
    return jnp.concatenate(parts, axis=1).reshape(*arrays[0].shape[:-1], case.head_dim_v)
