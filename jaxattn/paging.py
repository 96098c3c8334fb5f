"""The paged key/value cache of one layer.

Only this file and the targets' sources know its layout: ``k [P, K, page_size, D]`` and
``v [P, K, page_size, Dv]``, so that one head of one page is one contiguous block.
"""

import dataclasses

import jax
import jax.numpy as jnp

__all__ = ["PagedKV"]


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
          ValueError: a size is not positive, or ``page_size`` is not a power of two up to 256.
        """
        for name, n in {
            "num_pages": num_pages,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
        }.items():
            if n < 1:
                raise ValueError(f"{name}={n}: must be at least 1")
        if page_size not in [2**i for i in range(9)]:
            raise ValueError(f"page_size={page_size}: must be a power of two from 1 to 256")
        shape = (num_pages, num_kv_heads, page_size)
        return cls(
            jnp.zeros((*shape, head_dim), dtype), jnp.zeros((*shape, head_dim_v or head_dim), dtype)
        )

    num_pages = property(lambda self: self.k.shape[0])
    num_kv_heads = property(lambda self: self.k.shape[1])
    page_size = property(lambda self: self.k.shape[2])
    head_dim = property(lambda self: self.k.shape[3])
    head_dim_v = property(lambda self: self.v.shape[3])
    dtype = property(lambda self: self.k.dtype)

    def append(self, k: jax.Array, v: jax.Array, slots: jax.Array) -> "PagedKV":
        """The cache with ``k [T, K, D]`` and ``v [T, K, Dv]`` written at ``slots i32[T]``.

        Negative slots, and slots past the last page, are dropped. Two equal slots leave one of the
        two tokens, whichever.

        Raises:
          ValueError: shapes or dtypes do not fit the cache.
        """
        slots = jnp.asarray(slots)
        if slots.ndim != 1:
            raise ValueError(f"slots has shape {slots.shape}: it must be [T]")
        for name, new, old in (("k", k, self.k), ("v", v, self.v)):
            want = (slots.shape[0], old.shape[1], old.shape[3])
            if new.shape != want or new.dtype != old.dtype:
                raise ValueError(
                    f"{name} is {new.dtype}{list(new.shape)}: "
                    f"the cache takes {old.dtype}{list(want)}"
                )
        # A negative index would count from the end: padding goes past the end instead.
        page = jnp.where(slots < 0, self.num_pages, slots // self.page_size)
        offset = jnp.where(slots < 0, 0, slots % self.page_size)

        def write(old, new):
            return old.at[page, :, offset].set(new, mode="drop")

        return PagedKV(write(self.k, k), write(self.v, v))

    def gather(self, block_table: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The pages ``block_table i32[W]`` as dense ``k [W * page_size, K, D]`` and v likewise."""

        def dense(x):
            pages = jnp.moveaxis(x[block_table], 1, 2)
            return pages.reshape(-1, *pages.shape[2:])

        return dense(self.k), dense(self.v)
