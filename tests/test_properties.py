"""What must hold whatever the numbers: on the CPU for `xla`, on a GPU for `triton`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import TOLERANCE, agree
from problems import Call

import jaxattn

targets = pytest.mark.parametrize("target", ["xla", pytest.param("triton", marks=pytest.mark.gpu)])
HEADS = (4, 2, 32, 32)
TILES = jaxattn.Tiles(8, 32)
CALL = Call("paged", ((19, 75), (1, 130), (40, 40), (6, 4)), HEADS, padding=9)


def paged(target, args, **how):
    how = {"implementation": target, "return_lse": True, "tiles": TILES} | how
    return jaxattn.paged_attention(*jax.tree.map(jnp.asarray, args), **how)


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@targets
def test_parts_of_the_keys_merge_to_the_whole(target):
    call = Call("attention", ((33, 96),) * 2, HEADS)
    q, k, v = map(jnp.asarray, call.args())
    how = {"implementation": target, "return_lse": True}
    whole = jaxattn.attention(q, k, v, **how)
    merged = None
    for start, stop in ((0, 1), (1, 40), (40, 40), (40, 96)):
        part = jaxattn.attention(q, k[:, start:stop], v[:, start:stop], **how)
        merged = part if merged is None else jaxattn.merge_states(*merged, *part)
    agree(merged, whole, TOLERANCE["f32"])


@targets
@pytest.mark.parametrize("seed", range(3))
def test_where_pages_lie_changes_no_bit(target, seed):
    q, cache, tables, *rest = CALL.args()
    order = np.random.default_rng(seed).permutation(cache.k.shape[0])  # old page -> new page
    moved = [np.empty_like(x) for x in (cache.k, cache.v)]
    for new, old in zip(moved, (cache.k, cache.v), strict=True):
        new[order] = old
    inside = (tables >= 0) & (tables < len(order))
    table = np.where(inside, order[tables.clip(0, len(order) - 1)], tables).astype(np.int32)
    same(
        paged(target, (q, jaxattn.PagedKV(*moved), table, *rest)),
        paged(target, (q, cache, tables, *rest)),
    )


@targets
def test_shared_pages_are_read_by_both(target):
    """Two sequences with one table, as a shared prefix has, answer the same."""
    q, cache, tables, lens, cu = Call("paged", ((5, 70), (5, 70)), HEADS, padding=0, idle=0).args()
    q[5:], tables[1] = q[:5], tables[0]
    out, lse = paged(target, (q, cache, tables, lens, cu))
    same((out[:5], lse[:5]), (out[5:], lse[5:]))


@targets
def test_neighbours_change_no_bit(target):
    """A sequence alone, and first, in the middle and last of batches that are quite different."""
    mine = Call("paged", ((7, 75),), HEADS, padding=0, idle=0)
    alone = paged(target, mine.args())
    batches = (
        (((7, 75), (1, 130), (1, 3)), 0),
        (((40, 40), (7, 75), (1, 130), (9, 9)), 1),
        (((1, 1),) * 20 + ((7, 75),), 20),
    )
    for seqs, place in batches:
        call = Call("paged", seqs, HEADS, seed=1)
        for each in ("q", "k", "v"):
            getattr(call, each)[place] = getattr(mine, each)[0]
        out, lse = paged(target, call.args())
        rows = slice(call.cu_q_lens[place], call.cu_q_lens[place + 1])
        same((out[rows], lse[rows]), alone)


@targets
def test_a_query_alone_equals_the_same_in_a_prompt(target):
    """Chunked prefill: rows of a prompt, one by one at decode, agree with the prompt's rows."""
    call = Call("paged", ((24, 60),), HEADS, padding=0, idle=0)
    q, cache, tables, lens, _ = call.args()
    whole, _ = paged(target, call.args())
    step = jax.jit(lambda *args: paged(target, args)[0])
    for i in (0, 11, 23):
        lens[0] = 60 - 24 + i + 1
        one = step(q[i : i + 1], cache, tables, lens, np.array([0, 1], np.int32))
        np.testing.assert_allclose(one[0], whole[i], rtol=1e-5, atol=1e-5)


@targets
def test_new_lengths_do_not_compile_again(target):
    step = jax.jit(lambda *args: paged(target, args, score=jaxattn.Softcap(30.0)))
    total = 24
    for seqs in (((1, 5), (1, 60), (1, 1)), ((20, 64), (0, 0), (3, 3)), ((0, 7), (0, 0), (0, 1))):
        call = Call("paged", seqs, HEADS, padding=total - sum(q for q, _ in seqs))
        q, cache, tables, lens, cu = call.args()
        pages = np.full((16, *cache.k.shape[1:]), np.nan, np.float32)
        k, v = pages.copy(), pages.copy()
        k[: len(cache.k)], v[: len(cache.v)] = cache.k, cache.v
        table = np.full((len(lens), 5), -1, np.int32)
        table[:, : tables.shape[1]] = tables
        out, _ = step(q, jaxattn.PagedKV(k, v), table, lens, cu)
        assert not np.isnan(out).any()
    assert step._cache_size() == 1


@targets
def test_values_of_scores_and_masks_do_not_compile_again(target):
    q, k, v = map(jnp.asarray, Call("attention", ((9, 30),), HEADS).args())

    @jax.jit
    def f(slopes, ranges, sinks):
        return jaxattn.attention(
            q, k, v, mask=jaxattn.Causal() | jaxattn.Ranges(ranges), score=jaxattn.Alibi(slopes),
            sinks=sinks, implementation=target,
        )  # fmt: skip

    outs = [
        f(jnp.full(4, x), jnp.array([[[i, 9 * i + 3]]]), jnp.full(4, -x))
        for i, x in enumerate((0.1, 0.7))
    ]
    assert f._cache_size() == 1
    assert float(jnp.abs(outs[0] - outs[1]).max()) > 1e-3


def test_append_reuses_the_donated_buffer():
    cache = jaxattn.PagedKV.create(8, 4, 2, 16, dtype=jnp.float32)
    where = [x.unsafe_buffer_pointer() for x in (cache.k, cache.v)]
    append = jax.jit(jaxattn.PagedKV.append, donate_argnums=0)
    kv = jnp.ones((3, 2, 16))
    new = append(cache, kv, kv, jnp.array([5, 31, -1]))
    assert cache.k.is_deleted()
    assert [x.unsafe_buffer_pointer() for x in (new.k, new.v)] == where
