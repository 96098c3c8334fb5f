"""Compiles for TPU generations with libtpu on a machine without a TPU, and counts what it spilled.

libtpu reads its flags when it is first loaded, and takes its device out of the environment: `load`
comes before anything else here.
"""

import atexit
import functools
import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path

TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:1x1",
    "v5p": "v5p:1x1x1",
    "v6e": "v6e:1x1",
    "tpu7x": "tpu7x:2x2x1",
}
# Of the dump of a hundred passes only the last one's table of slots is written.
FLAGS = (
    "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_hlo.*"
)
SLOTS = ["MATMUL", "MATPUSH", "XLU", "VALU", "VPOP", "EUP", "VLOAD", "FILL", "VSTORE", "SPILL"]


def version() -> str | None:
    """libtpu's version, or None where it is not installed."""
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def load() -> Path:
    """Sets libtpu up for compiling only; gives the folder that it dumps into."""
    folder = Path(tempfile.mkdtemp(prefix="jaxattn-tpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ |= {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v6e-1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": FLAGS.format(folder),
    }
    return folder


@functools.cache
def mesh(generation):
    import jax
    import numpy as np
    from jax.experimental import topologies

    load()
    topology = topologies.get_topology_desc(TOPOLOGIES[generation], platform="tpu")
    return jax.sharding.Mesh(np.array(topology.devices[:1]), ("x",))


def compile_for(generation, fn, *shapes, kernel="jaxattn") -> dict:
    """Compiles `fn` of `jax.ShapeDtypeStruct`s; slots used by all kernels with that in their names.

    An overflow of VMEM or SMEM is the compiler's error.
    """
    import jax

    folder, where = load(), mesh(generation)
    for old in folder.iterdir():
        old.unlink()
    place = jax.sharding.NamedSharding(where, jax.sharding.PartitionSpec())
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)
    with jax.sharding.use_abstract_mesh(where.abstract_mesh):
        jax.jit(fn).trace(*args).lower(lowering_platforms=("tpu",)).compile()
    tables = list(folder.glob(f"*{kernel}*final_hlo-static-per-bundle-utilization.txt"))
    assert tables, f"no kernel {kernel} was compiled"
    used = [_slots(path.read_text().splitlines()) for path in tables]
    return {slot.lower(): sum(one[slot] for one in used) for slot in ("SPILL", "FILL")}


def _slots(lines) -> dict:
    """How many slots of each kind the bundles use."""
    first = next(i for i, line in enumerate(lines) if line.startswith("== UTIL")) + 1
    rows = [list(map(int, line.split())) for line in lines[first:] if line.strip()]
    assert len(rows[0]) >= len(SLOTS)
    return {slot: sum(row[i] for row in rows) for i, slot in enumerate(SLOTS)}
