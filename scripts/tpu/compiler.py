"""libtpu's compiler in a process of its own: its flags count only before it is loaded.

``python -m scripts.tpu.compiler TOPOLOGY [--no-profile]`` reads jobs from stdin, a JSON line
{"case", "way"} each, and answers with a JSON line of figures (scripts/tpu/figures.py), or
{"error"}.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

# Of the dumps of a hundred passes only those of the last are wanted.
DUMP = (
    "--xla_jf_dump_to={0}/dump --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final.*"
)
PROFILE = " --xla_jf_dump_static_llo_profile_to={0}/profile"
LONGEST_ERROR = 300


def environment(folder: Path, profile: bool) -> dict[str, str]:
    """What libtpu needs to know to compile without a TPU and to say what it made."""
    return {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v6e-1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "LIBTPU_INIT_ARGS": (DUMP + PROFILE * profile).format(folder),
    }


def main(topology: str, profile: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix="jaxattn-tpu-"))
    os.environ |= environment(folder, profile)
    # libtpu writes to stdout and stderr as it likes; only answers may go where the jobs came from.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            job = json.loads(line)
            shutil.rmtree(folder, ignore_errors=True)
            for part in ("dump", "profile"):
                (folder / part).mkdir(parents=True)
            print(json.dumps(_answer(topology, job, folder)), file=answers, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer(topology: str, job: dict, folder: Path) -> dict:
    from scripts.tpu import figures, suites, ways

    case = suites.case_named(job["case"])
    try:
        way = ways.way(job["way"], case)
        program = compile_for(topology, way.call, *way.shapes)
        return figures.of(case, way, program, folder, topology)
    except Exception as error:  # the compiler's own errors have no common base
        return {"error": f"{type(error).__name__}: {error}"[:LONGEST_ERROR]}


def compile_for(topology: str, call, *shapes):
    """``call`` of arrays of these shapes, compiled for one device of the topology."""
    import jax
    import numpy as np
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(topology, platform="tpu").devices
    mesh = jax.sharding.Mesh(np.array(devices[:1]), ("x",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        return jax.jit(call).trace(*args).lower(lowering_platforms=("tpu",)).compile()


if __name__ == "__main__":
    main(sys.argv[1], "--no-profile" not in sys.argv)
