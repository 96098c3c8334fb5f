"""The `mosaic` target's kernel in the TPU interpreter, which fails on a race between copies.

Both ways of executing copies: as late as their wait, which finds a read before the wait, and as
soon as they start, which finds a buffer that is filled again too early.
"""

import grids
import jax
import jax.numpy as jnp
import pytest
from checking import check_case, fail_on_race, parametrize
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from problems import Call

import jaxattn

LATE, EARLY = "on_wait", "eager"
both = pytest.mark.parametrize("dma", [LATE, EARLY])


@parametrize(grids.sample(grids.tiny(grids.ALONE), 3))
def test_masks_and_scores_alone(case):
    check_case(case, "mosaic", dma=LATE)


@parametrize(grids.sample(grids.tiny(grids.ALONE), 3, first=1))
def test_other_masks_and_scores_alone(case):
    check_case(case, "mosaic", dma=EARLY)


@parametrize(grids.sample(grids.tiny(grids.MASK_PAIRS), 12), grids.MODELS_MASKED)
def test_together(case):
    check_case(case, "mosaic", dma=LATE)


# A tile of 128 keys is part of a page, a page, some pages, or pages that are copied in a loop.
@pytest.mark.parametrize(
    ("page_size", "dma"),
    [(1, LATE), (2, EARLY), (4, LATE), (16, EARLY), (16, LATE), (128, LATE), (256, EARLY)],
)
def test_page_sizes(page_size, dma):
    call = Call("paged", ((3, 270), (1, 128)), (2, 1, 16, 16), page_size)
    check_case(grids.Case(call), "mosaic", dma=dma, tiles=jaxattn.Tiles(4, 128))


@parametrize(*(grids.sample(table, 4) for table in (grids.GROUPS, grids.HEAD_DIMS, grids.EDGES)))
def test_shapes(case):
    check_case(case, "mosaic", dma=EARLY)


@both
@parametrize({name: case for name, case in grids.DTYPES.items() if "bf16" in name})
def test_bf16(case, dma):
    check_case(case, "mosaic", dma=dma)


@parametrize({name: case for name, case in grids.DTYPES.items() if " f16" in name})
def test_f16_is_refused(case):
    with pytest.raises(ValueError, match="float16"):
        check_case(case, "mosaic")


@parametrize(grids.vit((197,)))
def test_vit(case):
    check_case(case, "mosaic", dma=EARLY)


@both
def test_the_detector_finds_a_race(dma):
    """The gate itself: a kernel that reads a buffer before its copy has arrived must fail."""

    def kernel(source, out, buffer, sem):
        copy = pltpu.make_async_copy(source, buffer, sem)
        copy.start()
        out[...] = buffer[...]
        copy.wait()

    run = pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        interpret=pltpu.InterpretParams(dma_execution_mode=dma, detect_races=True),
    )
    with pytest.raises(Exception, match=r"(?i)race"):
        fail_on_race(run(jnp.ones((8, 128))))
