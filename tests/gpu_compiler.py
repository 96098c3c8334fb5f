"""Compiles the Triton kernels of a call for NVIDIA chips with the official Triton, without a GPU.

JAX lowers for an abstract device; the Triton IR inside the lowered program is compiled to PTX by
Triton and to machine code by the assembler that Triton brings, which says what it spilled.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import tempfile
from pathlib import Path

# Compute capability -> shared memory that a block may take, in bytes.
CHIPS = {"sm_80": (80, 163 * 1024), "sm_90": (90, 227 * 1024), "sm_100": (100, 227 * 1024)}
DEVICE = "NVIDIA H100 80GB HBM3"
# Triton warns until it is told whether to fuse multiplies and adds; JAX's own Triton does.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def version() -> str | None:
    """Triton's version, or None where it is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.metadata.version("triton")


def lower(fn, *shapes) -> list[dict]:
    """The `backend_config` of every Triton kernel in `fn` of `jax.ShapeDtypeStruct`s."""
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

    device = AbstractDevice(device_kind=DEVICE, num_cores=132, platform="gpu")
    mesh = AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=device)
    with use_abstract_mesh(mesh):
        lowered = jax.jit(fn).trace(*shapes).lower(lowering_platforms=("cuda",))
    calls = _custom_calls(lowered.compiler_ir("stablehlo").operation)
    kernels = [
        {attr.name: attr.attr for attr in call.attributes["mhlo.backend_config"]}
        for call in calls
        if "triton" in str(call.attributes["call_target_name"])
    ]
    assert kernels, "no Triton kernel in the lowered program"
    return kernels


def _custom_calls(op):
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                if inner.operation.name == "stablehlo.custom_call":
                    yield inner.operation
                yield from _custom_calls(inner.operation)


def compile_for(chip, kernel) -> dict:
    """Shared memory, registers and spilled bytes of one kernel of `lower` on `chip`."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    capability, _ = CHIPS[chip]
    backend = make_backend(GPUTarget("cuda", capability, 32))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.mlirbc"
        source.write_bytes(kernel["ir"].value_bytes)
        module = ir.parse_mlir_module(str(source), context)
    module.context = context
    wanted = {name: int(kernel[name].value) for name in ("num_warps", "num_stages")}
    options, meta = backend.parse_options(wanted), {}
    for stage in (backend.make_ttir, backend.make_ttgir, backend.make_llir, backend.make_ptx):
        module = stage(module, meta, options, capability)
    return {"shared": meta["shared"], **_assemble(module, capability)}


def _assemble(ptx: str, capability: int) -> dict:
    from triton.backends.nvidia.compiler import get_ptxas

    tool = get_ptxas(capability)
    target = re.search(r"^\.target (\w+)", ptx, re.M).group(1)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [tool.path, "-v", f"--gpu-name={target}", source, "-o", Path(folder) / "out"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers = {
        "spill": r"(\d+) bytes spill stores",
        "fill": r"(\d+) bytes spill loads",
        "registers": r"Used (\d+) registers",
    }
    return {name: int(re.search(rule, done.stderr).group(1)) for name, rule in numbers.items()}
