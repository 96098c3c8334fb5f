"""A tiny Llama's step on meshes of eight devices gives what one device gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from mesh.meshes import SHAPES

from jaxattn import Batch, PagedKV
from models import sharding
from models.config import Config
from models.llama import Llama, make_step
from models.load import Loaded

PAGE, PAGES = 4, 8
# Heads that divide, that are fewer than the devices, that divide nothing; and odd other sizes.
SIZES = {
    "divide": {"num_heads": 16, "num_kv_heads": 8},
    "fewer": {"num_heads": 8, "num_kv_heads": 2},
    "odd": {"num_heads": 6, "num_kv_heads": 3, "intermediate_size": 36, "vocab_size": 50},
}


def loaded(name, **changes):
    config = Config(
        **{
            "family": "llama",
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_layers": 1,
            "head_dim": 8,
            "max_position_embeddings": 64,
        }
        | SIZES[name]
        | changes
    )
    graphdef, state = nnx.split(Llama(config, rngs=nnx.Rngs(0)))
    keys = jax.random.split(jax.random.key(1), len(jax.tree.leaves(state)))
    params = [
        0.3 * jax.random.normal(key, x.shape)
        for key, x in zip(keys, jax.tree.leaves(state), strict=True)
    ]
    spec = {"num_layers": 1, "num_kv_heads": config.num_kv_heads, "head_dim": 8}
    return Loaded(config, params, make_step(graphdef, state), None, spec | {"dtype": jnp.float32})


def batch(seed):
    """A decode of position 5 and a prompt of 6 tokens, a padding row and a padding sequence."""
    rng = np.random.default_rng(seed)
    ints = lambda *x: jnp.asarray(x, jnp.int32)  # noqa: E731
    return Batch(
        tokens=jnp.asarray(rng.integers(0, 50, 8), jnp.int32).at[-1].set(0),
        positions=ints(5, 0, 1, 2, 3, 4, 5, 0),
        slots=ints(3 * PAGE + 1, *range(20, 26), -1),
        block_tables=ints(*[(2, 3), (5, 6), (0, 0)]),
        seq_lens=ints(6, 6, 0),
        cu_q_lens=ints(0, 1, 7, 7),
    )


def caches(spec, seed):
    """As after a first chunk of random keys; a copied head has equal copies."""
    shape = (PAGES, spec["num_kv_heads"], PAGE, spec["head_dim"])
    some = iter(np.random.default_rng(seed).normal(size=(2 * spec["num_layers"], *shape)))
    new = lambda: jnp.asarray(next(some), jnp.float32)  # noqa: E731
    return tuple(PagedKV(new(), new()) for _ in range(spec["num_layers"]))


CASES = [(shape, "divide") for shape in SHAPES]
CASES += [((2, 4), "odd"), ((1, 8), "fewer")]
IDS = [f"{s[0]}x{s[1]}-{name}" for s, name in CASES]


@pytest.mark.parametrize(
    ("shape", "name"), CASES, ids=[f"{s[0]}x{s[1]}-{name}" for s, name in CASES]
)
def test_a_step_is_that_of_one_device(shape, name):
    check(loaded(name), shape)


def test_biases_and_norms_too():
    switches = ("qkv_bias", "out_bias", "mlp_bias", "qk_norm", "tie_embeddings")
    check(loaded("fewer", **dict.fromkeys(switches, True)), (2, 4))


def check(one, shape):
    mesh = sharding.make_mesh(*shape)
    model = sharding.shard(one, mesh)
    copies = model.config.num_kv_heads // one.config.num_kv_heads
    batches = [batch(i) for i in range(shape[0])]
    before = [caches(one.cache_spec, i) for i in range(shape[0])]
    wanted = [jax.jit(one.step)(one.params, b, c) for b, c in zip(batches, before, strict=True)]
    join = lambda trees: jax.tree.map(lambda *x: jnp.concatenate(x), *trees)  # noqa: E731
    copied = jax.tree.map(lambda x: jnp.repeat(x, copies, axis=1), join(before))
    place = NamedSharding(mesh, sharding.cache_spec(model.config, shape[1]))
    step = jax.jit(model.step, donate_argnums=2)
    logits, after = step(model.params, join(batches), jax.device_put(copied, place))
    real = np.tile([True, True, False], shape[0])  # logits of a padding sequence mean nothing
    want_logits, want_after = join(wanted)
    np.testing.assert_allclose(logits[real], want_logits[real], atol=3e-5, rtol=3e-5)
    for got, want in zip(jax.tree.leaves(after), jax.tree.leaves(want_after), strict=True):
        np.testing.assert_allclose(got[:, ::copies], want, atol=1e-5)
        np.testing.assert_allclose(got[:, copies - 1 :: copies], want, atol=1e-5)
        assert got.sharding.is_equivalent_to(place, 4), "the cache stays where it was"


def test_what_a_device_holds():
    """(1, 8) of 16 heads in 2 groups: a copy of one kv head, and an eighth of all matrices."""
    one = loaded("divide", num_kv_heads=2)
    model = sharding.shard(one, sharding.make_mesh(1, 8))
    assert model.config.num_kv_heads == 8
    shapes = {x.sharding.shard_shape(x.shape) for x in model.params}
    assert (1, 4, 8, 32) in shapes, "qkv: one kv head with two of its eight query heads"
    assert {(2, 6, 32), (32, 6), (32, 16), (8, 32)} < shapes
    assert max(x.sharding.shard_shape(x.shape)[0] for x in model.params) == 32


def test_only_sums_cross_devices():
    """Two sums a layer, one after the embedding; no weight, query, key or cache is moved."""
    one = loaded("divide")
    mesh = sharding.make_mesh(2, 4)
    model = sharding.shard(one, mesh)
    place = NamedSharding(mesh, sharding.cache_spec(model.config, 4))
    join = lambda x: jnp.concatenate([x, x])  # noqa: E731
    args = (jax.tree.map(join, batch(0)), jax.tree.map(join, caches(model.cache_spec, 0)))
    args = (args[0], jax.device_put(args[1], place))
    text = jax.jit(model.step).lower(model.params, *args).compile().as_text()
    assert "all-to-all" not in text
    assert "collective-permute" not in text
    assert "all-gather" not in text
    assert text.count(" all-reduce(") == 1 + 2 * one.config.num_layers


def test_copies_of_kv_heads():
    config = dataclasses.replace(loaded("divide").config, num_heads=64, num_kv_heads=8)
    assert [sharding.kv_copies(config, n) for n in (1, 2, 4, 8, 16, 32, 64, 128, 3)] == [
        1, 1, 1, 1, 2, 4, 8, 1, 1,
    ]  # fmt: skip
    assert "heads" not in sharding.splits(config, 128)
