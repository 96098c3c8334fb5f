"""The `mosaic` target compiled for five TPU generations by the real compiler, without a TPU.

VMEM and SMEM overflows are the compiler's errors. Spilled registers are held to the numbers in
golden/spills_tpu.json; `pytest tests/test_lowering_tpu.py --record-spills` writes them anew.
"""

import configurations
import pytest
import tpu_compiler

pytestmark = pytest.mark.skipif(
    tpu_compiler.version() is None, reason="libtpu is not installed; it is in the extra `dev`"
)


@pytest.mark.parametrize("name", configurations.ALL)
def test_v6e(name, spills):
    config = configurations.ALL[name]
    found = tpu_compiler.compile_for("v6e", config.call, *config.args)
    spills.check("tpu", tpu_compiler.version(), "v6e", name, found)


@pytest.mark.parametrize("generation", [g for g in tpu_compiler.TOPOLOGIES if g != "v6e"])
@pytest.mark.parametrize("name", configurations.marked())
def test_other_generations(generation, name, spills):
    config = configurations.ALL[name]
    found = tpu_compiler.compile_for(generation, config.call, *config.args)
    spills.check("tpu", tpu_compiler.version(), generation, name, found)


def test_overflow_is_an_error():
    """The gate itself: a tile that cannot fit must not compile."""
    import jaxattn

    config = configurations.dense(256, t=16384, tiles=jaxattn.Tiles(16, 16384))
    with pytest.raises(Exception, match=r"(?i)vmem"):
        tpu_compiler.compile_for("v6e", config.call, *config.args)
