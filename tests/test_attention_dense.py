"""The `mosaic` target's dense pipeline in the TPU interpreter, which fails on a race of copies.

The other tests of the target have few queries, for which it has another kernel.
"""

import jax
import jax.numpy as jnp
import pytest
from checking import check, check_case, parametrize
from grids import vit
from problems import Call
from recipes import MASKS, SCORES

import jaxattn
from jaxattn import mosaic_dense, mosaic_units
from jaxattn.mosaic_units import FIRST, LAG, LAST, MASKED
from scripts.bench.cases import parse
from scripts.tpu import ours

SMALL = jaxattn.Tiles(128, 128)


def call(q_len, k_len, heads=(2, 1, 64, 64), batch=1, dtype="f32"):
    return Call("attention", ((q_len, k_len),) * batch, heads, dtype=dtype)


# Some tiles and a rest, as many queries as keys, fewer and more (rows that see nothing).
@pytest.mark.parametrize("lengths", [(300, 300), (130, 300), (300, 130)])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_lengths_that_fit_no_tile(lengths, mask):
    check(call(*lengths), "mosaic", MASKS[mask], tiles=SMALL, dma="eager")


@pytest.mark.parametrize("d", [(64, 64), (72, 72), (128, 128), (128, 64), (64, 128), (192, 128)])
def test_head_dims(d):
    heads = (4, 2, *d)
    check(call(200, 200, heads, batch=2), "mosaic", tiles=SMALL, dma="on_wait")


@pytest.mark.parametrize("dma", ["eager", "on_wait"])
def test_bf16(dma):
    for heads in ((4, 2, 64, 64), (2, 1, 128, 128)):
        check(call(260, 260, heads, dtype="bf16"), "mosaic", tiles=SMALL, dma=dma)


@pytest.mark.parametrize("mask", [name for name in MASKS if "window" in name or "chunk" in name])
def test_masks(mask):
    check(call(150, 290), "mosaic", MASKS[mask], tiles=SMALL, dma="eager")


@pytest.mark.parametrize("score", SCORES)
def test_scores_and_sinks(score):
    check(
        call(150, 290), "mosaic", MASKS["causal"], (SCORES[score],), True, tiles=SMALL, dma="eager"
    )


@parametrize(vit((197, 577)))
def test_one_tile_of_a_whole_length(case):
    check_case(case, "mosaic", dma="eager")


def test_a_nan_of_one_head_stays_there():
    """The accumulator passes from head to head."""
    q = jax.random.normal(jax.random.key(0), (1, 200, 2, 64))
    v = q.at[:, :, 0].set(jnp.nan)
    with jaxattn.interpret(dma="eager"):
        out = jaxattn.attention(q, q, v, implementation="mosaic")
    assert jnp.isnan(out[:, :, 0]).all()
    assert not jnp.isnan(out[:, :, 1]).any()


@pytest.mark.parametrize(
    ("text", "tiles", "taken"),
    [
        ("full:B2,S577,H4,D64", None, True),
        ("prefill:B1,S2048,H4/2,D128", jaxattn.Tiles(256, 512), True),
        ("prefill:B1,S2048,H4/2,D128", jaxattn.Tiles(4, 512), False),
        ("prefill:B1,S2048,H4/2,D128", jaxattn.Tiles(128, 64), False),
        ("decode:B2,S577,H4/2,D64", None, False),
        ("prefill:B2,S577,H4/2,D64,P16", None, False),
    ],
)
def test_which_calls_it_takes(text, tiles, taken):
    assert mosaic_dense.fits(ours.problem_of(parse(text)), tiles) is taken


def test_units_are_the_tiles_that_the_mask_keeps():
    shape = mosaic_units.Shape(4, 2, 300, 300, 64, 64, 128, 128)
    table, count = mosaic_units.units(shape, jaxattn.Causal(), 2)
    head, kv_head, strip, block, flags = table[:, LAG:-LAG]
    assert count == len(head) == 2 * (1 + 2 + 3)
    assert strip[:6].tolist() == [0, 1, 1, 2, 2, 2]
    assert block[:6].tolist() == [0, 0, 1, 0, 1, 2]
    assert head.tolist() == [0] * 6 + [1] * 6
    assert not kv_head.any()
    assert flags[:6].tolist() == [
        FIRST | LAST | MASKED, FIRST, LAST | MASKED, FIRST, 0, LAST | MASKED
    ]  # fmt: skip
    assert not table[4, :LAG].any()
    assert not table[4, -LAG:].any()


def test_the_cheapest_tiles_are_chosen():
    full, causal = jaxattn.Full(), jaxattn.Causal()
    assert mosaic_units.choose_tiles(8192, 8192, 8, full) == jaxattn.Tiles(1024, 1024)
    assert mosaic_units.choose_tiles(8192, 8192, 8, full, 512) == jaxattn.Tiles(512, 512)
    assert mosaic_units.choose_tiles(1024, 1024, 2, causal) == jaxattn.Tiles(512, 512)
