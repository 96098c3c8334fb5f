"""Runs tests/mesh in processes with eight virtual CPU devices, which JAX must know as it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Tiny programs take longer to compile than to run.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"


@pytest.mark.parametrize("path", sorted(TESTS.glob("mesh/test_*.py")), ids=lambda path: path.stem)
def test_on_eight_devices(path):
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
    }
    command = [sys.executable, "-m", "pytest", str(path), "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        command, cwd=TESTS.parent, env=env, capture_output=True, text=True, timeout=550
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
