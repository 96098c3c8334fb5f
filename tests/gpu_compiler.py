"""Compiles the Triton kernels of a call for GPUs with the official Triton, without a GPU.

JAX lowers for an abstract device; `jaxattn.triton_binary` compiles the Triton IR inside the lowered
program, and the assembler that Triton brings says what NVIDIA's code spilled. AMD's assembly says
it in its notes.
"""

import functools
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

from jaxattn import triton_binary
from jaxattn.checks import ENVIRONMENT
from jaxattn.triton_compiler import EXPORT_CHECKS, KERNEL_CALLS, ir_text


class Chip(NamedTuple):
    """`device_kind` as JAX names it; `shared` memory that a block may take, in bytes."""

    device_kind: str
    arch: int | str
    shared: int
    cores: int
    platform: str = "cuda"


CHIPS = {
    "sm_80": Chip("NVIDIA A100-SXM4-80GB", 80, 163 * 1024, 108),
    "sm_90": Chip("NVIDIA H100 80GB HBM3", 90, 227 * 1024, 132),
    "sm_100": Chip("NVIDIA B200", 100, 227 * 1024, 148),
    "gfx942": Chip("gfx942", "gfx942", 64 * 1024, 304, "rocm"),
}
version = functools.partial(triton_binary.version, "triton")


def on(chip: str):
    """A context in which JAX lowers for a chip that is not there."""
    device = AbstractDevice(
        device_kind=CHIPS[chip].device_kind, num_cores=CHIPS[chip].cores, platform="gpu"
    )
    return use_abstract_mesh(AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=device))


def lower_for(chip, fn, *shapes):
    """`fn` of `jax.ShapeDtypeStruct`s, lowered."""
    with on(chip):
        traced = jax.jit(fn).trace(*shapes)
        return traced.lower(lowering_platforms=(CHIPS[chip].platform,))


def export_for(chip, fn, *shapes) -> export.Exported:
    """`fn` of `jax.ShapeDtypeStruct`s as a program that can be stored, with its kernels in it."""
    how = {"platforms": (CHIPS[chip].platform,), "disabled_checks": EXPORT_CHECKS}
    with on(chip):
        return export.export(jax.jit(fn), **how)(*shapes)


def custom_calls(lowered, compiler) -> list:
    """The operations by which a lowered program runs the kernels that `compiler` compiles."""
    found = _walk(lowered.compiler_ir("stablehlo").operation)
    name = f'"{KERNEL_CALLS[compiler]}"'
    return [call for call in found if str(call.attributes["call_target_name"]) == name]


def _walk(op):
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name == "stablehlo.custom_call":
                    yield inner.operation
                yield from _walk(inner.operation)


def kernels(chip, fn, *shapes) -> list[dict]:
    """The `backend_config` of every Triton kernel of `fn` as Pallas lowers it for the chip, which
    is what XLA's Triton is given."""
    anew = lambda *args: fn(*args)  # noqa: E731 - what JAX traced does not depend on the environment
    with mock.patch.dict(os.environ, {ENVIRONMENT: "xla"}):
        calls = custom_calls(lower_for(chip, anew, *shapes), "xla")
    assert calls, "no Triton kernel in the lowered program"
    return [
        {attr.name: attr.attr for attr in call.attributes["mhlo.backend_config"]} for call in calls
    ]


def compile_for(chip, kernel) -> dict:
    """What one of `kernels` uses: bytes of `shared` memory a block, `registers` a thread, and
    `spill` and `fill`, bytes a thread (on AMD spilled registers, and memory set aside for them)."""
    binary = triton_binary.compile_ir(
        ir_text(kernel["ir"].value_bytes),
        CHIPS[chip].arch,
        *(kernel[name].value for name in ("num_warps", "num_stages")),
    )
    measure = _assemble if CHIPS[chip].platform == "cuda" else _notes
    return {"shared": binary.shared, **measure(binary.assembly)}


def _assemble(ptx: str) -> dict:
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"^\.target (\w+)", ptx, re.M).group(1)
    tool = get_ptxas(int(re.search(r"\d+", target).group()))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [tool.path, "-v", f"--gpu-name={target}", source, "-o", Path(folder) / "out"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rules = {
        "spill": r"(\d+) bytes spill stores",
        "fill": r"(\d+) bytes spill loads",
        "registers": r"Used (\d+) registers",
    }
    return _numbers(rules, done.stderr)


def _notes(assembly: str) -> dict:
    rules = {
        "spill": r"\.vgpr_spill_count:\s*(\d+)",
        "fill": r"\.private_segment_fixed_size:\s*(\d+)",
        "registers": r"\.vgpr_count:\s*(\d+)",
    }
    return _numbers(rules, assembly)


def _numbers(rules, text):
    return {name: int(re.search(rule, text).group(1)) for name, rule in rules.items()}
