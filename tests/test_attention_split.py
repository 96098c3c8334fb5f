"""The `triton` target's ways to fill a chip, in Pallas' interpreter: keys split into parts,
a narrow last tile, and two launches for one batch.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spots
from checking import agree, check_case, jitted, options, parametrize
from grids import ALONE, KINDS, Case, sample
from numpy_oracle import attend_all
from problems import Call
from recipes import MASKS, SCORES, sinks, window

import jaxattn
from jaxattn import Tiles

# Parts of two tiles, the fewest there are: KINDS' sequence of 90 keys has three.
SPLIT = Tiles(8, 16, programs=64)
WIDE = Tiles(32, 16, programs=64)  # of more rows than one loop does


def kernels(case, tiles=None):
    """The names of the kernels that a case launches, in order."""
    call = case.call
    args = jax.tree.map(jnp.asarray, call.args())
    named = options(call, case.mask, case.score, case.with_sinks)
    with jaxattn.interpret():
        traced = jitted(call.kind, "triton", tiles, "on_wait", case.scale).trace(*args, **named)
    return [name.removeprefix("jaxattn_") for name in _names(traced.jaxpr.jaxpr)]


def _names(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "pallas_call":
            yield eqn.params["name"]
        else:
            for value in jax.tree.leaves(list(eqn.params.values())):
                inner = getattr(value, "jaxpr", value)
                yield from _names(inner) if hasattr(inner, "eqns") else ()


def cases(*names):
    """Of ALONE, by name: "paged: causal"."""
    return {name: ALONE[name] for name in names}


@parametrize(sample(ALONE, 5))
def test_split_alone(case):
    assert kernels(case, SPLIT) == ["forward", "merge"]
    check_case(case, "triton", tiles=SPLIT)


def paged(seqs, heads=(4, 2, 16, 16), page_size=16, **more):
    return Call("paged", tuple(seqs), heads, page_size, **more)


# One long sequence among short ones: its parts are most of the work.
UNEVEN = ((1, 20), (2, 33), (1, 900), (1, 16), (3, 5), (0, 50))
FEATURES = {
    f"page {size}": Case(paged(((7, 90), (1, 33), (6, 4)), page_size=size)) for size in (1, 64)
} | {
    "D 72 Dv 40, group 5, sinks": Case(
        paged(((7, 90), (1, 33)), (5, 1, 72, 40)), with_sinks=True, score=(SCORES["softcap"],)
    ),
    "bf16": Case(paged(((7, 90), (1, 33)), (4, 1, 32, 32), dtype="bf16")),
    "one long": Case(paged(UNEVEN), with_sinks=True),
    "more parts than are merged at once": Case(paged(((1, 1500),), (1, 1, 16, 16), idle=0)),
}


@parametrize(FEATURES)
def test_split_features(case):
    assert kernels(case, SPLIT) == ["forward", "merge"]
    check_case(case, "triton", tiles=SPLIT)


@parametrize(cases("paged: around", "attention: causal", "paged: segments"))
def test_split_of_many_rows(case):
    assert kernels(case, WIDE) == ["forward", "merge"]
    check_case(case, "triton", tiles=WIDE)


def test_split_of_large_logits():
    """Parts whose lse is far apart; one of them has all the weight."""
    call = paged(((7, 90), (1, 200)), spread=100.0)
    check_case(Case(call, with_sinks=True), "triton", tiles=SPLIT)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_the_check_of_large_calls(with_sinks):
    """tests/gpu looks at some rows of its batches; here they are held to numpy row by row."""
    call = FEATURES["one long"].call
    rows, *some = spots.expected(call, window(200), with_sinks)
    out, lse = attend_all(call, window(200), sinks=sinks(call) if with_sinks else None)
    agree([jnp.asarray(x, jnp.float32) for x in some], (out[rows], lse[rows]), 1e-5)
    if with_sinks:
        spots.check(call, with_sinks=True, tiles=SPLIT)


def test_keys_are_split_unless_nothing_can_run_alone():
    """Equal lengths need no parts where there are programs enough; unknown ones may need them."""
    kinds = {
        "paged": ["forward", "merge"],
        "varlen": ["forward", "merge"],
        "attention": ["forward"],
    }
    for kind, launched in kinds.items():
        assert kernels(Case(KINDS[kind]), Tiles(8, 16, programs=8)) == launched
        assert kernels(Case(KINDS[kind]), Tiles(8, 16, programs=0)) == ["forward"]


@pytest.mark.parametrize(("length", "dim"), [(577, 64), (577, 72), (70, 72), (65, 64), (1, 72)])
def test_a_loop_of_known_length_ends_in_a_narrower_tile(length, dim):
    """Small logits: a key too many would show in every row."""
    seqs = ((40, length),) * 2  # the keys after one sequence's last are the next one's
    call = Call("attention", seqs, (2, 2, dim, dim), spread=0.1)
    check_case(Case(call, MASKS["full"], with_sinks=True), "triton", tiles=Tiles(32, 64))


# Queries of 1 to 40 a sequence, without keys or queries, and rows that belong to none.
SEQS = ((1, 60), (5, 20), (40, 90), (9, 9), (8, 70), (0, 9), (3, 0), (12, 5))
TWO_KINDS = {
    "paged, window, sinks": Case(paged(SEQS), window(20), with_sinks=True),
    "paged, group 5, ranges": Case(paged(SEQS, (5, 1, 16, 24), 4), MASKS["ranges"]),
    "varlen": Case(Call("varlen", SEQS, (4, 2, 16, 16)), MASKS["full"], with_sinks=True),
    "few on average": Case(paged(((1, 60), (2, 90), (20, 64), (1, 5)), idle=0)),
    "many only": Case(paged(((9, 60), (33, 40)), idle=0, padding=0)),
    "empty only": Case(paged(((0, 60), (0, 0)), padding=9), with_sinks=True),
}


@parametrize(TWO_KINDS)
def test_two_launches(case):
    assert kernels(case)[:2] == ["forward", "forward"]
    check_case(case, "triton")


@parametrize(
    {
        "causal": Case(paged(((1, 800), (1, 40), (40, 130)))),
        "sinks": Case(paged(((8, 700), (9, 700)), (5, 1, 16, 16)), with_sinks=True),
    }
)
def test_two_launches_and_a_merge(case):
    assert kernels(case) == ["forward", "forward", "merge"]
    check_case(case, "triton")


@pytest.mark.parametrize("seqs", [((1, 60), (0, 9), (3, 50), (0, 0)), ((4, 40), (0, 9))])
@pytest.mark.parametrize("padding", [0, 1])
def test_fewer_rows_than_sequences(seqs, padding):
    """One launch has them all, though a sequence may have several queries."""
    case = Case(paged(seqs, padding=padding, idle=3), with_sinks=True)
    assert kernels(case) == ["forward"]
    check_case(case, "triton")


def test_the_same_bits_each_time():
    args = jax.tree.map(jnp.asarray, paged(UNEVEN).args())
    with jaxattn.interpret():
        f = jitted("paged", "triton", SPLIT, "on_wait", None)
        first, second = f(*args), f(*args)
    jax.tree.map(np.testing.assert_array_equal, first, second)
