"""The `triton` target compiled for three NVIDIA generations and an AMD one, without a GPU.

Shared memory must fit the chip. Spilled bytes are held to golden/spills_gpu.json, which
`pytest tests/test_lowering_gpu.py --record-spills` writes anew, with registers and shared memory.
"""

import warnings

import configurations
import gpu_compiler
import jax
import pytest
from configurations import ALL

pytestmark = pytest.mark.skipif(
    gpu_compiler.version() is None, reason="triton is not installed; it is in the extra `dev`"
)


def check(name, chips, spills):
    config = ALL[name]
    for chip in chips:
        for number, kernel in enumerate(gpu_compiler.kernels(chip, config.call, *config.args)):
            used = gpu_compiler.compile_for(chip, kernel)
            label = name if number == 0 else f"{name}, kernel {number + 1}"
            fits = gpu_compiler.CHIPS[chip].shared
            assert used["shared"] <= fits, f"{chip}: {used['shared']} bytes of shared memory"
            found = {what: used.pop(what) for what in ("spill", "fill")}
            if jax.__version_info__ >= (0, 12):  # the record's; an older JAX writes other IR
                spills.check("gpu", gpu_compiler.version(), chip, label, found, used)


@pytest.mark.parametrize("name", ALL)
def test_sm_90(name, spills):
    check(name, ["sm_90"], spills)


@pytest.mark.parametrize("name", configurations.marked())
def test_other_nvidia_chips(name, spills):
    check(name, ["sm_80", "sm_100"], spills)


@pytest.mark.parametrize("name", configurations.EVERYWHERE)
def test_amd(name, spills):
    check(name, ["gfx942"], spills)


@pytest.mark.parametrize(
    ("name", "launches"),
    [
        ("dense causal D128", ["forward"]),
        ("decode page 16", ["forward", "merge"]),
        ("mixed page 16", ["forward", "forward", "merge"]),
    ],
)
def test_the_chosen_target_is_triton(name, launches):
    """A program for a GPU holds the kernels of its launches and nothing of the other targets."""
    config = ALL[name]
    found = gpu_compiler.kernels("sm_90", config.call, *config.args)
    assert [x["name"].value for x in found] == [f"jaxattn_{launch}" for launch in launches]
    text = gpu_compiler.lower_for("sm_90", config.call, *config.args).as_text()
    assert "tpu_custom_call" not in text
    assert "stablehlo.dot_general" not in text


def test_the_only_warning_is_the_known_deprecation():
    """The one filter of pyproject.toml hides that and nothing else."""
    config = ALL["decode page 16"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gpu_compiler.kernels("sm_90", config.call, *config.args)
    said = {str(warning.message).split(".")[0] for warning in caught}
    assert all("Pallas Triton backend is deprecated" in one for one in said), said
