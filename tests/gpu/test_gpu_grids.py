"""The `triton` target compiled for the GPU at hand, on the full grids."""

import grids
import pytest
import shapes
from checking import check_case, parametrize

import jaxattn

pytestmark = pytest.mark.gpu


@parametrize(grids.ALONE)
def test_masks_and_scores_alone(case):
    check_case(case, "triton")


@parametrize(grids.MASK_PAIRS, grids.SCORE_PAIRS, grids.MASK_AND_SCORE)
def test_pairs(case):
    check_case(case, "triton")


@parametrize(grids.FEATURES)
def test_features(case):
    check_case(case, "triton")


@parametrize(*(grids.vit(dtype=dtype, batch=2, heads=4) for dtype in ("bf16", "f16")))
def test_vit(case):
    check_case(case, "triton")


@parametrize(grids.vllm(dims=(128,)), grids.sample(grids.vllm(dims=(256,)), 3))
def test_vllm_grid(case):
    check_case(case, "triton")


@parametrize(
    grids.flash("varlen", shapes.FLASH_VARLEN, ((6, 2),), shapes.FLASH_HEAD_DIMS),
    grids.flash("varlen", shapes.FLASH_VARLEN, ((6, 6), (6, 1)), (128,), dtype="f16"),
    grids.flash("varlen", shapes.FLASH_LONG, ((6, 2),), (128,)),
)
def test_flash_varlen_grid(case):
    check_case(case, "triton")


@parametrize(
    grids.flash("paged", shapes.FLASH_KVCACHE, ((6, 1),), (128,), pages=(1, 4, 128)),
    grids.flash("paged", shapes.FLASH_KVCACHE, ((6, 2),), (64, 256)),
)
def test_flash_kvcache_grid(case):
    check_case(case, "triton")


@parametrize(grids.flashinfer())
def test_flashinfer_mixed_batches(case):
    check_case(case, "triton")


@parametrize(grids.models(dtype="bf16"))
def test_real_head_layouts(case):
    check_case(case, "triton")


@pytest.mark.parametrize("seqs", [shapes.VLLM_MANY, ((533, 533),) * 33], ids=["1x533", "533x33"])
def test_many_sequences(seqs):
    check_case(grids.Case(grids.Call("paged", seqs, (8, 2, 128, 128), dtype="bf16")), "triton")


@pytest.mark.parametrize("tiles", [(1, 16), (3, 32), (16, 64), (32, 128)])
def test_tiles_change_nothing(tiles):
    for call in grids.KINDS.values():
        check_case(grids.Case(call), "triton", tiles=jaxattn.Tiles(*tiles))
