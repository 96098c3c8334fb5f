"""Environment of the test run, set before JAX is imported anywhere."""

import gc
import os
from pathlib import Path

import pytest
from spilling import Spills


def pytest_addoption(parser):
    parser.addoption(
        "--record-spills",
        action="store_true",
        help="write the register spills that the compilers report to tests/golden",
    )


def pytest_configure(config):
    wanted = config.getoption("markexpr", "")
    if "gpu" not in wanted.replace("not gpu", ""):
        # libtpu is installed for the lowering tests: without this JAX would look for a TPU.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.fixture(scope="session")
def spills(request):
    return Spills(request.config.getoption("--record-spills"))


@pytest.fixture
def call_main(capsys):
    """Run a program (its module, arguments) in this process: (exit code, stdout, stderr)."""
    from scripts import console

    def run(program, *argv):
        with pytest.raises(SystemExit) as exit_:
            console.run(program.PROG, lambda: program.main(list(argv)))
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


@pytest.fixture(autouse=True)
def _gpu_or_skip(request):
    if request.node.get_closest_marker("gpu"):
        import jax

        if jax.default_backend() != "gpu":
            pytest.skip("needs a GPU and a JAX built for it")


MAPS = Path("/proc/self/maps")
MANY_MAPS = 20_000  # a test adds some two hundred; Linux ends a process that asks for 65,530


@pytest.fixture(autouse=True)
def _forget_old_programs():
    """Each program that XLA compiles for a CPU keeps memory mapped as long as a cache knows it."""
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        import jax

        jax.clear_caches()
        gc.collect()
