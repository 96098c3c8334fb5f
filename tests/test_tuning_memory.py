"""What tuning takes for fitting a chip does fit it, says the compiler."""

import gpu_compiler
import jax
import pytest

from jaxattn import chips, tuning, tuning_formula
from scripts import tune_cases

pytestmark = pytest.mark.skipif(
    gpu_compiler.version() is None, reason="triton is not installed; it is in the extra `dev`"
)


@pytest.mark.parametrize("chip", gpu_compiler.CHIPS)
@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        ("decode:B16,S8192,H32/8,D128,P16", "1x64 w4 s3"),
        ("prefill:B1,S8192,H32/8,D128,P16", "32x32 w4 s4"),
        ("full:B64,S577,H16,D64", "128x64 w8 s3"),
        ("prefill:B1,S8192,H32/8,D128,P16", "32x64 w8 s2"),
        ("full:B32,S577,H16,D64,F32", "64x32 w4 s2"),
    ],
)
def test_tiles_take_no_more_shared_memory_than_is_thought(name, tiles, chip):
    case, tiles = tune_cases.parse(name), tuning.parse(tiles)
    call = tune_cases.call(case, implementation="triton", compiler="xla", tiles=tiles)
    operands = jax.eval_shape(lambda: tune_cases.operands(case))
    (kernel,) = gpu_compiler.kernels(chip, call, *operands)
    facts = chips.named(gpu_compiler.CHIPS[chip].device_kind)
    assert facts.shared == gpu_compiler.CHIPS[chip].shared
    assert facts.cores == gpu_compiler.CHIPS[chip].cores
    thought = tuning_formula.shared_bytes(case.shape, tiles, facts)
    used = gpu_compiler.compile_for(chip, kernel)["shared"]
    assert used <= thought, f"{used} of {thought}"
