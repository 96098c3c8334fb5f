"""Both compilers of the `triton` target on the GPU at hand: the same kernels, the same answers.

`JAXATTN_COMPILER=triton pytest -m gpu` runs the other files of this folder by the official Triton.
"""

import functools

import grids
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import TOLERANCE, agree, check_case, parametrize, run
from jax import export
from problems import Call
from scaled_sum import SHAPE, scaled_sum

import jaxattn
from jaxattn import triton_binary
from jaxattn.problem import COMPILERS
from jaxattn.triton_compiler import EXPORT_CHECKS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        None in map(triton_binary.version, ("triton", "jax-triton")),
        reason="triton or jax-triton is not installed; both are in the extra `gpu`",
    ),
]
BOTH = pytest.mark.parametrize("compiler", COMPILERS)
DECODE = Call("paged", ((1, 700), (1, 33), (1, 4096)), (32, 8, 128, 128), 16, "bf16")
MIXED = Call("paged", ((300, 700), (1, 1000), (64, 64)), (16, 8, 128, 128), 16, "bf16")


@BOTH
@pytest.mark.parametrize("call", [DECODE, MIXED], ids=["decode", "mixed"])
def test_paged(call, compiler):
    check_case(grids.Case(call), "triton", compiler=compiler)


@BOTH
@parametrize(grids.MODELS_MASKED, grids.DTYPES, grids.sample(grids.HEAD_DIMS, 4), grids.EDGES)
def test_features(case, compiler):
    check_case(case, "triton", compiler=compiler)


@BOTH
def test_tables_that_are_slices(compiler):
    """An engine packs a step's integers into one array: tables then begin anywhere in memory."""
    q, cache, *ints = jax.tree.map(jnp.asarray, MIXED.args())
    sizes = [x.size for x in ints]
    packed = jnp.concatenate([jnp.zeros(3, jnp.int32), *(x.reshape(-1) for x in ints)])

    @jax.jit
    def f(q, cache, packed):
        at, parts = 3, []
        for x, size in zip(ints, sizes, strict=True):
            parts.append(packed[at : at + size].reshape(x.shape))
            at += size
        return jaxattn.paged_attention(q, cache, *parts, return_lse=True, compiler=compiler)

    wide = jax.tree.map(lambda x: x.astype(jnp.float32), (q, cache))
    want = jaxattn.paged_attention(*wide, *ints, return_lse=True, implementation="reference")
    agree(f(q, cache, packed), want, TOLERANCE["bf16"])


@BOTH
@parametrize(grids.vit((197, 577), dtype="bf16", batch=2, heads=4))
def test_vit(case, compiler):
    check_case(case, "triton", compiler=compiler)


@BOTH
@pytest.mark.parametrize("aliases", [{}, {0: 0}, {1: 0}])
def test_results_in_an_operands_memory(aliases, compiler):
    x, y = np.random.default_rng(0).standard_normal((2, *SHAPE), np.float32)
    f = functools.partial(scaled_sum, aliases=aliases, compiler=compiler)
    got = jax.jit(f, donate_argnums=tuple(aliases))(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(got, x + 2 * y, rtol=1e-6)


@BOTH
def test_an_aliased_operand_that_lives_on_is_not_changed(compiler):
    x, y = np.random.default_rng(1).standard_normal((2, *SHAPE), np.float32)

    @jax.jit
    def f(x, y):
        return scaled_sum(x, y, aliases={0: 0}, compiler=compiler), x

    got, kept = f(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(got, x + 2 * y, rtol=1e-6)
    np.testing.assert_array_equal(kept, x)


@BOTH
def test_a_batch(compiler):
    x, y = np.random.default_rng(2).standard_normal((2, 3, *SHAPE), np.float32)
    f = functools.partial(scaled_sum, aliases={}, compiler=compiler)
    got = jax.jit(jax.vmap(f))(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(got, x + 2 * y, rtol=1e-6)


@BOTH
def test_an_exported_program_runs_from_its_bytes(compiler):
    args = jax.tree.map(jnp.asarray, DECODE.args())
    how = {"return_lse": True, "implementation": "triton", "compiler": compiler}
    attend = jax.jit(functools.partial(jaxattn.paged_attention, **how))
    exported = export.export(attend, disabled_checks=EXPORT_CHECKS)(*args)
    got = jax.jit(export.deserialize(exported.serialize()).call)(*args)
    agree(got, run(DECODE, "oracle"), TOLERANCE["bf16"])


def test_a_second_call_compiles_nothing():
    args = jax.tree.map(jnp.asarray, DECODE.args())
    lowered = []

    @jax.jit
    def f(*args):
        lowered.append(1)
        return jaxattn.paged_attention(*args, implementation="triton", compiler="triton")

    first = f(*args)
    before = triton_binary.compile_ir.cache_info()
    second = f(*args)
    assert lowered == [1]
    assert triton_binary.compile_ir.cache_info() == before
    np.testing.assert_array_equal(first, second)
