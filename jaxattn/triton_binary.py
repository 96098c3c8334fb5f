"""Triton IR compiled by the official Triton package, for chips that need not be here."""

import functools
import importlib.metadata
import re
import tempfile
from typing import NamedTuple

import jax

__all__ = ["Binary", "compile_ir", "need", "version"]

# Of these the text of Pallas' IR is known to be read; jax_triton 0.4 has today's kernel call.
OLDEST = {"triton": "3.6", "jax-triton": "0.4"}
INSTALL = 'pip install -U triton "jax-triton>=0.4.1"'


class Binary(NamedTuple):
    """A compiled kernel.

    `code` is PTX text for NVIDIA and an ELF file's bytes for AMD, `shared` bytes a block, `scratch`
    the bytes of global memory a block and their alignment, or None. `assembly` is the text before
    the last step: PTX, or AMD's assembly with its register counts.
    """

    name: str
    code: str | bytes
    shared: int
    scratch: tuple[int, int] | None
    assembly: str


@functools.lru_cache(maxsize=1024)
def compile_ir(source: str, arch: int | str, num_warps: int, num_stages: int) -> Binary:
    """Compiles a kernel; the same one a second time costs nothing.

    Args:
      source: textual Triton IR with one public function.
      arch: a compute capability such as 90, or an AMD chip such as "gfx942".

    Raises:
      ValueError: Triton is missing, too old for the IR, or does not know the chip.
    """
    need("triton")
    from triton._C.libtriton import ir
    from triton.backends.compiler import Language
    from triton.compiler.compiler import make_backend

    target = _target(arch)
    backend = make_backend(target)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = _parse(source, context)
    # XLA's Triton fuses multiplies and adds as well.
    wanted = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    if target.backend == "cuda":
        wanted["ptx_version"] = _ptx_version(arch)
    options = backend.parse_options(wanted)
    stages, metadata, made = {}, {"target": target, **options.__dict__}, {}
    backend.add_stages(stages, options, Language.TRITON)
    stages.pop("cubin", None)  # JAX's plugin assembles PTX itself
    for name, stage in stages.items():
        made[name] = module = stage(module, metadata)
    if metadata.get("profile_scratch_size"):
        raise ValueError('compiler="triton": a kernel cannot be instrumented (see triton.knobs)')
    scratch = metadata.get("global_scratch_size") or 0
    return Binary(
        name=metadata["name"],
        code=module,
        shared=metadata["shared"],
        scratch=(scratch, metadata["global_scratch_align"]) if scratch else None,
        assembly=made["ptx"] if target.backend == "cuda" else made["amdgcn"],
    )


def _parse(source, context):
    from triton._C.libtriton import ir

    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(source)
        file.flush()
        try:
            module = ir.parse_mlir_module(file.name, context)
        except RuntimeError as error:
            raise ValueError(
                f'compiler="triton": Triton {version("triton")} cannot read the IR of JAX '
                f"{jax.__version__}; {INSTALL}"
            ) from error
    module.context = context
    return module


def _target(arch):
    from triton.backends.compiler import GPUTarget

    if isinstance(arch, int):
        return GPUTarget("cuda", arch, 32)
    chip = arch.split(":")[0]
    if not re.fullmatch(r"gfx9[0-9a-f]+", chip):
        # jaxlib starts 64 threads a warp on AMD, which is what this family has.
        raise ValueError(f'compiler="triton": {chip} is not one of the AMD chips gfx9..')
    return GPUTarget("hip", chip, 64)


def _ptx_version(arch: int) -> int:
    """The newest PTX that both Triton writes and the CUDA of JAX's plugin reads: 90 for 9.0."""
    from triton.backends.nvidia import compiler

    known = compiler.ptx_get_version(compiler.get_ptxas(arch).version)
    try:
        from jax._src.lib import cuda_versions

        cuda = cuda_versions.cuda_runtime_build_version()
    except (ImportError, AttributeError):  # without a plugin it will run elsewhere
        return known
    return min(known, compiler.ptx_get_version(f"{cuda // 1000}.{cuda % 1000 // 10}"))


def version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # Some distributors build Triton under another name.
        owners = importlib.metadata.packages_distributions().get(package.replace("-", "_"))
        return importlib.metadata.version(owners[0]) if owners else None


def need(package: str) -> None:
    """Raises ValueError unless `package`, of `OLDEST`, is installed and new enough."""
    has, oldest = version(package), OLDEST[package]
    if has is None:
        raise ValueError(f'compiler="triton": the package {package} is not installed; {INSTALL}')
    if _numbers(has) < _numbers(oldest):
        raise ValueError(
            f'compiler="triton": {package} {has} is too old for JAX {jax.__version__}, '
            f"it needs {oldest} or newer; {INSTALL}"
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"\d+(\.\d+)*", text).group().split("."))
