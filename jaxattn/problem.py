"""One attention call in the form every target takes: packed queries, and keys behind a source."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxattn.masks import Mask
from jaxattn.operands import PerHead
from jaxattn.paging import PagedKV
from jaxattn.schedule import Schedule, item_bound, schedule, uniform_item

__all__ = ["COMPILERS", "Packed", "Paged", "Problem", "Tiles"]

COMPILERS = ("xla", "triton")  # of GPU kernels: the Triton inside XLA, and the official package
MOST = 1 << 20  # any number in Tiles: its products with a group stay in an int32


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Static tile sizes: queries an item, keys a tile. Rows of a tile are ``block_q * group``.

    The rest is for Triton, and None leaves it to the target. ``programs`` is how many programs a
    launch should have at least, by splitting long key ranges; 0 never splits. ``compiler`` is
    "xla" or "triton".
    """

    block_q: int
    block_k: int
    num_warps: int | None = None
    num_stages: int | None = None
    programs: int | None = None
    compiler: str | None = None

    def __post_init__(self):
        least = {"block_q": 1, "block_k": 1, "num_warps": 1, "num_stages": 1, "programs": 0}
        for name, lowest in least.items():
            n = getattr(self, name)
            if n is None and name not in ("block_q", "block_k"):
                continue
            if not isinstance(n, int) or isinstance(n, bool) or not lowest <= n <= MOST:
                rule = f"must be a whole number from {lowest} to {MOST}"
                raise ValueError(f"Tiles {name}={n!r}: {rule}")
        if self.compiler not in (None, *COMPILERS):
            names = " or ".join(COMPILERS)
            raise ValueError(f"Tiles compiler={self.compiler!r}: must be {names}")
        for name in ("block_k", "num_warps"):
            n = getattr(self, name) or 1
            if n & (n - 1):
                raise ValueError(f"Tiles {name}={n}: must be a power of two")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packed:
    """Dense keys: ``k [S, K, D]``, ``v [S, K, Dv]``; sequence n's start at row ``starts[n]``."""

    k: jax.Array
    v: jax.Array
    starts: jax.Array  # i32[N]

    num_kv_heads = property(lambda self: self.k.shape[1])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Paged:
    """Keys in a cache: key t of sequence n is in page ``tables[n, t // page_size]``."""

    cache: PagedKV
    tables: jax.Array  # i32[N, W]

    k = property(lambda self: self.cache.k)
    v = property(lambda self: self.cache.v)
    num_kv_heads = property(lambda self: self.cache.num_kv_heads)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Problem:
    """What to compute. Masks and scores hold operands already bound to the call's layout."""

    q: jax.Array  # [T, H, D]
    keys: Packed | Paged
    cu_q_lens: jax.Array  # i32[N + 1]
    kv_lens: jax.Array  # i32[N]
    key_base: jax.Array  # i32[N] where sequence n's entries of a PerKey operand begin
    mask: Mask
    scores: tuple
    sinks: PerHead | None
    scale: float = dataclasses.field(metadata={"static": True})
    max_keys: int = dataclasses.field(metadata={"static": True})  # no kv_len is longer
    # Queries of every sequence, when all are alike and none is padding; else None.
    uniform: int | None = dataclasses.field(default=None, metadata={"static": True})

    @property
    def group(self) -> int:
        """Query heads a kv head."""
        return self.q.shape[1] // self.keys.num_kv_heads

    @property
    def num_seqs(self) -> int:
        return self.kv_lens.shape[0]

    def num_items(self, block_q: int, least: int = 0, most: int | None = None) -> int:
        """How many work items there can be."""
        if self.uniform is not None:
            return self.num_seqs * -(-self.uniform // block_q)
        return item_bound(self.q.shape[0], self.num_seqs, block_q, least, most)

    def items(
        self, block_q: int, least: int = 0, most: int | None = None
    ) -> tuple[Schedule, jax.Array]:
        """The work items of the sequences with ``least`` to ``most`` queries, and kv_lens with an
        entry for the sequence of the padding rows."""
        kv_lens = jnp.append(self.kv_lens, 0).astype(jnp.int32)
        if self.uniform is None:
            return schedule(self.cu_q_lens, self.q.shape[0], block_q, least, most), kv_lens
        count = self.num_items(block_q)
        item = jnp.arange(count, dtype=jnp.int32)
        return Schedule(*uniform_item(item, self.uniform, block_q), jnp.int32(count)), kv_lens
