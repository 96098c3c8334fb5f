"""A step's attention compiled for eight TPU chips: each runs the kernel on its heads, none asks
another for anything. Mosaic kernels cannot be partitioned: without shard_map this does not compile.
"""

import re

import jax
import jax.numpy as jnp
import pytest
import tpu_compiler
from jax.experimental import topologies
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxattn
from scripts.planning.topology import without_hardware

pytestmark = pytest.mark.skipif(
    tpu_compiler.version() is None, reason="libtpu is not installed; it is in the extra `dev`"
)
PAGES, PAGE, WIDTH, TOKENS, SEQS, D = 512, 16, 8, 64, 8, 128
MODES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
MOVES = re.compile(r"(all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)")


def step(cache, q, k, v, slots, tables, seq_lens, cu_q_lens):
    cache = cache.append(k, v, slots)
    return jaxattn.paged_attention(q, cache, tables, seq_lens, cu_q_lens), cache


def compiled(mode, heads, kv_heads, data=None, shape=(2, 4)):
    """The program of `step` on a mesh; its arrays split over `data` where that is given."""
    without_hardware()
    devices = topologies.get_topology_desc("v5e:{}x{}".format(*shape), platform="tpu").devices
    mesh = jax.make_mesh(shape, ("data", "model"), (MODES[mode],) * 2, devices=devices)
    copies = shape[0] if data else 1

    def array(dtype, size, *rest, model=True):
        spec = PartitionSpec(data, "model" if model and rest[0] % 4 == 0 else None)
        place = NamedSharding(mesh, spec if model else PartitionSpec(data))
        return jax.ShapeDtypeStruct((size * copies, *rest), dtype, sharding=place)

    def ints(size, *rest):
        return array(jnp.int32, size, *rest, model=False)

    bf16 = jnp.bfloat16
    pages = array(bf16, PAGES, kv_heads, PAGE, D)
    new = array(bf16, TOKENS, kv_heads, D)
    args = (jaxattn.PagedKV(pages, pages), array(bf16, TOKENS, heads, D), new, new)
    args += (ints(TOKENS), ints(SEQS, WIDTH), ints(SEQS), ints(SEQS + 1))
    call = step
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        if data:
            specs = PartitionSpec(data)
            call = jax.shard_map(
                step, in_specs=specs, out_specs=specs, axis_names={data}, check_vma=False
            )
        jitted = jax.jit(call, donate_argnums=0)
        return jitted.trace(*args).lower(lowering_platforms=("tpu",)).compile().as_text()


def operands(text):
    """The shapes of the kernel's operands."""
    (line,) = [x for x in text.splitlines() if 'custom_call_target="tpu_custom_call"' in x]
    constraints = line.partition("operand_layout_constraints=")[2].partition("=")[0]
    return re.findall(r"\w+\[([\d,]*)\]", constraints)


@pytest.mark.parametrize("mode", MODES)
def test_heads_stay_where_they_are(mode):
    text = compiled(mode, 32, 8)
    assert operands(text)[-2:] == [f"{PAGES},2,{PAGE},{D}"] * 2, "two of eight kv heads"
    assert not MOVES.search(text)


def test_replicas_inside_the_users_shard_map():
    text = compiled("auto", 32, 8, data="data")
    assert operands(text)[-2:] == [f"{PAGES},2,{PAGE},{D}"] * 2, "of its own pages"
    assert not MOVES.search(text)


def test_one_device_in_a_shard_map():
    assert (
        operands(compiled("auto", 32, 8, data="data", shape=(1, 1)))[-2:]
        == [f"{PAGES},8,{PAGE},{D}"] * 2
    )


def test_heads_that_do_not_divide_are_whole():
    text = compiled("auto", 9, 3)
    assert operands(text)[-2:] == [f"{PAGES},3,{PAGE},{D}"] * 2
    assert not MOVES.search(text)


def test_many_tokens_are_appended_in_place():
    """XLA used to copy the cache, transposed, and back; a step then cost as much as the cache."""

    def append(cache, k, slots):
        return cache.append(k, k, slots)

    shape = (20_000, 2, PAGE, D)  # too large for vector memory, as a real one is
    pages = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    new = jax.ShapeDtypeStruct((2048, 2, D), jnp.bfloat16)
    without_hardware()
    devices = topologies.get_topology_desc("v6e:1x1", platform="tpu").devices
    where = jax.make_mesh((1,), ("x",), devices=devices)
    place = NamedSharding(where, PartitionSpec())
    args = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        (jaxattn.PagedKV(pages, pages), new, jax.ShapeDtypeStruct((2048,), jnp.int32)),
    )
    with jax.sharding.use_abstract_mesh(where.abstract_mesh):
        traced = jax.jit(append, donate_argnums=0).trace(*args)
        memory = traced.lower(lowering_platforms=("tpu",)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2**24 < 2 * 20_000 * 2 * PAGE * D
