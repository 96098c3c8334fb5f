"""Environment of the test run, set before JAX is imported anywhere."""

import os

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


@pytest.fixture(autouse=True)
def _gpu_or_skip(request):
    if request.node.get_closest_marker("gpu"):
        import jax

        if jax.default_backend() != "gpu":
            pytest.skip("needs a GPU and a JAX built for it")
