"""Split-KV: the parts of work items, whatever their lengths, and their merge."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxattn.parts import MIN_TILES, part_bound, split

# Few shapes and many values: JAX compiles for each shape.
SHAPES = [(1, 16, 1), (1, 64, 33), (5, 16, 1), (7, 32, 8), (7, 16, 100), (40, 16, 6), (64, 128, 32)]
LAWS = ("even", "mixed", "one long", "short", "empty")


def draw(rng, items, law):
    """Keys ``lo <= key < hi`` of items, some of them none."""
    most = {"even": 900, "mixed": 2500, "one long": 40, "short": 60, "empty": 1}[law]
    hi = rng.integers(0, most, items)
    if law == "even":
        hi = np.full(items, hi[0] + 1)
    if law == "one long":
        hi[rng.integers(items)] = 60_000
    lo = rng.integers(0, 300, items) * rng.integers(0, 2, items)  # windows begin anywhere
    return lo.astype(np.int32), hi.astype(np.int32)


def drawn(items, rounds=8):
    """Draws by every law, and items that have no keys among the others."""
    rng = np.random.default_rng(items)
    for law in LAWS:
        for _ in range(rounds):
            lo, hi = draw(rng, items, law)
            none = rng.random(items) < 0.2
            yield lo, np.where(none, rng.integers(0, lo + 1), hi).astype(np.int32)


@functools.cache
def jitted(block_k, wanted):
    return jax.jit(functools.partial(split, block_k=block_k, wanted=wanted))


def checked(lo, hi, block_k, wanted):
    """How many parts :func:`split` makes of items that have keys, after every rule is checked."""
    items = len(lo)
    most_parts, most_merged, slots = part_bound(items, wanted)
    parts = jax.tree.map(np.asarray, jitted(block_k, wanted)(jnp.asarray(lo), jnp.asarray(hi)))
    assert all(x.dtype == np.int32 for x in jax.tree.leaves(parts))
    assert parts.item.shape == (most_parts,)
    assert parts.merged.shape == (most_merged,)

    used = parts.item < items
    assert used[: used.sum()].all(), "unused parts are not last"
    assert not parts.lo[~used].any()
    assert not parts.hi[~used].any()
    assert (parts.slot[~used] == -1).all()

    tiles = np.where(hi > lo, -(-hi // block_k) - lo // block_k, 0)
    longest = max(-(-tiles.sum() // wanted), MIN_TILES)
    taken, several = [], {}
    for n in range(items):
        mine = np.flatnonzero(parts.item == n)
        assert len(mine), f"item {n} has no part"
        assert (np.diff(mine) == 1).all()
        assert parts.first[mine].tolist() == [1] + [0] * (len(mine) - 1)
        begins, ends, slot = parts.lo[mine], parts.hi[mine], parts.slot[mine]
        if hi[n] <= lo[n]:
            assert len(mine) == 1
            assert begins[0] >= ends[0]
        else:
            assert (begins[0], ends[-1]) == (lo[n], hi[n])
            np.testing.assert_array_equal(begins[1:], ends[:-1], "a gap or an overlap")
            assert not (begins[1:] % block_k).any(), "cut inside a tile"
            assert (ends > begins).all(), "an empty part"
            sizes = -(-ends // block_k) - begins // block_k
            assert sizes.max() <= longest
            assert (sizes[:-1] == sizes[0]).all()
            assert sizes[-1] <= sizes[0]
        if len(mine) == 1:
            assert slot[0] == -1
        else:
            np.testing.assert_array_equal(slot, slot[0] + np.arange(len(mine)))
            taken += slot.tolist()
            several[n] = (slot[0], len(mine))
    assert len(set(taken)) == len(taken)
    assert all(0 <= slot < slots for slot in taken)

    merged = parts.merged < items
    table = zip(parts.merged, parts.merged_slot, parts.merged_parts, strict=True)
    rows = [row for row, some in zip(table, merged, strict=True) if some]
    assert {n: (slot, count) for n, slot, count in rows} == several
    assert len(rows) == len(several)
    assert not parts.merged_parts[~merged].any()
    return sum(np.isin(parts.item, np.flatnonzero(hi > lo))), tiles.sum()


@pytest.mark.parametrize(("items", "block_k", "wanted"), SHAPES)
def test_parts_tile_their_items(items, block_k, wanted):
    cuts = 0
    for lo, hi in drawn(items):
        parts, tiles = checked(lo, hi, block_k, wanted)
        cuts += parts > np.sum(hi > lo)
        if tiles >= MIN_TILES * wanted:  # keys enough: rounding loses a third of them at most
            assert parts >= wanted * MIN_TILES / (MIN_TILES + 1)
    assert cuts or wanted == 1, "no draw was split: this test shows nothing"


def test_lengths_around_that_of_a_part():
    """One tile fewer, and one more, than a part has."""
    wanted, block_k = 12, 16
    for tiles in (
        [3] * 12,
        [4, 4, 4, 2] + [3] * 7 + [1],
        [4, 2] * 6,
        [25] + [1] * 11,
        [3] + [0] * 11,
    ):
        hi = (np.array(tiles) * block_k).astype(np.int32)
        checked(0 * hi, hi, block_k, wanted)
        checked(0 * hi, hi - (hi > 0), block_k, wanted)


@pytest.mark.parametrize("x64", [False, True])
def test_jit_and_64_bit_integers_change_nothing(x64):
    want = None
    lo, hi = np.array([0, 5, 300, 0], np.int32), np.array([900, 40, 77, 0], np.int32)
    with jax.enable_x64(x64):
        for f in (split, jax.jit(split, static_argnums=(2, 3))):
            got = jax.tree.map(np.asarray, f(jnp.asarray(lo), jnp.asarray(hi), 16, 9))
            assert all(x.dtype == np.int32 for x in jax.tree.leaves(got))
            jax.tree.map(np.testing.assert_array_equal, got, want or got)
            want = got
    assert want.merged_parts.tolist() == [9, 0, 0, 0]


def test_keys_past_2_to_the_30():
    """Positions near the largest that a mask knows do not overflow."""
    parts = jitted(64, 8)(jnp.zeros(1, jnp.int32), jnp.full(1, 2**30, jnp.int32))
    used = np.asarray(parts.item) == 0
    assert np.asarray(parts.hi)[used].tolist() == [(i + 1) * 2**27 for i in range(8)]
