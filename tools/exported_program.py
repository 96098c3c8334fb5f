"""Paged attention compiled by the official Triton on one machine, run on another without it.

    python -m tools.exported_program write decode.bin --chip "NVIDIA H200"   # no GPU needed
    python -m tools.exported_program run decode.bin                          # no Triton needed

`run` compares with the reference and exits with 1 when they differ. Both want `flatbuffers`.
"""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

import jaxattn
from jaxattn.triton_compiler import EXPORT_CHECKS
from scripts import console

PROG = "exported_program"
SEQS, WIDTH, PAGE, HEADS, KV_HEADS, DIM = 8, 128, 16, 32, 8, 128
TOLERANCE = 1.6e-2  # of a row's norm: the rounding of bf16

attend = functools.partial(jaxattn.paged_attention, return_lse=True)


def arguments():
    """q, cache, tables, lengths and offsets of a decode step of `SEQS` sequences."""
    rng = np.random.default_rng(0)
    pages = SEQS * WIDTH
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32), jnp.bfloat16)  # noqa: E731
    cache = jaxattn.PagedKV(*(normal(pages, KV_HEADS, PAGE, DIM) for _ in range(2)))
    tables = rng.permutation(pages).reshape(SEQS, WIDTH)
    lengths = rng.integers(1, WIDTH * PAGE + 1, SEQS)
    ints = [jnp.asarray(x, jnp.int32) for x in (tables, lengths, np.arange(SEQS + 1))]
    return normal(SEQS, HEADS, DIM), cache, *ints


def write(path: Path, kind: str) -> None:
    device = AbstractDevice(device_kind=kind, num_cores=132, platform="gpu")
    mesh = AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=device)
    f = jax.jit(functools.partial(attend, implementation="triton", compiler="triton"))
    with use_abstract_mesh(mesh):
        made = export.export(f, platforms=("cuda",), disabled_checks=EXPORT_CHECKS)
        path.write_bytes(made(*jax.eval_shape(arguments)).serialize())
    print(f"wrote {path}: {path.stat().st_size} bytes for {kind}, by JAX {jax.__version__}")


def run(path: Path) -> bool:
    """Whether the program in the file agrees with the reference."""
    data = bytearray(path.read_bytes())
    try:
        exported = export.deserialize(data)
    except Exception as error:  # of flatbuffers, struct or MLIR: whatever the bytes lead to
        raise ValueError(f"{path}: cannot be read as an exported program: {error}") from error
    program = jax.jit(exported.call)
    args = arguments()
    out, lse = (np.asarray(x, np.float32) for x in program(*args))
    brought = sorted({"triton", "jax_triton"} & set(sys.modules))
    exact = (x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x for x in jax.tree.leaves(args))
    exact = jax.tree.unflatten(jax.tree.structure(args), exact)
    want, want_lse = map(np.asarray, attend(*exact, implementation="reference"))
    error = np.linalg.norm(out - want, axis=-1) / np.linalg.norm(want, axis=-1)
    off = np.abs(lse - want_lse).max()
    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}; imported: {brought or 'none'}")
    print(f"largest error of a row {error.max():.1e} of its norm, of lse {off:.1e}")
    return bool(error.max() <= TOLERANCE and off <= 1e-3 and not brought)


def main() -> int:
    parser = console.Parser(prog=PROG, description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="compile here and write the program to a file")
    running = commands.add_parser("run", help="run the program in a file and check what it says")
    writing.add_argument("--chip", default="NVIDIA H200", help="as JAX names its device kind")
    for command in (writing, running):
        command.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.command == "write":
        write(options.file, options.chip)
        return 0
    return 0 if run(options.file) else 1


if __name__ == "__main__":
    console.run(PROG, main)
