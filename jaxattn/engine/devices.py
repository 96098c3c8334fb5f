"""Where the arrays of an engine lie: on one device, or on a mesh of replicas ("data"), each split
into shards ("model"). With several processes every one runs the same engine on the same requests;
what they compute has to be the same, and is checked in every step."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxattn.engine.config import EngineConfig
from jaxattn.paging import PagedKV

REPLICAS = PartitionSpec("data")
EACH_DEVICE = PartitionSpec(("data", "model"))


class Devices:
    """One device, or all of `mesh`."""

    def __init__(self, mesh: Mesh | None = None):
        self._mesh = mesh

    @property
    def replicas(self) -> int:
        """How many there are; each has a batch, pages and a scheduler of its own."""
        return 1 if self._mesh is None else self._mesh.shape["data"]

    def caches(self, spec: Mapping[str, Any], config: EngineConfig) -> tuple[PagedKV, ...]:
        """A cache a layer, with the pages of all replicas one after the other."""
        layer = {name: size for name, size in spec.items() if name != "num_layers"}

        def create():
            pages = config.num_pages * self.replicas
            return tuple(
                PagedKV.create(pages, config.page_size, **layer) for _ in range(spec["num_layers"])
            )

        if self._mesh is None:
            return create()
        split = spec["num_kv_heads"] % self._mesh.shape["model"] == 0
        place = self._on(PartitionSpec("data", "model") if split else REPLICAS)
        return jax.jit(create, out_shardings=place)()

    def compile(self, run: Callable, params: Any, size: int, caches: tuple[PagedKV, ...]):
        """`run(params, packed i32[size], caches) -> (ids i32[N], caches)`, which is of one replica,
        as a compiled function of all: (params, a packed array each, caches) -> (ids i32[R * N],
        whether all processes gave the same arrays, caches)."""
        if self._mesh is None:
            packed = jax.ShapeDtypeStruct((size,), jnp.int32)
            compiled = jax.jit(run, donate_argnums=2).lower(params, packed, caches).compile()

            def call(params, packed, caches):
                ids, caches = compiled(params, packed[0], caches)
                return ids, True, caches

            return call
        return self._compile_on_mesh(run, params, size, caches)

    def _compile_on_mesh(self, run, params, size, caches):
        one = jax.shard_map(
            run,
            mesh=self._mesh,
            in_specs=(PartitionSpec(), REPLICAS, REPLICAS),
            out_specs=(REPLICAS, REPLICAS),
            axis_names={"data"},
            check_vma=False,
        )

        def every(params, packed, digests, caches):
            ids, caches = one(params, packed, caches)
            return ids, jnp.max(digests) == jnp.min(digests), caches

        sizes = (size * self.replicas, REPLICAS), (self._mesh.size, EACH_DEVICE)
        shapes = [
            jax.ShapeDtypeStruct((n,), jnp.int32, sharding=self._on(spec)) for n, spec in sizes
        ]
        whole = self._on(PartitionSpec())  # so that every process can read it
        places = whole, whole, jax.tree.map(lambda x: x.sharding, caches)
        jitted = jax.jit(every, donate_argnums=3, out_shardings=places)
        compiled = jitted.lower(params, *shapes, caches).compile()

        def call(params, packed, caches):
            joined = np.concatenate(packed)
            digests = np.full(self._mesh.size, zlib.crc32(joined) >> 1, np.int32)
            arrays = (
                jax.make_array_from_callback(x.shape, self._on(spec), x.__getitem__)
                for x, spec in ((joined, REPLICAS), (digests, EACH_DEVICE))
            )
            return compiled(params, *arrays, caches)

        return call

    def _on(self, spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(self._mesh, spec)
