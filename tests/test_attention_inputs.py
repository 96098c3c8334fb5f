"""What the public functions refuse, and in which words; and which target they pick."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checking import agree
from problems import Call

import jaxattn
from jaxattn import Causal, PagedKV, Softcap, Tiles, attention, paged_attention, varlen_attention


def a(*shape, dtype=jnp.float32):
    return jnp.zeros(shape, dtype)


def i(*shape):
    return jnp.zeros(shape, jnp.int32)


Q, K = a(1, 4, 4, 16), a(1, 6, 2, 16)
CACHE = PagedKV.create(4, 4, 2, 16, dtype=jnp.float32)
REFUSED = {
    "q has 3 axes": (lambda: attention(a(4, 4, 16), K, K), r"q .*\(4, 4, 16\)"),
    "batch": (lambda: attention(a(2, 4, 4, 16), K, K), "B = 2"),
    "v of other length": (lambda: attention(Q, K, a(1, 5, 2, 16)), r"v \(1, 5, 2, 16\)"),
    "head dims": (lambda: attention(a(1, 4, 4, 24), K, K), "24.*16"),
    "D not a multiple of 8": (lambda: attention(*(a(1, 4, 2, 12),) * 3), "12.*multiple of 8"),
    "D too large": (lambda: attention(*(a(1, 4, 2, 264),) * 3), "264.*256"),
    "Dv too large": (lambda: attention(Q, K, a(1, 6, 2, 264)), "v is 264"),
    "heads": (lambda: attention(a(1, 4, 3, 16), K, K), "3 heads"),
    "mixed dtypes": (lambda: attention(Q, K, K.astype(jnp.bfloat16)), "bfloat16"),
    "float64-like ints": (lambda: attention(*(a(1, 4, 2, 16, dtype=jnp.int32),) * 3), "int32"),
    "implementation": (lambda: attention(Q, K, K, implementation="cuda"), "'cuda'.*triton"),
    "mask": (lambda: attention(Q, K, K, mask=np.ones((4, 6))), "mask="),
    "mask class": (lambda: attention(Q, K, K, mask=Causal), "mask="),
    "score": (lambda: attention(Q, K, K, score=(50.0,)), "score=.50.0,."),
    "sinks": (lambda: attention(Q, K, K, sinks=a(3)), r"\(3,\).*\(4,\)"),
    "slopes": (lambda: attention(Q, K, K, score=jaxattn.Alibi(a(2))), r"\(2,\).*\(4,\)"),
    "bias": (lambda: attention(Q, K, K, score=jaxattn.Bias(a(4, 5))), r"\(4, 5\).*\(1, 4, 4, 6\)"),
    "dense": (lambda: attention(Q, K, K, mask=jaxattn.Dense(a(3, 1, 6) > 0)), r"\(3, 1, 6\)"),
    "ranges axes": (lambda: attention(Q, K, K, mask=jaxattn.Ranges(i(3, 2))), r"\(3, 2\)"),
    "dense floats": (lambda: attention(Q, K, K, mask=jaxattn.Dense(a(4, 6))), "booleans"),
    "bias booleans": (lambda: attention(Q, K, K, score=jaxattn.Bias(a(4, 6) > 0)), "floats"),
    "score None": (lambda: attention(Q, K, K, score=None), "score=None"),
    "scale text": (lambda: attention(Q, K, K, scale="0.5"), "scale='0.5'"),
    "scale nan": (lambda: attention(Q, K, K, scale=float("nan")), "scale=nan"),
    "scale traced": (lambda: jax.jit(lambda s: attention(Q, K, K, scale=s))(1.0), "scale="),
    "softcap text": (lambda: jaxattn.Softcap("x"), "cap='x'"),
    "tiles pair": (lambda: attention(Q, K, K, tiles=(16, 64)), "tiles="),
    "tiles float": (lambda: Tiles(2.0, 64), "block_q=2.0"),
    "tiles 3 warps": (lambda: Tiles(8, 64, num_warps=3), "num_warps=3: must be a power of two"),
    "tiles bool": (lambda: Tiles(8, 64, num_warps=True), "num_warps=True.*whole number from 1"),
    "tiles stages": (lambda: Tiles(8, 64, 4, 0), "num_stages=0.*whole number from 1"),
    "tiles programs": (lambda: Tiles(8, 64, programs=-1), "programs=-1.*whole number from 0"),
    "tiles huge": (lambda: Tiles(2**40, 64), "block_q=1099511627776.*from 1 to 1048576"),
    "tiles huge keys": (lambda: Tiles(8, 2**21), "block_k=2097152.*from 1 to 1048576"),
    "tiles huge programs": (lambda: Tiles(8, 64, programs=2**31), "programs=2147483648.*from 0 to"),
    "tiles programs float": (lambda: Tiles(8, 64, programs=2.5), "programs=2.5"),
    "tiles compiler": (lambda: Tiles(8, 64, compiler="nvcc"), "compiler='nvcc'.*xla or triton"),
    "reference too": (lambda: attention(Q, K, K, mask=Causal, implementation="reference"), "mask="),
    "one column": (
        lambda: varlen_attention(
            Q[0], K[0], K[0], i(3), i(3), mask=jaxattn.Dense(np.ones((4, 1), bool))
        ),
        "a column for every key",
    ),
    "torn cache": (
        lambda: paged_attention(
            Q[0], jaxattn.PagedKV(CACHE.k, CACHE.v[:1]), i(1, 2), i(1), i(2)
        ),
        "cache has k",
    ),
    "ranges": (lambda: attention(Q, K, K, mask=jaxattn.Ranges(i(2, 1, 2))), "N = 1"),
    "segments": (lambda: attention(Q, K, K, mask=jaxattn.Segments(i(1, 4), i(1, 4))), "k_ids"),
    "tiles": (lambda: attention(Q, K, K, tiles=Tiles(4, 12)), "block_k=12"),
    "cu_k_lens": (lambda: varlen_attention(Q[0], K[0], K[0], i(3), i(2)), "cu_k_lens"),
    "cu_q_lens": (lambda: varlen_attention(Q[0], K[0], K[0], a(3), i(3)), "cu_q_lens is float32"),
    "cache": (lambda: paged_attention(Q[0], K[0], i(1, 2), i(1), i(2)), "PagedKV"),
    "tables": (lambda: paged_attention(Q[0], CACHE, i(2, 2), i(1), i(2)), r"block_tables \(2, 2\)"),
    "paged cu": (lambda: paged_attention(Q[0], CACHE, i(1, 2), i(1), i(3)), r"cu_q_lens \(3,\)"),
    "packed segments": (
        lambda: paged_attention(
            Q[0], CACHE, i(1, 2), i(1), i(2), mask=jaxattn.Segments(i(4), i(1, 7))
        ),
        r"k_ids.*\(1, 7\).*\(1, 8\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, says = REFUSED[name]
    with pytest.raises(ValueError, match=says):
        call()


def test_tiles_that_leave_the_choice_or_never_split_are_taken():
    assert Tiles(8, 64) == Tiles(8, 64, None, None, None, None, None)
    assert Tiles(1, 16, 1, 1, 0, False, "triton").programs == 0


@pytest.mark.parametrize("target", ["mosaic", "triton"])
def test_a_kernel_without_its_hardware_is_refused(target):
    with pytest.raises(ValueError, match=r"(?i)interpret"):
        attention(Q, K, K, implementation=target)


def test_a_limit_of_another_target_does_not_matter_here():
    """float16 is beyond TPUs; the program for this platform does not hear of it."""
    x = a(1, 4, 2, 16, dtype=jnp.float16)
    assert attention(x, x, x).dtype == jnp.float16


def test_without_a_name_the_platform_chooses():
    args = Call("attention", ((9, 20),), (4, 2, 16, 16)).args()
    q, k, v = map(jnp.asarray, args)
    text = jax.jit(attention).lower(q, k, v).as_text()
    assert "mosaic" not in text
    assert "triton" not in text
    got = attention(q, k, v), attention(q, k, v, implementation="xla")
    np.testing.assert_array_equal(*got)


@pytest.mark.parametrize("kind", ["attention", "varlen", "paged"])
def test_reference_by_name_is_the_same_function(kind):
    seqs = ((9, 20),) * 2
    call = Call(kind, seqs, (4, 2, 16, 16))
    f = {"attention": attention, "varlen": varlen_attention, "paged": paged_attention}[kind]
    args = jax.tree.map(jnp.asarray, call.args())
    how = {"score": Softcap(3.0), "scale": 0.7, "sinks": jnp.ones(4), "return_lse": True}
    agree(f(*args, **how), f(*args, implementation="reference", **how), 1e-5)


@pytest.mark.parametrize("implementation", ["xla", "reference"])
@pytest.mark.parametrize(("t", "s"), [(0, 0), (0, 5), (5, 0)])
def test_no_queries_or_no_keys_at_all(t, s, implementation):
    q, k = a(2, t, 4, 16), a(2, s, 2, 16)
    how = {"return_lse": True, "implementation": implementation}
    none = jnp.zeros(3, jnp.int32)
    for out, lse in (
        attention(q, k, k, **how),
        varlen_attention(q[0], k[0], k[0], none, none, **how),
    ):
        assert out.shape == (*lse.shape, 16)
        assert not out.any()
        assert np.isneginf(lse).all()


def test_no_sequences():
    out, lse = paged_attention(Q[0], CACHE, i(0, 3), i(0), i(1), return_lse=True)
    assert not out.any()
    assert np.isneginf(lse).all()


def test_interpret_wants_a_known_way():
    with pytest.raises(ValueError, match="'sometimes'"), jaxattn.interpret(dma="sometimes"):
        pass
