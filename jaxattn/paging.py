"""The paged key/value cache of one layer.

Only this file and the targets' sources know its layout: ``k [P, K, page_size, D]`` and
``v [P, K, page_size, Dv]``, so that one head of one page is one contiguous block.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import export

from jaxattn.integers import arange, div, rem
from jaxattn.sharded import Arg, run_split, split_of

__all__ = ["DTYPES", "PagedKV"]

PAGE_SIZES = tuple(2**i for i in range(9))
DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32)  # what the kernels take


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PagedKV:
    """Keys and values of one layer in P pages of ``page_size`` tokens.

    A pytree: pass it through ``jax.jit`` with ``donate_argnames`` so that :meth:`append` writes in
    place. Slot ``page * page_size + offset`` names one token's place.
    """

    k: jax.Array
    v: jax.Array

    @classmethod
    def create(
        cls,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        head_dim_v: int | None = None,
        dtype=jnp.bfloat16,
    ) -> "PagedKV":
        """A zeroed cache.

        Raises:
          ValueError: a size is not positive, ``page_size`` is not a power of two up to 256, a head
            dim is not a multiple of 8 up to 256, or ``dtype`` is none that attention takes.
        """
        head_dim_v = head_dim if head_dim_v is None else head_dim_v
        for name, n in {"num_pages": num_pages, "num_kv_heads": num_kv_heads}.items():
            if n < 1:
                raise ValueError(f"{name}={n}: must be at least 1")
        for name, d in {"head_dim": head_dim, "head_dim_v": head_dim_v}.items():
            if d % 8 or not 8 <= d <= 256:
                raise ValueError(f"{name}={d}: must be a multiple of 8 from 8 to 256")
        if jnp.dtype(dtype) not in map(jnp.dtype, DTYPES):
            raise ValueError(f"dtype={dtype}: must be bfloat16, float16 or float32")
        if page_size not in PAGE_SIZES:
            raise ValueError(f"page_size={page_size}: must be a power of two from 1 to 256")
        shape = (num_pages, num_kv_heads, page_size)
        return cls(jnp.zeros((*shape, head_dim), dtype), jnp.zeros((*shape, head_dim_v), dtype))

    num_pages = property(lambda self: self.k.shape[0])
    num_kv_heads = property(lambda self: self.k.shape[1])
    page_size = property(lambda self: self.k.shape[2])
    head_dim = property(lambda self: self.k.shape[3])
    head_dim_v = property(lambda self: self.v.shape[3])
    dtype = property(lambda self: self.k.dtype)

    def check(self):
        """Raises ValueError if k and v, put together by hand, make no cache."""
        k, v = jnp.shape(self.k), jnp.shape(self.v)
        if len(k) != 4 or k[:3] != v[:3] or len(v) != 4 or k[2] not in PAGE_SIZES:
            raise ValueError(
                f"cache has k {k} and v {v}: they must be [P, K, page_size, D] and "
                f"[P, K, page_size, Dv] with page_size a power of two from 1 to 256"
            )

    def append(self, k: jax.Array, v: jax.Array, slots: jax.Array) -> "PagedKV":
        """The cache with ``k [T, K, D]`` and ``v [T, K, Dv]`` written at ``slots i32[T]``.

        Negative slots, and slots past the last page, are dropped. Two equal slots leave one of the
        two tokens, whichever.

        Raises:
          ValueError: shapes or dtypes do not fit the cache.
        """
        slots = jnp.asarray(slots)
        if slots.ndim != 1 or not jnp.issubdtype(slots.dtype, jnp.integer):
            raise ValueError(f"slots is {slots.dtype}{list(slots.shape)}: must be integers [T]")
        for name, new, old in (("k", k, self.k), ("v", v, self.v)):
            want = (slots.shape[0], old.shape[1], old.shape[3])
            if new.shape != want or new.dtype != old.dtype:
                raise ValueError(
                    f"{name} is {new.dtype}{list(new.shape)}: "
                    f"the cache takes {old.dtype}{list(want)}"
                )
        args = Arg("cache", self, "PK"), Arg("k", k, "TK"), Arg("v", v, "TK")
        split = split_of(args, batch=1, kv_heads=self.num_kv_heads)
        if split is not None:
            return run_split(Append(), split, (self, k, v, slots))
        if slots.dtype.itemsize > 4:
            slots = jnp.where(slots > jnp.iinfo(jnp.int32).max, -1, slots)
        slots = slots.astype(jnp.int32)
        # A negative index would count from the end: padding goes past the end instead.
        page = jnp.where(slots < 0, self.num_pages, div(slots, self.page_size))
        offset = jnp.where(slots < 0, 0, rem(slots, self.page_size))

        def write(old, new):
            return jax.lax.platform_dependent(
                old, new, page, offset, tpu=_write_rows, default=_write_heads
            )

        return PagedKV(write(self.k, k), write(self.v, v))

    def gather(self, block_table: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The pages ``block_table i32[W]`` as dense ``k [W * page_size, K, D]`` and v likewise."""

        def dense(x):
            pages = jnp.moveaxis(x[block_table], 1, 2)
            return pages.reshape(-1, *pages.shape[2:])

        return dense(self.k), dense(self.v)


def _write_heads(old, new, page, offset):
    return old.at[page, :, offset].set(new, mode="drop")


def _write_rows(old, new, page, offset):
    """By rows of one head. From a scatter over pages and offsets XLA makes two transposed copies of
    the whole cache on a TPU, in every step with many tokens."""
    num_pages, kv_heads, page_size, d = old.shape
    rows = (page[:, None] * kv_heads + arange(kv_heads)) * page_size + offset[:, None]
    rows = jnp.where(page[:, None] < num_pages, rows, num_pages * kv_heads * page_size)
    flat = old.reshape(-1, d).at[rows.reshape(-1)].set(new.reshape(-1, d), mode="drop")
    return flat.reshape(old.shape)


@dataclasses.dataclass(frozen=True)
class Append:
    """What one device of a mesh does in :meth:`PagedKV.append`."""

    def __call__(self, cache, k, v, slots):
        return cache.append(k, v, slots)

    def specs(self, split, args):
        cache, new = split.spec("PK"), split.spec("TK")
        return (cache, new, new, split.spec("T")), cache


# So that a program exported by `jax.export` can take a cache. A cache has no static part.
export.register_pytree_node_serialization(
    PagedKV,
    serialized_name="jaxattn.PagedKV",
    serialize_auxdata=lambda _: b"",
    deserialize_auxdata=lambda _: (),
)
