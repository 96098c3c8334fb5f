"""The `xla` target, natively: every mask and score alone and in pairs, every shape."""

import grids
import pytest
import shapes
from checking import check_case, parametrize

import jaxattn


@parametrize(grids.ALONE)
def test_masks_and_scores_alone(case):
    check_case(case, "xla")


@parametrize(grids.MASK_PAIRS, grids.SCORE_PAIRS, grids.MASK_AND_SCORE)
def test_pairs(case):
    check_case(case, "xla")


@parametrize(grids.FEATURES)
def test_features(case):
    check_case(case, "xla")


@parametrize(grids.vit())
def test_vit(case):
    check_case(case, "xla")


@parametrize(grids.vllm(heads=((8, 2),), dims=(128,)))
def test_vllm_grid(case):
    check_case(case, "xla")


SHORT = [lens for lens in shapes.FLASH_VARLEN if max(lens) <= 211]


@parametrize(grids.flash("varlen", SHORT, ((6, 2),), (96,)))
def test_flash_varlen_grid(case):
    check_case(case, "xla")


KVCACHE = [lens for lens in shapes.FLASH_KVCACHE if lens[0] <= 64 and lens[1] <= 1024]


@parametrize(grids.flash("paged", KVCACHE, ((6, 1),), (64,), pages=(1, 128)))
def test_flash_kvcache_grid(case):
    check_case(case, "xla")


def test_many_single_tokens():
    call = grids.Call("paged", shapes.VLLM_MANY, (8, 2, 32, 32))
    check_case(grids.Case(call), "xla")


@pytest.mark.parametrize("tiles", [(1, 1), (1, 16), (3, 8), (64, 256)])
def test_tiles_change_nothing(tiles):
    for case in (grids.Case(call) for call in grids.KINDS.values()):
        check_case(case, "xla", tiles=jaxattn.Tiles(*tiles))
