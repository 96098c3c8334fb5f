"""Arrays past 2^31 elements: an offset that wraps reads NaN here, or writes over it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import TOLERANCE, agree
from problems import Call
from recipes import MASKS

import jaxattn
from jaxattn import reference

pytestmark = pytest.mark.gpu

SEQS = ((37, 700), (1, 1000), (64, 64))
HEADS = (16, 8, 128, 128)
PAST = 2**31


def _oracle(call):
    f32 = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32 if jnp.issubdtype(x.dtype, jnp.floating) else None),
        call.args(),
    )
    name = {"paged": "paged_attention", "varlen": "varlen_attention"}[call.kind]
    mask = MASKS["causal"].build(call)
    return getattr(reference, name)(*f32, mask=mask, return_lse=True)


@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_paged_cache(page_size):
    """Written by `append` and read, in pages of the largest numbers and of the smallest."""
    call = Call("paged", SEQS, HEADS, page_size, "bf16")
    small_q, small, tables, seq_lens, cu = call.args()
    of_page = page_size * HEADS[1] * HEADS[2]
    num_pages = PAST // of_page + 2 * sum(map(len, call.tables)) + 9
    assert num_pages * of_page > PAST
    spread = np.arange(small.k.shape[0], dtype=np.int64)
    place = np.where(spread % 3 == 0, spread, num_pages - 1 - spread)  # old page -> new page

    shape = (num_pages, HEADS[1], page_size, HEADS[2])
    blank = jax.jit(lambda: jaxattn.PagedKV(*(jnp.full(shape, jnp.nan, jnp.bfloat16),) * 2))
    append = jax.jit(jaxattn.PagedKV.append, donate_argnums=0)
    slots = [
        (place[pages][:, None] * page_size + np.arange(page_size)).reshape(-1)[:length]
        for pages, (_, length) in zip(call.tables, SEQS, strict=True)
    ]
    cache = append(
        blank(),
        *(jnp.concatenate([jnp.asarray(x) for x in each]) for each in (call.k, call.v)),
        jnp.asarray(np.concatenate(slots), jnp.int32),
    )
    moved = np.where(
        (tables >= 0) & (tables < len(place)), place[tables.clip(0, len(place) - 1)], -1
    )
    got = jaxattn.paged_attention(
        jnp.asarray(small_q), cache, jnp.asarray(moved, jnp.int32), jnp.asarray(seq_lens),
        jnp.asarray(cu), return_lse=True, implementation="triton",
    )  # fmt: skip
    agree(got, _oracle(call), TOLERANCE["bf16"])


def test_packed_keys():
    """Sequences whose keys begin past element 2^31 of k and v."""
    call = Call("varlen", SEQS, HEADS, dtype="bf16")
    q, k, v, cu_q, cu_k = call.args()
    skip = PAST // (HEADS[1] * HEADS[2]) + 5

    @jax.jit
    def pad(x):
        return jnp.pad(x, ((skip, 0), (0, 0), (0, 0)), constant_values=jnp.nan)

    attend = functools.partial(jaxattn.varlen_attention, mask=jaxattn.Causal(), return_lse=True)
    got = attend(
        jnp.asarray(q), pad(jnp.asarray(k)), pad(jnp.asarray(v)), jnp.asarray(cu_q),
        jnp.asarray(cu_k + skip), implementation="triton",
    )  # fmt: skip
    agree(got, _oracle(call), TOLERANCE["bf16"])


def test_packed_queries():
    """Query rows past element 2^31 of q and of out; the rows before have no keys."""
    call = Call("varlen", SEQS, HEADS, dtype="bf16", padding=0)
    q, k, v, cu_q, cu_k = call.args()
    skip = PAST // (HEADS[0] * HEADS[2]) + 3

    @jax.jit
    def attend(q, k, v, cu_q, cu_k):
        q = jnp.pad(q, ((skip, 0), (0, 0), (0, 0)), constant_values=1.0)
        out, lse = jaxattn.varlen_attention(
            q, k, v, cu_q, cu_k, mask=jaxattn.Causal(), return_lse=True, implementation="triton"
        )
        return out[skip:], lse[skip:], jnp.max(jnp.abs(out[:skip])), jnp.max(lse[:skip])

    first = np.array([0], np.int32)
    out, lse, largest, highest = attend(
        *map(jnp.asarray, (q, k, v)),
        jnp.asarray(np.concatenate([first, cu_q + skip]), jnp.int32),
        jnp.asarray(np.concatenate([first, cu_k]), jnp.int32),
    )
    agree((out, lse), _oracle(call), TOLERANCE["bf16"])
    assert float(largest) == 0.0
    assert float(highest) == -np.inf


def test_more_items_than_a_grid_axis_takes():
    """CUDA's second and third grid axes end at 65535."""
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((70_000, n, 1, 16)), jnp.float32) for n in (1, 4, 4))
    got = jaxattn.attention(q, k, v, implementation="triton", return_lse=True)
    p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k, precision="highest") / 4, -1)
    out = jnp.einsum("bhts,bshd->bthd", p, v, precision="highest")
    np.testing.assert_allclose(got[0], out, atol=1e-5)
