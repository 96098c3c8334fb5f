"""Which compiler builds a Pallas kernel for a GPU: the Triton inside XLA, or the official package.

Both begin with the IR that Pallas makes. The official one compiles it while a function is lowered;
the program then holds the result in jax_triton's kernel call, which JAX's GPU plugin runs. Such a
program needs neither Triton nor jax_triton where it runs: `jax.export` carries its kernels. (On AMD
the call names a file of this process, and stays in it.)

The chip is the one at hand, or that of `jax.sharding.use_abstract_mesh` with an `AbstractDevice`
whose device_kind is "NVIDIA H200" or "gfx942", say.
"""

import dataclasses
import functools
import hashlib
import json
import tempfile
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import export
from jax._src.pallas import core as pallas_core
from jax._src.pallas.triton import gpu_info
from jax.experimental.pallas import triton as plt
from jax.interpreters import mlir
from jaxlib.mlir import ir

from jaxattn.triton_binary import Binary, compile_ir, need

__all__ = ["EXPORT_CHECKS", "compiler_params", "ir_text", "usable"]

KERNEL_CALLS = {"xla": "__gpu$xla.gpu.triton", "triton": "triton_kernel_call_ffi"}
# JAX promises nothing about these calls in later versions: `jax.export.export` wants to be told
# `disabled_checks=EXPORT_CHECKS`.
EXPORT_CHECKS = tuple(map(export.DisabledSafetyCheck.custom_call, KERNEL_CALLS.values()))
PROMISE = "tt.divisibility = 32 : i32"  # Pallas' IR has it of every pointer
VECTOR = 16  # bytes; the widest access to memory


@dataclasses.dataclass(frozen=True)
class OfficialTriton(plt.CompilerParams):
    """Pallas compiler parameters that choose the official compiler by their type."""


def compiler_params(compiler: str, num_warps: int, num_stages: int) -> plt.CompilerParams:
    """`compiler_params` of a `pl.pallas_call` that `compiler`, "xla" or "triton", compiles."""
    kind = {"xla": plt.CompilerParams, "triton": OfficialTriton}[compiler]
    return kind(num_warps=num_warps, num_stages=num_stages)


def _lower(ctx, *operands, compiler_params, input_output_aliases, metadata, **params):
    """Pallas' own lowering, its custom call replaced by one that holds the compiled kernel."""
    # Only here: a jaxlib for a system without GPUs may have no Triton dialect to import.
    from jax._src.pallas.triton.pallas_call_registration import pallas_call_lowering

    jaxlib_call = _kernel_calls()
    results = pallas_call_lowering(
        ctx,
        *operands,
        compiler_params=plt.CompilerParams(compiler_params.num_warps, compiler_params.num_stages),
        input_output_aliases=input_output_aliases,
        metadata=metadata,
        **params,
    )
    call = results[0].owner
    config = {each.name: each.attr for each in call.attributes["mhlo.backend_config"]}
    source = ir_text(config["ir"].value_bytes)
    warps, stages, *grid = (
        config[key].value for key in ("num_warps", "num_stages", "grid_x", "grid_y", "grid_z")
    )
    call.erase()
    # The call has a buffer, and the kernel an argument, for each operand and then each result;
    # memory that an operand and a result share comes twice.
    alignments = [_alignment(aval) for aval in (*ctx.avals_in, *ctx.avals_out)]
    source = _promising(source, alignments)

    chip = gpu_info.get_gpu_info()
    binary = compile_ir(source, chip.compute_capability or chip.arch_name, warps, stages)
    kernel = jaxlib_call.TritonKernel(
        binary.name, warps, 1, binary.shared, _code(binary), "", chip.compute_capability,
        *(binary.scratch or ()),
    )  # fmt: skip
    arguments = [jaxlib_call.create_array_parameter(0, n) for n in alignments]
    described = b"" if metadata is None else json.dumps(dict(metadata)).encode()
    launch = jaxlib_call.TritonKernelCall(kernel, *grid, arguments)
    rule = jax.ffi.ffi_lowering(
        KERNEL_CALLS["triton"], operand_output_aliases=dict(input_output_aliases)
    )
    return rule(ctx, *operands, opaque=zlib.compress(launch.to_proto(binary.name, described)))


pallas_core.register_lowering_rule(OfficialTriton, _lower, "gpu")


def _alignment(aval) -> int:
    """Bytes of which the address of a buffer is a multiple, were it a slice of a larger array that
    XLA hands over where it lies: rows of 16 bytes stay whole, a table may begin anywhere."""
    size = aval.dtype.itemsize
    rows = aval.ndim > 1 and aval.shape[-1] * size % VECTOR == 0
    return VECTOR if rows and jnp.issubdtype(aval.dtype, jnp.floating) else size


def _promising(source: str, alignments) -> str:
    """The IR, promising these alignments of its arguments."""
    head, *parts = source.split(PROMISE)
    if len(parts) != len(alignments):
        raise NotImplementedError(f"{len(parts)} of {len(alignments)} pointers are aligned")
    promises = (PROMISE.replace("32", str(n), 1) for n in alignments)
    return head + "".join(one + part for one, part in zip(promises, parts, strict=True))


def ir_text(bytecode: bytes) -> str:
    """A kernel's IR as text: Triton reads other versions' text, but not their bytecode."""
    from jax._src.lib import triton

    context = mlir.make_ir_context()
    triton.dialect.register_dialect(context)
    with context:
        return ir.Module.parse(bytecode).operation.get_asm()


def _kernel_calls():
    """jaxlib's module that describes kernel calls, as jax_triton finds it."""
    need("triton")
    need("jax-triton")
    from jax_triton import triton_lib

    module = triton_lib.triton_kernel_call_lib
    if not hasattr(module, "TritonKernel"):
        raise ValueError(
            'compiler="triton": JAX has no plugin for GPUs; pip install "jax[cuda13]", or '
            f"jax-cuda13-plugin=={jax.__version__} where nothing is to run"
        )
    return module


@functools.cache
def usable() -> bool:
    """Whether the official compiler is installed, and new enough."""
    try:
        _kernel_calls()
    except ValueError:
        return False
    return True


def _code(binary: Binary) -> str:
    """PTX, or for AMD the name of a file, since that is what jaxlib takes."""
    return binary.code if isinstance(binary.code, str) else _file_of(binary.code)


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="jaxattn-")


@functools.cache
def _file_of(code: bytes) -> str:
    """jaxlib deletes the file when it has read it, and knows the kernel by its name from then."""
    path = Path(_folder().name) / f"{hashlib.sha256(code).hexdigest()}.hsaco"
    path.write_bytes(code)
    return str(path)
