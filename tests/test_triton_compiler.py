"""The kernels compiled by the official Triton inside a lowered program, without a GPU."""

import functools
import importlib.metadata
import re
from pathlib import Path

import configurations
import gpu_compiler
import jax
import jax.numpy as jnp
import kernel_calls
import numpy as np
import pytest
from jax import export
from scaled_sum import SHAPE, scaled_sum

import jaxattn
from jaxattn import triton_binary, triton_compiler
from jaxattn.checks import ENVIRONMENT

DECODE = configurations.paged(16, d=64, n=2, t=2, h=4, k=2, keys=64)
XLA, TRITON = (functools.partial(DECODE.call, compiler=name) for name in ("xla", "triton"))
PLUGINS = {"jax-cuda12-plugin", "jax-cuda13-plugin"}

needs_triton = pytest.mark.skipif(
    gpu_compiler.version() is None or triton_binary.version("jax-triton") is None,
    reason="triton or jax-triton is not installed; both are in the extra `dev`",
)
needs_plugin = pytest.mark.skipif(
    not any(map(triton_binary.version, PLUGINS)),
    reason="JAX's plugin for NVIDIA GPUs, which describes kernel calls, is not installed",
)


def calls_of(chip, fn, *shapes) -> list[kernel_calls.KernelCall]:
    lowered = gpu_compiler.lower_for(chip, fn, *shapes)
    return [kernel_calls.read(call) for call in gpu_compiler.custom_calls(lowered, "triton")]


@functools.cache
def decode_on(chip) -> kernel_calls.KernelCall:
    [call] = calls_of(chip, TRITON, *DECODE.args)
    return call


X = jax.ShapeDtypeStruct(SHAPE, jnp.float32)


@needs_triton
@needs_plugin
@pytest.mark.parametrize(("chip", "target"), [("sm_80", "sm_80"), ("sm_90", "sm_90a")])
def test_a_program_holds_code_for_its_chip(chip, target):
    call = decode_on(chip)
    assert f".target {target}\n" in call.code
    assert f".entry {call.name}(" in call.code
    assert call.capability == gpu_compiler.CHIPS[chip].arch


@needs_triton
@needs_plugin
def test_ptx_is_not_newer_than_the_cuda_of_the_plugin():
    from jax._src.lib import cuda_versions

    major, minor = map(int, re.search(r"\.version (\d+)\.(\d+)", decode_on("sm_90").code).groups())
    build = cuda_versions.cuda_runtime_build_version()
    newest = (build // 1000 - 4, build % 1000 // 10)  # CUDA 12.3 brought PTX 8.3, 13.0 9.0
    assert (major, minor) <= newest


@needs_triton
@needs_plugin
def test_an_amd_program_names_a_file_with_its_code():
    assert Path(decode_on("gfx942").code).read_bytes().startswith(b"\x7fELF")


@needs_triton
@needs_plugin
def test_the_launch_is_the_one_that_xla_would_make():
    """The same grid, warps, operands and results; the PTX takes two scratch pointers more."""
    lowered = gpu_compiler.lower_for("sm_90", XLA, *DECODE.args)
    [theirs] = gpu_compiler.custom_calls(lowered, "xla")
    [config] = gpu_compiler.kernels("sm_90", DECODE.call, *DECODE.args)
    ours = decode_on("sm_90")
    assert ours.grid == tuple(config[f"grid_{axis}"].value for axis in "xyz")
    assert ours.warps == config["num_warps"].value
    assert ours.arguments == len(theirs.operands) + len(theirs.results)
    entry = ours.code.partition(".entry")[2].partition(")")[0]
    assert entry.count(".param") == ours.arguments + 2
    types = re.search(r" : (\(.*)", str(theirs)).group(1)
    assert types in ours.text


@needs_triton
@needs_plugin
@pytest.mark.parametrize("aliases", [{}, {0: 0}, {1: 0}])
def test_operands_that_results_overwrite(aliases):
    """A shared buffer stays an argument of the kernel in both its places."""
    [call] = calls_of("sm_90", functools.partial(scaled_sum, aliases=aliases), X, X)
    assert call.grid == (4, 2, 2)
    assert call.arguments == 3
    shared = re.findall(r"operand_index = (\d+)", call.text)
    assert shared == [str(operand) for operand in aliases]


@needs_triton
@needs_plugin
def test_a_batch_is_one_launch():
    batched = jax.vmap(functools.partial(scaled_sum, aliases={}))
    shape = jax.ShapeDtypeStruct((3, *X.shape), X.dtype)
    [call] = calls_of("sm_90", batched, shape, shape)
    assert np.prod(call.grid) == 3 * 4 * 2 * 2
    assert call.arguments == 3


@needs_triton
@needs_plugin
def test_a_kernel_is_compiled_once():
    decode_on("sm_90")
    before = triton_binary.compile_ir.cache_info()
    calls_of("sm_90", lambda *args: TRITON(*args), *DECODE.args)
    after = triton_binary.compile_ir.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 1)


@needs_triton
@needs_plugin
def test_each_compiler_has_its_call():
    lowered = gpu_compiler.lower_for("sm_90", XLA, *DECODE.args)
    assert len(gpu_compiler.custom_calls(lowered, "xla")) == 1
    assert not gpu_compiler.custom_calls(lowered, "triton")
    lowered = gpu_compiler.lower_for("sm_90", TRITON, *DECODE.args)
    assert len(gpu_compiler.custom_calls(lowered, "triton")) == 1
    assert not gpu_compiler.custom_calls(lowered, "xla")


@needs_triton
@needs_plugin
def test_the_official_compiler_is_the_default_where_it_is_installed(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    lowered = gpu_compiler.lower_for("sm_90", lambda *args: DECODE.call(*args), *DECODE.args)
    assert len(gpu_compiler.custom_calls(lowered, "triton")) == 1
    monkeypatch.setattr(jaxattn.triton, "usable", lambda: False)
    jax.clear_caches()  # of what was traced with it
    lowered = gpu_compiler.lower_for("sm_90", lambda *args: DECODE.call(*args), *DECODE.args)
    assert len(gpu_compiler.custom_calls(lowered, "xla")) == 1


def test_no_more_alignment_is_promised_than_a_slice_has():
    """XLA hands slices of larger arrays over where they lie: a row of 16 bytes is whole, and an
    int32 table may begin at any number."""
    shapes = {
        (4, 2, 16, 128): (jnp.bfloat16, 16),
        (7, 8): (jnp.bfloat16, 16),
        (7, 4): (jnp.bfloat16, 2),
        (9,): (jnp.float32, 4),
        (3, 8): (jnp.int32, 4),
        (1, 5, 64): (jnp.int8, 1),
    }
    for shape, (dtype, most) in shapes.items():
        aval = jax.core.ShapedArray(shape, jnp.dtype(dtype))
        assert triton_compiler._alignment(aval) == most
    promise = triton_compiler.PROMISE
    text = triton_compiler._promising(f"f(a {promise}, b {promise})", [16, 4])
    assert text == "f(a tt.divisibility = 16 : i32, b tt.divisibility = 4 : i32)"
    with pytest.raises(NotImplementedError, match="1 of 2"):
        triton_compiler._promising(f"f(a {promise})", [16, 4])


@needs_triton
@needs_plugin
@pytest.mark.parametrize(
    ("asked", "of_tiles", "taken"),
    [(None, "xla", "xla"), (None, "triton", "triton"), (None, None, "triton"),
     ("xla", "triton", "xla"), ("triton", "xla", "triton")],
)  # fmt: skip
def test_who_names_the_compiler(asked, of_tiles, taken):
    """The call, else its tiles, else the official one since it is here; of the merge as well."""
    tiles = jaxattn.Tiles(8, 16, programs=64, compiler=of_tiles)
    fn = functools.partial(DECODE.call, compiler=asked, tiles=tiles)
    lowered = gpu_compiler.lower_for("sm_90", fn, *DECODE.args)
    count = {name: len(gpu_compiler.custom_calls(lowered, name)) for name in ("xla", "triton")}
    assert count == {"xla": 0, "triton": 0} | {taken: 2}


@needs_triton
@needs_plugin
def test_all_operations_take_a_compiler():
    q, k = (jax.ShapeDtypeStruct((8, heads, 32), jnp.float32) for heads in (4, 2))
    ends = jax.ShapeDtypeStruct((2,), jnp.int32)
    varlen = functools.partial(jaxattn.varlen_attention, compiler="triton")
    assert len(calls_of("sm_90", varlen, q, k, k, ends, ends)) == 1
    q, k = (jax.ShapeDtypeStruct((1, 8, heads, 32), jnp.float32) for heads in (4, 2))
    dense = functools.partial(jaxattn.attention, compiler="triton")
    assert len(calls_of("sm_90", dense, q, k, k)) == 1


@needs_triton
@needs_plugin
def test_the_environment_names_the_compiler(monkeypatch):
    monkeypatch.setenv("JAXATTN_COMPILER", "triton")
    assert len(calls_of("sm_90", lambda *args: DECODE.call(*args), *DECODE.args)) == 1
    xla = functools.partial(DECODE.call, compiler="xla")
    assert not calls_of("sm_90", xla, *DECODE.args)


@needs_triton
@needs_plugin
def test_an_exported_program_carries_its_kernel():
    exported = gpu_compiler.export_for("sm_90", TRITON, *DECODE.args)
    again = export.deserialize(exported.serialize())
    assert again.platforms == ("cuda",)
    assert again.in_avals == exported.in_avals
    [(opaque,)] = (
        re.findall(r'@triton_kernel_call_ffi\(.*?opaque = ("[^"]*")', again.mlir_module()),
    )
    assert len(opaque) > 1000


def test_an_unknown_compiler_is_named(monkeypatch):
    x = jnp.zeros((1, 4, 1, 16))
    with pytest.raises(ValueError, match=r"^compiler='nvcc': must be one of xla, triton"):
        jaxattn.attention(x, x, x, compiler="nvcc")
    monkeypatch.setenv("JAXATTN_COMPILER", "gcc")
    with pytest.raises(ValueError, match=r"^JAXATTN_COMPILER='gcc': must be one of xla, triton"):
        jaxattn.attention(x, x, x)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"triton": None}, "the package triton is not installed; pip install"),
        ({"jax-triton": None}, "the package jax-triton is not installed; pip install"),
        ({"triton": "3.5.1"}, f"triton 3.5.1 is too old for JAX {jax.__version__}, it needs 3.6"),
        ({"jax-triton": "0.3.0"}, "jax-triton 0.3.0 is too old"),
    ],
)
def test_a_package_that_does_not_serve_is_named(monkeypatch, versions, said):
    def version(package):
        found = {"triton": "3.9.0", "jax-triton": "0.4.1"} | versions
        if found[package] is None:
            raise importlib.metadata.PackageNotFoundError
        return found[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "packages_distributions", dict)
    with pytest.raises(ValueError, match='^compiler="triton": ' + re.escape(said)):
        gpu_compiler.lower_for("sm_90", lambda *args: TRITON(*args), *DECODE.args)


def test_a_triton_of_another_name_counts(monkeypatch):
    def version(package):
        if package != "acme-triton":
            raise importlib.metadata.PackageNotFoundError
        return "3.6.0+acme"

    monkeypatch.setattr(importlib.metadata, "version", version)
    owners = {"triton": ["acme-triton"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    triton_binary.need("triton")


@needs_triton
def test_a_jax_without_a_plugin_is_told_what_to_install(monkeypatch):
    from jax_triton import triton_lib

    monkeypatch.setattr(triton_lib, "triton_kernel_call_lib", object())
    with pytest.raises(ValueError, match="JAX has no plugin for GPUs; pip install"):
        gpu_compiler.lower_for("sm_90", lambda *args: TRITON(*args), *DECODE.args)


@needs_triton
def test_ir_that_triton_cannot_read_is_refused():
    with pytest.raises(ValueError, match=f"Triton .* cannot read the IR of JAX {jax.__version__}"):
        triton_binary.compile_ir("module { tt.not_an_operation }", 90, 4, 2)


@needs_triton
def test_an_amd_chip_of_another_family_is_refused():
    with pytest.raises(ValueError, match="gfx1100 is not one of the AMD chips gfx9"):
        triton_binary.compile_ir("module {}", "gfx1100", 4, 2)


def test_nothing_is_compiled_elsewhere(monkeypatch):
    """On a CPU the xla target runs, and inside `interpret()` the interpreter, Triton or not."""

    def never(*_):
        raise AssertionError("a compiler was asked for")

    triton_compiler.usable.cache_clear()
    monkeypatch.setattr(triton_binary, "version", never)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 8, 2, 16)), jnp.float32)
    want = jaxattn.attention(x, x, x, implementation="reference")
    got = jaxattn.attention(x, x, x, compiler="triton")
    np.testing.assert_allclose(got, want, atol=1e-5)
    with jaxattn.interpret():
        got = jaxattn.attention(x, x, x, implementation="triton", compiler="triton")
    np.testing.assert_allclose(got, want, atol=1e-5)
