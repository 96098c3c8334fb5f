"""The cases of `python -m scripts.tune`: names, arrays and candidates."""

import dataclasses

import numpy as np
import pytest

from jaxattn import tuning
from jaxattn.problem import Tiles
from scripts import tune_cases
from scripts.tune_candidates import candidates, compiler_in_use, variants

H200, MI300X = "NVIDIA H200", "AMD Instinct MI300X"


@pytest.mark.parametrize("name", tune_cases.NAMES + tune_cases.SMALL_NAMES)
def test_a_case_is_its_name_and_has_candidates(name):
    case = tune_cases.parse(name)
    assert tune_cases.parse(case.name) == case
    for device in (H200, MI300X):
        found = candidates(case.shape, device, "triton")
        first = tuning.formula(case.shape, device)
        assert found[0] == dataclasses.replace(first, compiler=first.compiler or compiler_in_use())
        assert len(set(found)) == len(found) >= 3
        assert all(tuning.fits(case.shape, tiles, device) for tiles in found[1:])
        for tiles in variants(case.shape, device, found[0]):
            assert tiles != found[0]
            assert tuning.fits(case.shape, tiles, device)


def test_the_default_cases_differ_and_cover_what_is_asked():
    cases = [tune_cases.parse(name) for name in tune_cases.NAMES]
    assert len(set(cases)) == len(cases)
    for kind in (True, False):
        own = [case for case in cases if case.few is kind]
        assert {case.head_dim for case in own} >= {64, 80, 96, 128, 256}
        assert {case.page_size for case in own} >= {None, 1, 16, 64, 256}
        assert {case.heads // case.kv_heads for case in own} >= {1, 4, 5}


def test_what_was_fast_by_hand_is_among_the_candidates():
    for name, tiles in (
        ("decode:B16,S8192,H32/8,D128,P16", "1x64 w4 s3 p512"),
        ("decode:B128,S2048,H32/8,D128,P16", "1x32 w2 s4 p512"),
        ("decode:B1,S32768,H32/8,D128,P16", "1x128 w8 s2 p256"),
        ("prefill:B1,S8192,H32/8,D128,P16", "32x32 w4 s4 p0"),
        ("full:B64,S577,H16,D64", "64x64 w4 s3 p0"),
        ("full:B64,S577,H16,D64", "128x64 w8 s3 p0"),
    ):
        shape = tune_cases.parse(name).shape
        wanted = dataclasses.replace(tuning.parse(tiles), compiler=compiler_in_use())
        assert wanted in candidates(shape, H200, "triton"), name
    few = tune_cases.parse("decode:B1,S32768,H32/8,D128,P16").shape
    counts = [tiles.programs for tiles in variants(few, H200, Tiles(1, 128, 8, 2, 256))]
    assert counts[:3] == [128, 512, 1024]  # 8 heads of 128 parts of 256 keys
    full = tune_cases.parse("decode:B128,S2048,H32/8,D128,P16").shape
    assert 0 in [tiles.programs for tiles in variants(full, H200, Tiles(1, 32, 2, 4, 512))]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("decode:B16,S8192", "H, D are missing"),
        ("decode:H2,D8", "S is missing"),
        ("decode:S8,S8,H1,D8", "S is given twice"),
        ("decode:B0,S8,H1,D8", "B must be from 1 to 65536"),
        ("prefill:S8,T9,H1,D8", "9 queries over 8 keys"),
        ("decode:S8,H3/2,D8", "heads=3: must be a multiple of 2 kv heads"),
        ("decode:S8,H2,D12", "head_dim=12"),
        ("decode:S8,H2,D8,V0", "head_dim_v=0"),
        ("decode:S8,H2,D8,P3", "page_size=3"),
        ("decode:B65536,S65536,H2,D8", "4294967296 keys in all"),
        ("mixed:L1/8,H2,D8", "must be KIND:FIELD,FIELD,... with KIND full, prefill, decode"),
        ("decode:S8,H2,D8,W4", "'W4' is no field"),
        ("decode", "must be KIND:FIELD"),
        ("decode:S8,H2,D8,F8", "F must be 16 or 32"),
    ],
)
def test_a_name_that_is_no_case_is_refused(name, reason):
    with pytest.raises(ValueError, match=f"^'{name}.*': .*{reason}"):
        tune_cases.parse(name)


@pytest.mark.parametrize("name", tune_cases.SMALL_NAMES)
def test_the_right_result_does_not_depend_on_how_many_rows_are_done_at_once(name, monkeypatch):
    case = tune_cases.parse(name)
    arrays = tune_cases.operands(case)
    whole = tune_cases.call(case, implementation="reference")(*arrays)
    monkeypatch.setattr(tune_cases, "REFERENCE_BYTES", 4 * case.heads * case.keys * 13)
    parts = tune_cases.right(case, arrays)
    assert parts.shape == whole.shape
    np.testing.assert_allclose(parts, whole, atol=1e-6)
