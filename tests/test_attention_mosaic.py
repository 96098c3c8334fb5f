"""The `mosaic` target's kernel in the TPU interpreter, which fails on a race between copies.

Both ways of executing copies: as late as their wait, which finds a read before the wait, and as
soon as they start, which finds a buffer that is filled again too early.
"""

import grids
import pytest
from checking import check_case, parametrize
from problems import Call

import jaxattn

LATE, EARLY = "on_wait", "eager"
both = pytest.mark.parametrize("dma", [LATE, EARLY])


@parametrize(grids.sample(grids.tiny(grids.ALONE), 2))
def test_masks_and_scores_alone(case):
    check_case(case, "mosaic", dma=LATE)


@parametrize(grids.sample(grids.tiny(grids.ALONE), 2, first=1))
def test_other_masks_and_scores_alone(case):
    check_case(case, "mosaic", dma=EARLY)


@both
@parametrize(grids.sample(grids.tiny(grids.MASK_PAIRS), 12), grids.MODELS_MASKED)
def test_together(case, dma):
    check_case(case, "mosaic", dma=dma)


# A tile of 128 keys is part of a page, a page, some pages, or pages that are copied in a loop.
@both
@pytest.mark.parametrize("page_size", [1, 2, 4, 16, 128, 256])
def test_page_sizes(page_size, dma):
    call = Call("paged", ((3, 270), (1, 128)), (2, 1, 16, 16), page_size)
    check_case(grids.Case(call), "mosaic", dma=dma, tiles=jaxattn.Tiles(4, 128))


@parametrize(*(grids.sample(table, 3) for table in (grids.GROUPS, grids.HEAD_DIMS, grids.EDGES)))
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
