"""Uneven batches of real sizes, split over the GPU at hand, by both compilers."""

import functools

import numpy as np
import pytest
import spots
from checking import check
from problems import Call
from recipes import MASKS, window

from jaxattn import Tiles
from jaxattn.problem import COMPILERS
from jaxattn.triton_compiler import usable
from jaxattn.tuning import spell

pytestmark = pytest.mark.gpu

LLAMA = (32, 8, 128, 128)
LENGTHS = np.random.default_rng(0).integers(20, 4001, 256)
PROMPTS = ((512, 512), (300, 2300), (33, 1000), (1024, 1024), (9, 64))


def paged(seqs, heads=LLAMA, page_size=16) -> Call:
    return Call("paged", tuple(seqs), heads, page_size, "bf16")


# A call, its mask, and whether it has sinks.
CASES = {
    "one of 100,000": (lambda: paged(((1, 100_000), *((1, 500),) * 63)), MASKS["causal"], False),
    "256 of 20 to 4000": (
        lambda: paged(((1, int(n)) for n in LENGTHS), (16, 4, 128, 128)), MASKS["causal"], True,
    ),
    "mixed": (
        lambda: paged((*((1, 100 + 61 * i) for i in range(64)), *PROMPTS)), MASKS["causal"], False,
    ),
    "mixed, window, sinks, D 64, page 1": (
        lambda: paged((*((1, 100 + 61 * i) for i in range(64)), *PROMPTS), (64, 8, 64, 64), 1),
        window(127), True,
    ),
    "window of 1024 in 32,768": (lambda: paged(((1, 32_768),) * 4), window(1023), False),
}  # fmt: skip
for q_len in (2, 3, 5, 8):
    seqs = [(q_len, 4096 - 17 * i) for i in range(32)]
    CASES[f"{q_len} queries"] = functools.partial(paged, seqs), MASKS["causal"], False


@functools.lru_cache(maxsize=1)  # gigabytes each; the compilers of a case follow each other
def case(name):
    make, mask, with_sinks = CASES[name]
    call = make()
    return call, mask, with_sinks, spots.expected(call, mask, with_sinks)


@pytest.fixture
def compiler(request):
    if request.param == "triton" and not usable():
        pytest.skip("triton or jax-triton is not installed; both are in the extra `gpu`")
    return request.param


both = pytest.mark.parametrize("compiler", COMPILERS, indirect=True)


@both
@pytest.mark.parametrize("name", CASES)
def test_uneven_batches(name, compiler):
    call, mask, with_sinks, want = case(name)
    first = spots.check(call, mask, with_sinks, want, compiler=compiler)
    second = spots.check(call, mask, with_sinks, want, compiler=compiler)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other, "not the same bits again")


UNEVEN = paged(((300, 700), (1, 3000), (64, 64), (5, 900), (0, 40), (1, 1)))


@both
@pytest.mark.parametrize("mask", [MASKS["causal"], window(200)], ids=["causal", "window"])
@pytest.mark.parametrize(
    "tiles",
    [
        Tiles(4, 64, 4, 3, programs=2000),
        Tiles(16, 64, 4, 3, programs=0),
        Tiles(16, 64, 4, 2, programs=2000),
        Tiles(32, 32, 8, 2, programs=600),
    ],
    ids=spell,
)
def test_tiles_of_every_kind(tiles, mask, compiler):
    spots.check(UNEVEN, mask, True, tiles=tiles, compiler=compiler)


@both
@pytest.mark.parametrize("dim", [64, 72, 80, 96])
@pytest.mark.parametrize("length", [577, 729, 65, 70])
def test_narrow_last_tiles(length, dim, compiler):
    """Small logits: a key too many would show in every row."""
    call = Call("attention", ((length, length),) * 3, (4, 4, dim, dim), dtype="bf16", spread=0.1)
    for tiles in (None, Tiles(64, 64, 4, 2), Tiles(128, 64, 8, 2)):
        check(call, "triton", MASKS["full"], with_sinks=True, tiles=tiles, compiler=compiler)
