"""The `triton` target compiled for three NVIDIA generations by the official Triton, without a GPU.

Shared memory must fit the chip. Spilled bytes are held to golden/spills_gpu.json, which
`pytest tests/test_lowering_gpu.py --record-spills` writes anew.
"""

import warnings

import configurations
import gpu_compiler
import jax
import pytest
from configurations import ALL

pytestmark = [
    pytest.mark.skipif(
        gpu_compiler.version() is None, reason="triton is not installed; it is in the extra `dev`"
    ),
    pytest.mark.skipif(
        jax.__version_info__ < (0, 12), reason="Triton cannot read the bytecode of this JAX"
    ),
]


def check(name, chips, spills):
    config = ALL[name]
    for number, kernel in enumerate(gpu_compiler.lower(config.call, *config.args)):
        for chip in chips:
            used = gpu_compiler.compile_for(chip, kernel)
            fits = gpu_compiler.CHIPS[chip][1]
            assert used["shared"] <= fits, f"{chip}: {used['shared']} bytes of shared memory"
            found = {what: used[what] for what in ("spill", "fill")}
            label = name if number == 0 else f"{name}, kernel {number + 1}"
            spills.check("gpu", gpu_compiler.version(), chip, label, found)


@pytest.mark.parametrize("name", ALL)
def test_sm_90(name, spills):
    check(name, ["sm_90"], spills)


@pytest.mark.parametrize("name", configurations.marked())
def test_other_chips(name, spills):
    check(name, ["sm_80", "sm_100"], spills)


def test_the_chosen_target_is_triton():
    """A program for a GPU holds one Triton kernel and nothing of the other targets."""
    config = ALL["mixed page 16"]
    assert len(gpu_compiler.lower(config.call, *config.args)) == 1


def test_the_only_warning_is_the_known_deprecation():
    """The one filter of pyproject.toml hides that and nothing else."""
    config = ALL["decode page 16"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gpu_compiler.lower(config.call, *config.args)
    said = {str(warning.message).split(".")[0] for warning in caught}
    assert all("Pallas Triton backend is deprecated" in one for one in said), said
