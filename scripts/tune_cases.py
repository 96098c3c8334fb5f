"""The launches that `scripts.tune` tunes: their sizes, their arrays, and their right results."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from jaxattn.tuning import Shape

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
RULE = (
    'must be like "few b16 q1 k8192 h32/8 d128 p16 causal bf16": few or many, sequences, queries '
    "and keys of each, heads (query/key), head dim (or D:DV), page size (left out: dense keys), "
    "causal (left out: every key) and bf16, f16 or f32"
)
# Logits of the reference that are in memory at a time, in bytes.
REFERENCE_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Case:
    """One launch of sequences that are all alike; its queries are the last of its keys."""

    few: bool
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
        if self.queries > self.keys:
            raise ValueError(f"case {self.name!r}: has more queries than keys")
        if self.heads % self.kv_heads:
            raise ValueError(f"case {self.name!r}: query heads must be a multiple of key heads")
        if self.page_size is not None and not self.causal:
            raise ValueError(f"case {self.name!r}: a paged case must be causal")

    @property
    def name(self) -> str:
        """What `parse` reads."""
        dims = (self.head_dim, self.head_dim_v)
        parts = [
            "few" if self.few else "many",
            f"b{self.seqs} q{self.queries} k{self.keys} h{self.heads}/{self.kv_heads}",
            f"d{dims[0]}" if dims[0] == dims[1] else f"d{dims[0]}:{dims[1]}",
            "" if self.page_size is None else f"p{self.page_size}",
            "causal" if self.causal else "",
            {long: short for short, long in DTYPES.items()}[self.dtype],
        ]
        return " ".join(part for part in parts if part)

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
    """The case that ``text`` names, or ValueError."""
    found = re.fullmatch(
        r"(few|many) b(\d+) q(\d+) k(\d+) h(\d+)/(\d+) d(\d+)(?::(\d+))?(?: p(\d+))?"
        r"( causal)?(?: (bf16|f16|f32))?",
        " ".join(text.split()),
    )
    if found is None or "0" in found.groups():
        raise ValueError(f"case {text!r}: {RULE}")
    kind, *sizes, causal, dtype = found.groups()
    seqs, queries, keys, heads, kv_heads, d, dv, page_size = (
        None if size is None else int(size) for size in sizes
    )
    return Case(
        kind == "few", seqs, queries, keys, heads, kv_heads, d, dv or d, page_size,
        causal is not None, DTYPES[dtype or "bf16"],
    )  # fmt: skip


# A run that is out of time has done the first ones. Llama-3-8B's heads where not said otherwise.
NAMES = (
    "few b16 q1 k8192 h32/8 d128 p16 causal",
    "few b128 q1 k2048 h32/8 d128 p16 causal",
    "few b1 q1 k32768 h32/8 d128 p16 causal",
    "many b1 q8192 k8192 h32/8 d128 p16 causal",
    "many b64 q577 k577 h16/16 d64",  # ViT-L/14 at 336 pixels
    "many b128 q197 k197 h12/12 d64",  # ViT-B/16 at 224
    # Decode: batch and context, then several queries at once, page sizes, groups, head dims.
    "few b64 q1 k2048 h32/8 d128 p16 causal",
    "few b256 q1 k2048 h32/8 d128 p16 causal",
    "few b1 q1 k2048 h32/8 d128 p16 causal",
    "few b1 q1 k131072 h32/8 d128 p16 causal",
    "few b4 q1 k8192 h32/8 d128 p16 causal",
    "few b16 q1 k1024 h32/8 d128 p16 causal",
    "few b32 q1 k4096 h32/8 d128 p16 causal",
    "few b32 q4 k4096 h32/8 d128 p16 causal",
    "few b32 q8 k4096 h32/8 d128 p16 causal",
    "few b16 q1 k8192 h32/8 d128 p1 causal",
    "few b16 q1 k8192 h32/8 d128 p64 causal",
    "few b16 q1 k8192 h32/8 d128 p256 causal",
    "few b16 q1 k8192 h8/8 d128 p16 causal",
    "few b16 q1 k8192 h40/8 d128 p16 causal",
    "few b16 q1 k8192 h64/8 d128 p16 causal",
    "few b1 q1 k32768 h64/8 d64 p16 causal",
    "few b16 q1 k8192 h64/8 d64 p16 causal",
    "few b128 q1 k2048 h64/8 d64 p16 causal",
    "few b16 q1 k4096 h32/8 d80 p16 causal",
    "few b16 q1 k4096 h32/8 d96 p16 causal",
    "few b1 q1 k32768 h16/8 d256 p16 causal",
    "few b16 q1 k8192 h16/8 d256 p16 causal",
    "few b128 q1 k2048 h16/8 d256 p16 causal",
    "few b16 q1 k8192 h32/8 d128",
    "few b16 q1 k4096 h32/8 d128 p16 causal f32",
    # Prefill, whole and in chunks.
    "many b1 q2048 k2048 h32/8 d128 p16 causal",
    "many b8 q1024 k1024 h32/8 d128 p16 causal",
    "many b1 q512 k512 h32/8 d128 p16 causal",
    "many b1 q512 k8192 h32/8 d128 p16 causal",
    "many b4 q256 k2048 h32/8 d128 p16 causal",
    "many b1 q8192 k8192 h32/8 d128 p1 causal",
    "many b1 q8192 k8192 h32/8 d128 p64 causal",
    "many b1 q8192 k8192 h32/8 d128 p256 causal",
    "many b1 q8192 k8192 h8/8 d128 p16 causal",
    "many b1 q8192 k8192 h40/8 d128 p16 causal",
    "many b1 q4096 k4096 h64/8 d64 p16 causal",
    "many b1 q4096 k4096 h32/32 d80 p16 causal",
    "many b1 q4096 k4096 h32/32 d96 p16 causal",
    "many b1 q4096 k4096 h16/8 d256 p16 causal",
    "many b1 q2048 k2048 h32/8 d128 p16 causal f32",
    # Dense batches: ViT-H/14, SigLIP-so400m and its neighbours, DINOv2.
    "many b64 q257 k257 h16/16 d80",
    "many b32 q729 k729 h16/16 d72",
    "many b32 q729 k729 h16/16 d96",
    "many b32 q729 k729 h16/16 d128",
    "many b8 q1369 k1369 h16/16 d64",
    "many b32 q577 k577 h16/16 d64 f32",
    "many b4 q4096 k4096 h16/16 d128",
    "many b4 q4096 k4096 h16/16 d128 causal",
    "many b2 q4096 k4096 h16/16 d64 causal",
    "many b1 q4096 k4096 h16/8 d256",
)
# The whole machinery in seconds on a CPU.
SMALL_NAMES = (
    "few b3 q1 k72 h4/2 d16 p16 causal f32",
    "many b2 q9 k40 h4/2 d16:8 causal f32",
    "many b1 q33 k33 h2/2 d16 p8 causal f32",
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
