"""A decoder on a mesh of devices with the axes "data" and "model".

Over "model" the heads, the feed-forward columns and the vocabulary are split, each where it divides
evenly; what does not is whole on every device. Over "data" there are replicas of the model, each
with a batch and a cache of its own: they share a program and nothing else. XLA adds the sums over
"model" that this needs: after the embedding and after each of the two outputs of a layer.

Arrays of a step with R replicas are those of the replicas, one after the other along the first
axis: tokens [R * T], cu_q_lens [R * (N + 1)], a cache's k [R * P, K, page_size, D]. Page numbers
and rows count within the replica.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from models import llama

AXES = ("data", "model")
# The axis of each weight that "model" splits, and what must divide for it. Others are whole.
SPLIT = {
    "embed": (0, "vocabulary"),
    "head": (0, "vocabulary"),
    "qkv": (0, "heads"),
    "qkv_bias": (0, "heads"),
    "out": (1, "heads"),
    "gate_up": (1, "columns"),
    "gate_up_bias": (1, "columns"),
    "down": (1, "columns"),
}
CACHE = PartitionSpec("data", "model")  # of a PagedKV's arrays, where heads are split
REPLICAS = PartitionSpec("data")  # of a batch's arrays


def make_mesh(data, model, devices=None):
    """A mesh of data * model devices; `devices` are those of a topology, or JAX's own."""
    return jax.make_mesh((data, model), AXES, axis_types=(AxisType.Auto,) * 2, devices=devices)


def kv_copies(config, shards):
    """How often each kv head is stored so that every one of `shards` devices has a whole number.

    With fewer kv heads than devices a head is on several, each with some of its query heads. 1 if
    copies do not help: then heads are not split.
    """
    copies = shards // math.gcd(config.num_kv_heads, shards)
    return copies if config.group_size % copies == 0 else 1


def for_shards(config, shards):
    """The Config of the same model with its kv heads stored `kv_copies` times."""
    copies = kv_copies(config, shards)
    return dataclasses.replace(config, num_kv_heads=config.num_kv_heads * copies)


def splits(config, shards):
    """What is split over "model": a set of "heads", "columns" and "vocabulary"."""
    sizes = {
        "heads": for_shards(config, shards).num_kv_heads,
        "columns": config.intermediate_size,
        "vocabulary": config.vocab_size,
    }
    return {name for name, size in sizes.items() if size % shards == 0}


def specs(config, shards):
    """A PartitionSpec for each of the flat params of the model, in their order."""
    _, state = llama.abstract(config)
    split = splits(config, shards)
    paths, _ = jax.tree.flatten_with_path(state)
    return [_spec(path, split) for path, _ in paths]


def _spec(path, split):
    names = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
    name = next((name for name in reversed(names) if name in SPLIT), None)
    if name is None or SPLIT[name][1] not in split:
        return PartitionSpec()
    return PartitionSpec(*[None] * SPLIT[name][0], "model")


def placer(config, mesh):
    """A function from a path in the model's state, as of `nnx.to_flat_state`, to the NamedSharding
    of the parameter there. `config` is `for_shards`."""
    split = splits(config, mesh.shape["model"])
    return lambda path: NamedSharding(mesh, _spec(path, split))


def cache_spec(config, shards):
    """The PartitionSpec of the arrays of a PagedKV."""
    return CACHE if "heads" in splits(config, shards) else REPLICAS


def abstract_params(config, mesh, dtype):
    """The params as ShapeDtypeStructs on the mesh, of a `config` that is `for_shards`."""
    _, state = llama.abstract(config, dtype)
    places = (NamedSharding(mesh, spec) for spec in specs(config, mesh.shape["model"]))
    return [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
        for x, place in zip(jax.tree.leaves(state), places, strict=True)
    ]


def over_replicas(step, mesh):
    """The step (params, arrays, caches) -> (results, caches) for all replicas on the mesh at once.

    `arrays` (a Batch, or what the engine packs), caches and results are those of the replicas, one
    after the other.
    """
    return jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(PartitionSpec(), REPLICAS, REPLICAS),
        out_specs=(REPLICAS, REPLICAS),
        axis_names={"data"},
        check_vma=False,
    )


def shard(loaded, mesh):
    """A `models.load`ed model on a mesh of `make_mesh`: params placed, step for all replicas.

    Its `cache_spec` is of one replica; place the caches' arrays by `cache_spec(config, shards)`.
    """
    shards = mesh.shape["model"]
    config = for_shards(loaded.config, shards)
    copies = kv_copies(loaded.config, shards)
    _, state = llama.abstract(loaded.config)
    paths, _ = jax.tree.flatten_with_path(state)
    params = [
        jax.device_put(_copied(x, path, copies, loaded.config), NamedSharding(mesh, spec))
        for x, (path, _), spec in zip(loaded.params, paths, specs(config, shards), strict=True)
    ]
    return dataclasses.replace(
        loaded,
        config=config,
        params=params,
        step=over_replicas(loaded.step, mesh),
        cache_spec=loaded.cache_spec | {"num_kv_heads": config.num_kv_heads},
    )


def _copied(x, path, copies, config):
    """qkv [K, G + 2, ...] as [K * copies, G / copies + 2, ...], other weights as they are."""
    names = {str(getattr(key, "key", getattr(key, "name", ""))) for key in path}
    if copies == 1 or not names & {"qkv", "qkv_bias"}:
        return x
    kv_heads, rest = config.num_kv_heads * copies, x.shape[2:]
    q = x[:, :-2].reshape(kv_heads, config.group_size // copies, *rest)
    return jnp.concatenate([q, jnp.repeat(x[:, -2:], copies, axis=0)], axis=1)
