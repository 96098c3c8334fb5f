"""How many cache pages fit in memory."""

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

# Of the device's memory. The rest is for activations and, on a CPU, for the weights and everybody
# else.
DEFAULT_FRACTION = 0.5


def page_bytes(cache_spec: Mapping[str, Any], page_size: int) -> int:
    """Bytes of one page over all layers, keys and values.

    cache_spec: num_layers, num_kv_heads, head_dim, dtype, and head_dim_v where it differs.
    """
    dims = cache_spec["head_dim"] + (cache_spec.get("head_dim_v") or cache_spec["head_dim"])
    per_token = cache_spec["num_layers"] * cache_spec["num_kv_heads"] * dims
    return per_token * page_size * jnp.dtype(cache_spec["dtype"]).itemsize


def device_bytes() -> int:
    """Memory of the first device that the weights have left; on a CPU the machine's memory.

    What is free on a CPU changes from run to run, and with it would the number of pages and so the
    compiled programs, which could then never be found in a compilation cache.
    """
    stats = jax.local_devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def pages_in_memory(cache_spec: Mapping[str, Any], page_size: int, fraction: float) -> int:
    """Pages that fit in `fraction` of `device_bytes`. ValueError if not even one does."""
    if not 0 < fraction <= 1:
        raise ValueError(f"memory_fraction must be above 0 and at most 1, got {fraction}")
    memory, page = device_bytes(), page_bytes(cache_spec, page_size)
    pages = int(memory * fraction) // page
    if pages < 1:
        raise ValueError(
            f"memory_fraction {fraction} of {memory / 2**20:.0f} MiB holds no page of "
            f"{page / 2**20:.2f} MiB (page_size {page_size})"
        )
    return pages


def default_pages(cache_spec: Mapping[str, Any], page_size: int, wanted: int) -> int:
    """`wanted` pages, or as many as fit in DEFAULT_FRACTION of the memory."""
    return min(wanted, pages_in_memory(cache_spec, page_size, DEFAULT_FRACTION))
