"""The public operations on meshes of eight devices give what one device gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from mesh.meshes import MODES, SHAPES, mesh, put

import jaxattn

HEADS = {"divide": (16, 8), "fewer": (8, 2), "odd": (6, 3)}  # H and K
PAGE = 4


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def close(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5)


# Every mesh with heads that divide, and heads that do not in both modes.
GRID = [(shape, "divide", "auto") for shape in SHAPES]
GRID += [((2, 4), "fewer", "explicit"), ((1, 8), "odd", "auto")]
IDS = [f"{s[0]}x{s[1]}-{heads}-{mode}" for s, heads, mode in GRID]


def every(test):
    cases = [(shape, HEADS[heads], mode) for shape, heads, mode in GRID]
    return pytest.mark.parametrize(("shape", "heads", "mode"), cases, ids=IDS)(test)


@every
def test_attention(shape, heads, mode):
    (h, k), (b, t, s, d) = heads, (8, 5, 9, 8)
    q, keys, v = normal(0, b, t, h, d), normal(1, b, s, k, d), normal(2, b, s, k, 16)
    bias, slopes, sinks = normal(3, b, 1, t, s), normal(4, h), normal(5, h)
    ranges = jnp.asarray(np.random.default_rng(6).integers(0, s, (b, 1, 2)), jnp.int32)

    def call(q, k, v, bias, slopes, ranges, sinks):
        mask = jaxattn.Causal() | jaxattn.Ranges(ranges)
        score = (jaxattn.Alibi(slopes), jaxattn.Bias(bias))
        return jaxattn.attention(q, k, v, mask=mask, score=score, sinks=sinks, return_lse=True)

    rest = (bias, slopes, ranges, sinks)
    want = call(q, keys, v, *rest)
    on = mesh(shape, mode)
    split = [put(on, x, "data", None, "model") for x in (q, keys, v)]
    rest = [put(on, x) for x in rest]
    close(jax.jit(call)(*split, *rest), want)


@every
def test_varlen_attention(shape, heads, mode):
    (h, k), d = heads, 8
    q, keys, v = normal(0, 12, h, d), normal(1, 20, k, d), normal(2, 20, k, d)
    cu_q, cu_k = jnp.asarray([0, 5, 5, 11]), jnp.asarray([0, 8, 10, 20])
    kept = jnp.asarray(np.random.default_rng(3).random((h, 12, 20)) < 0.7)

    def call(q, k, v, cu_q, cu_k, kept):
        return jaxattn.varlen_attention(
            q, k, v, cu_q, cu_k, mask=jaxattn.Dense(kept), return_lse=True
        )

    want = call(q, keys, v, cu_q, cu_k, kept)
    on = mesh(shape, mode)
    split = [put(on, x, None, "model") for x in (q, keys, v)]
    close(jax.jit(call)(*split, *(put(on, x) for x in (cu_q, cu_k, kept))), want)


def paged_step(cache, q, k, v, slots, tables, seq_lens, cu):
    cache = cache.append(k, v, slots)
    return jaxattn.paged_attention(q, cache, tables, seq_lens, cu), cache


def paged_inputs(heads):
    (h, k), d = heads, 8
    seq_lens, cu = jnp.asarray([9, 3, 0]), jnp.asarray([0, 1, 4, 4])
    tables = jnp.asarray([[5, 1, 3], [0, 2, 2], [0, 0, 0]])
    slots = jnp.asarray([3 * PAGE, 0, 1, 2, -1])
    cache = jaxattn.PagedKV(normal(0, 6, k, PAGE, d), normal(1, 6, k, PAGE, d))
    new = (normal(2, 5, h, d), normal(3, 5, k, d), normal(4, 5, k, d))
    return cache, new, (slots, tables, seq_lens, cu)


@every
def test_append_and_paged_attention(shape, heads, mode):
    cache, new, lengths = paged_inputs(heads)
    want = paged_step(cache, *new, *lengths)
    on = mesh(shape, mode)
    cache = jax.tree.map(lambda x: put(on, x, None, "model"), cache)
    new = [put(on, x, None, "model") for x in new]
    lengths = [put(on, x) for x in lengths]
    step = jax.jit(paged_step, donate_argnums=0)
    got = step(cache, *new, *lengths)
    assert got[1].k.sharding.is_equivalent_to(cache.k.sharding, 4), "the cache stays where it was"
    close(got, want)


@pytest.mark.parametrize("mode", MODES)
def test_inside_set_mesh_and_without_jit(mode):
    on = mesh((2, 4), mode)
    q, k, v = (normal(i, 4, 5, 8, 8) for i in range(3))
    want = jaxattn.attention(q, k, v)
    with jax.set_mesh(on):
        q, k, v = (put(on, x, "data", None, "model") for x in (q, k, v))
        got = jaxattn.attention(q, k, v)
    assert got.sharding.spec[:3] == ("data", None, "model")
    close(got, want)


@pytest.mark.parametrize("mode", MODES)
def test_no_operand_is_gathered(mode):
    """Each device has its heads: nothing has to move."""
    cache, new, lengths = paged_inputs(HEADS["divide"])
    on = mesh((2, 4), mode)
    cache = jax.tree.map(lambda x: put(on, x, None, "model"), cache)
    new = [put(on, x, None, "model") for x in new]
    lengths = [put(on, x) for x in lengths]
    text = jax.jit(paged_step).lower(cache, *new, *lengths).compile().as_text()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in text


def test_the_sequences_of_a_packed_call_are_split_by_the_users_shard_map():
    """Two replicas, each with a batch and pages of its own; the heads are split inside."""
    cache, new, lengths = paged_inputs(HEADS["divide"])
    want = paged_step(cache, *new, *lengths)
    on = mesh((2, 4))
    twice = functools.partial(jax.tree.map, lambda x: jnp.concatenate([x, x]))
    with jax.set_mesh(on):
        split = jax.shard_map(
            paged_step,
            in_specs=PartitionSpec("data"),
            out_specs=PartitionSpec("data"),
            axis_names={"data"},
            check_vma=False,
        )
        got = jax.jit(split)(*twice((cache, *new, *lengths)))
    close(got, twice(want))


@pytest.mark.parametrize("target", ["mosaic", "triton"])
def test_kernels_see_heads_of_one_device(target):
    h, k = HEADS["divide"]
    q, keys, v = normal(0, 2, 16, h, 16), normal(1, 2, 16, k, 16), normal(2, 2, 16, k, 16)
    call = functools.partial(jaxattn.attention, mask=jaxattn.Causal(), implementation=target)
    want = jaxattn.attention(q, keys, v, mask=jaxattn.Causal(), implementation="reference")
    on = mesh((2, 4))
    split = [put(on, x, "data", None, "model") for x in (q, keys, v)]
    with jaxattn.interpret(detect_races=False):
        close(jax.jit(call)(*split), want)


def test_other_names_of_axes():
    on = jax.make_mesh((2, 4), ("replica", "tensor"), axis_types=(MODES["auto"],) * 2)
    q, k, v = (put(on, normal(i, 4, 5, 8, 8), "replica", None, "tensor") for i in range(3))
    with pytest.raises(ValueError, match=r"axes replica, tensor: none is data or model; say with"):
        jaxattn.attention(q, k, v)
    with jaxattn.mesh_axes(batch="replica", heads="tensor"):
        got = jax.jit(jaxattn.attention)(q, k, v)
    assert got.sharding.spec[:3] == ("replica", None, "tensor")
    close(got, jaxattn.attention(*(jnp.asarray(np.asarray(x)) for x in (q, k, v))))


def test_what_cannot_be_split_is_refused():
    on = mesh((2, 4), "explicit")
    q, k, v = (put(on, normal(i, 4, 8, 8, 8), None, "model") for i in range(3))
    rule = r"q \[B, T, H, D\] has axis T sharded over model: .* may be split over batch and heads"
    with pytest.raises(ValueError, match=rule):
        jaxattn.attention(q, k, v)
    q = put(on, normal(0, 8, 8, 8), "data")
    k = put(on, normal(1, 8, 8, 8))
    cu = put(on, jnp.asarray([0, 8]))
    with pytest.raises(ValueError, match=r"axis T sharded over data: .* split over heads only"):
        jaxattn.varlen_attention(q, k, k, cu, cu)
    with pytest.raises(ValueError, match="an axis can split only one of them"):
        jaxattn.mesh_axes(batch="x", heads="x")
    with pytest.raises(ValueError, match="must be names of mesh axes"):
        jaxattn.mesh_axes(heads=(3,))
