"""The `triton` target's kernel in Pallas' interpreter: what its loads, masks and launch compute.

The same cases compiled for a real GPU are in tests/gpu.
"""

import grids
import pytest
from checking import check_case, parametrize

import jaxattn


@parametrize(grids.ALONE)
def test_masks_and_scores_alone(case):
    check_case(case, "triton")


@parametrize(grids.sample(grids.MASK_PAIRS, 5), grids.sample(grids.MASK_AND_SCORE, 5))
def test_pairs(case):
    check_case(case, "triton")


@parametrize(grids.MODELS_MASKED, grids.GROUPS, grids.sample(grids.HEAD_DIMS, 2), grids.EDGES)
def test_features(case):
    check_case(case, "triton")


@parametrize(grids.sample(grids.PAGE_SIZES, 2), grids.DTYPES, grids.LARGE_LOGITS)
def test_pages_and_dtypes(case):
    check_case(case, "triton")


@parametrize(grids.vit((197, 257)))
def test_vit(case):
    check_case(case, "triton")


@pytest.mark.parametrize("tiles", [(1, 16), (3, 32), (32, 128)])
def test_tiles_change_nothing(tiles):
    check_case(grids.Case(grids.KINDS["paged"]), "triton", tiles=jaxattn.Tiles(*tiles))


def test_tile_too_small_for_a_product_is_named():
    with pytest.raises(ValueError, match="block_k=8"):
        check_case(grids.Case(grids.KINDS["paged"]), "triton", tiles=jaxattn.Tiles(8, 8))
