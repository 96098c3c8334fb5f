"""The `mosaic` target compiled for five TPU generations by the real compiler, without a TPU.

VMEM and SMEM overflows are the compiler's errors. Spilled registers are held to the numbers in
golden/spills_tpu.json; `pytest tests/test_lowering_tpu.py --record-spills` writes them anew.
"""

import configurations
import jax
import pytest
import tpu_compiler

pytestmark = pytest.mark.skipif(
    tpu_compiler.version() is None, reason="libtpu is not installed; it is in the extra `dev`"
)


def _args(config):
    """Dense calls with two heads only: the code is the same, and a dump goes through every step."""
    if not all(hasattr(x, "ndim") and x.ndim == 4 for x in config.args):
        return config.args
    few = ((1, x.shape[1], min(x.shape[2], 2), x.shape[3]) for x in config.args)
    return [jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(few, config.args, strict=True)]


@pytest.mark.parametrize("name", configurations.ALL)
def test_v6e(name, spills):
    config = configurations.ALL[name]
    found = tpu_compiler.compile_for("v6e", config.call, *_args(config))
    spills.check("tpu", tpu_compiler.version(), "v6e", name, found)


@pytest.mark.parametrize("generation", [g for g in tpu_compiler.TOPOLOGIES if g != "v6e"])
@pytest.mark.parametrize("name", configurations.marked())
def test_other_generations(generation, name, spills):
    config = configurations.ALL[name]
    found = tpu_compiler.compile_for(generation, config.call, *_args(config))
    spills.check("tpu", tpu_compiler.version(), generation, name, found)


def test_overflow_is_an_error():
    """The gate itself: a tile that cannot fit must not compile."""
    import jaxattn

    config = configurations.dense(256, t=16384, tiles=jaxattn.Tiles(16, 16384))
    with pytest.raises(Exception, match=r"(?i)vmem"):
        tpu_compiler.compile_for("v6e", config.call, *config.args)
