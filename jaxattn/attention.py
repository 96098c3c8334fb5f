"""The public operations: they check that arguments fit together, bring a call into the one form
that every target takes (:class:`jaxattn.problem.Problem`), and pick the target.

Letters: B batch, T query tokens, S key tokens, H query heads, K kv heads, D head dim, Dv value
dim, N sequences, W pages a block table names.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from jaxattn import checks, interpreting, mosaic, reference, sharded, tile, triton, xla
from jaxattn.masks import Causal, Full, Mask
from jaxattn.operands import Layout, PerHead, bind
from jaxattn.paging import PagedKV
from jaxattn.problem import Packed, Paged, Problem, Tiles
from jaxattn.refusal import refuse
from jaxattn.scores import Score
from jaxattn.sharded import Arg

__all__ = ["attention", "merge_states", "paged_attention", "varlen_attention"]

TARGETS = {"mosaic": mosaic, "triton": triton, "xla": xla}


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Mask = Full(),  # noqa: B008 - a frozen value
    score: Score | tuple[Score, ...] = (),
    scale: float | None = None,
    sinks: jax.Array | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    compiler: str | None = None,
    tiles: Tiles | None = None,
):
    """Attention over a dense batch.

    Query i has position S - T + i, so that a causal mask is aligned at its bottom right. On a mesh
    of devices each computes its sequences and heads: :mod:`jaxattn.sharded` says which.

    Args:
      q, k, v: ``[B, T, H, D]``, ``[B, S, K, D]``, ``[B, S, K, Dv]``; H a multiple of K; D and Dv
        multiples of 8 from 8 to 256; all bf16, f16 or f32.
      mask: which keys a query sees; see :mod:`jaxattn.masks`.
      score: what changes the scaled logits before the mask, in order; see :mod:`jaxattn.scores`.
      scale: of q k^T; None is D**-0.5.
      sinks: ``f32[H]``, one more logit a head that takes part in the softmax without a value.
      return_lse: whether to return the log-sum-exp (natural log, the sink included) too.
      implementation: "mosaic", "triton", "xla" or "reference"; None picks by platform at lowering.
      compiler: what compiles the kernels of the triton target: "xla", the Triton inside XLA, or
        "triton", the official package by way of jax_triton. None is $JAXATTN_COMPILER, else what
        the tiles name, else "triton" where it is installed and "xla" where it is not.
      tiles: tile sizes; None leaves them to the target.

    Returns:
      ``[B, T, H, Dv]`` in q's dtype and, on request, ``f32[B, T, H]``. A query that sees no key
      gives 0 and -inf.

    Raises:
      ValueError: a shape, dtype or name breaks a rule above, or the target cannot do the call.
    """
    q = checks.array("q [B, T, H, D]", q, 4)
    k, v = checks.array("k [B, S, K, D]", k, 4), checks.array("v [B, S, K, Dv]", v, 4)
    options = checks.options(q, k, v, mask, score, scale, sinks, implementation, compiler, tiles)
    b, t, h, d = q.shape
    s = k.shape[1]
    if k.shape[0] != b or v.shape[:3] != k.shape[:3]:
        raise ValueError(f"k {k.shape} and v {v.shape} must be [B, S, K, ...] with q's B = {b}")
    layout = Layout(b, h, t, s, batch=b)
    args = (Arg("q", q, "BTHD"), Arg("k", k, "BSKD"), Arg("v", v, "BSKD"))
    split = _split(attention, args, options, layout, return_lse)
    if split is not None:
        return split
    if implementation == "reference":
        return reference.attention(
            q, k, v, mask=mask, score=score, scale=scale, sinks=sinks, return_lse=return_lse
        )
    starts = jnp.arange(b, dtype=jnp.int32) * s
    out, lse = _solve(
        q.reshape(b * t, h, d),
        _packed(k.reshape(b * s, *k.shape[2:]), v.reshape(b * s, *v.shape[2:]), starts),
        jnp.arange(b + 1, dtype=jnp.int32) * t,
        jnp.full((b,), s, jnp.int32),
        starts,
        s,
        layout,
        options,
        uniform=t,
    )
    out, lse = out.reshape(b, t, h, v.shape[-1]), lse.reshape(b, t, h)
    return (out, lse) if return_lse else out


def varlen_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cu_q_lens: jax.Array,
    cu_k_lens: jax.Array,
    *,
    mask: Mask = Full(),  # noqa: B008
    score: Score | tuple[Score, ...] = (),
    scale: float | None = None,
    sinks: jax.Array | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    compiler: str | None = None,
    tiles: Tiles | None = None,
):
    """Attention over packed sequences of different lengths.

    Sequence n has the query rows ``cu_q_lens[n]:cu_q_lens[n + 1]`` and the key rows
    ``cu_k_lens[n]:cu_k_lens[n + 1]``; a repeated entry is an empty sequence. The other arguments,
    the result and the errors are those of :func:`attention`.

    Args:
      q, k, v: ``[T, H, D]``, ``[S, K, D]``, ``[S, K, Dv]``.
      cu_q_lens, cu_k_lens: ``i32[N + 1]``, rising from 0 to at most T and S.

    Returns:
      ``[T, H, Dv]`` and, on request, ``f32[T, H]``; rows past ``cu_q_lens[-1]`` are 0 and -inf.
    """
    q, k = checks.array("q [T, H, D]", q, 3), checks.array("k [S, K, D]", k, 3)
    v = checks.array("v [S, K, Dv]", v, 3)
    options = checks.options(q, k, v, mask, score, scale, sinks, implementation, compiler, tiles)
    cu_q_lens = checks.ints("cu_q_lens", cu_q_lens, 1)
    cu_k_lens = checks.ints("cu_k_lens", cu_k_lens, 1)
    if cu_q_lens.shape != cu_k_lens.shape or cu_q_lens.shape[0] < 1:
        raise ValueError(
            f"cu_q_lens {cu_q_lens.shape} and cu_k_lens {cu_k_lens.shape} must both be [N + 1]"
        )
    if v.shape[:2] != k.shape[:2]:
        raise ValueError(f"v has shape {v.shape}: it must begin as k's {k.shape[:2]}")
    layout = Layout(cu_q_lens.shape[0] - 1, q.shape[1], q.shape[0], k.shape[0])
    lengths = Arg("cu_q_lens", cu_q_lens, "N"), Arg("cu_k_lens", cu_k_lens, "N")
    args = (Arg("q", q, "THD"), Arg("k", k, "SKD"), Arg("v", v, "SKD"), *lengths)
    split = _split(varlen_attention, args, options, layout, return_lse)
    if split is not None:
        return split
    if implementation == "reference":
        return reference.varlen_attention(
            q, k, v, cu_q_lens, cu_k_lens,
            mask=mask, score=score, scale=scale, sinks=sinks, return_lse=return_lse,
        )  # fmt: skip
    starts = cu_k_lens[:-1]
    out, lse = _solve(
        q,
        _packed(k, v, starts),
        cu_q_lens,
        cu_k_lens[1:] - starts,
        starts,
        k.shape[0],
        layout,
        options,
    )
    return (out, lse) if return_lse else out


def paged_attention(
    q: jax.Array,
    cache: PagedKV,
    block_tables: jax.Array,
    seq_lens: jax.Array,
    cu_q_lens: jax.Array,
    *,
    mask: Mask = Causal(),  # noqa: B008
    score: Score | tuple[Score, ...] = (),
    scale: float | None = None,
    sinks: jax.Array | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    compiler: str | None = None,
    tiles: Tiles | None = None,
):
    """Attention of packed queries over a paged cache that already holds their keys.

    Decodes, whole prompts and chunks of prompts mix freely: sequence n has the query rows
    ``cu_q_lens[n]:cu_q_lens[n + 1]``, and they are the last of its ``seq_lens[n]`` keys. The other
    arguments, the result and the errors are those of :func:`attention`.

    Args:
      q: ``[T, H, D]``.
      cache: see :class:`jaxattn.PagedKV`; of q's dtype and D.
      block_tables: ``i32[N, W]``, key t of sequence n is in page ``[n, t // page_size]``. Entries
        past a sequence's length may be anything.
      seq_lens: ``i32[N]``, at most ``W * page_size``.
      cu_q_lens: ``i32[N + 1]``, rising from 0 to at most T; padding repeats the last entry.

    Returns:
      ``[T, H, Dv]`` and, on request, ``f32[T, H]``; rows past ``cu_q_lens[-1]`` are 0 and -inf.
    """
    q = checks.array("q [T, H, D]", q, 3)
    if not isinstance(cache, PagedKV):
        raise ValueError(f"cache is a {type(cache).__name__}: it must be a PagedKV")
    cache.check()
    options = checks.options(
        q, cache.k, cache.v, mask, score, scale, sinks, implementation, compiler, tiles, kv_axis=1
    )
    tables = checks.ints("block_tables", block_tables, 2)
    seq_lens = checks.ints("seq_lens", seq_lens, 1)
    cu_q_lens = checks.ints("cu_q_lens", cu_q_lens, 1)
    n = seq_lens.shape[0]
    if tables.shape[0] != n or cu_q_lens.shape[0] != n + 1:
        raise ValueError(
            f"seq_lens is [N] with N = {n}: block_tables {tables.shape} must be [N, W] and "
            f"cu_q_lens {cu_q_lens.shape} [N + 1]"
        )
    width = tables.shape[1] * cache.page_size
    layout = Layout(n, q.shape[1], q.shape[0], None, table_keys=width)
    lengths = Arg("seq_lens", seq_lens, "N"), Arg("cu_q_lens", cu_q_lens, "N")
    where = Arg("cache", cache, "PK"), Arg("block_tables", tables, "NW")
    args = (Arg("q", q, "THD"), *where, *lengths)
    split = _split(paged_attention, args, options, layout, return_lse)
    if split is not None:
        return split
    if implementation == "reference":
        return reference.paged_attention(
            q, cache, tables, seq_lens, cu_q_lens,
            mask=mask, score=score, scale=scale, sinks=sinks, return_lse=return_lse,
        )  # fmt: skip
    out, lse = _solve(
        q,
        Paged(cache, tables if width else jnp.zeros((n, 1), jnp.int32)),
        cu_q_lens,
        seq_lens,
        jnp.arange(n, dtype=jnp.int32) * width,
        width,
        layout,
        options,
    )
    return (out, lse) if return_lse else out


def merge_states(out_a, lse_a, out_b, lse_b):
    """Attention over the union of two disjoint sets of keys, from the results over each.

    Associative and order-free up to rounding; -inf is an empty set (and +inf, which some kernels
    return for one, is read as -inf).

    Args:
      out_a, out_b: ``[..., Dv]``. lse_a, lse_b: ``f32[...]``, natural log, without sinks.

    Returns:
      The merged output in out_a's dtype, and its lse.

    Raises:
      ValueError: the shapes do not fit.
    """
    out_a, lse_a, out_b, lse_b = map(jnp.asarray, (out_a, lse_a, out_b, lse_b))
    if out_a.shape != out_b.shape or not lse_a.shape == lse_b.shape == out_a.shape[:-1]:
        raise ValueError(
            f"out_a {out_a.shape}, out_b {out_b.shape}: must be equal, "
            f"and lse_a {lse_a.shape}, lse_b {lse_b.shape} the same without the last axis"
        )
    for name, x in (("out_a", out_a), ("out_b", out_b), ("lse_a", lse_a), ("lse_b", lse_b)):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"{name} is {x.dtype}: it must be of floats")
    empty = lambda lse: jnp.where(jnp.isposinf(lse), -jnp.inf, lse.astype(jnp.float32))  # noqa: E731
    out, lse = tile.merge(
        out_a.astype(jnp.float32), empty(lse_a), out_b.astype(jnp.float32), empty(lse_b)
    )
    return out.astype(out_a.dtype), lse


def _split(op, args, options, layout, return_lse):
    """The result of ``op`` where the call is on a mesh and each device does its part; else None."""
    return sharded.attend(op, args, options, layout, return_lse, interpreting.current())


def _packed(k, v, starts):
    if k.shape[0] == 0:  # a tile of no keys is never used, but has to be something
        k, v = (jnp.zeros((1, *x.shape[1:]), x.dtype) for x in (k, v))
    return Packed(k, v, starts)


def _solve(q, keys, cu_q_lens, kv_lens, key_base, max_keys, layout, options, uniform=None):
    sinks = None if options.sinks is None else bind(PerHead(options.sinks), layout)
    problem = Problem(
        q=q,
        keys=keys,
        cu_q_lens=cu_q_lens,
        kv_lens=kv_lens,
        key_base=key_base,
        mask=bind(options.mask, layout),
        scores=bind(options.scores, layout),
        sinks=sinks,
        scale=options.scale,
        max_keys=max_keys,
        uniform=uniform,
    )
    return _call(
        problem, options.implementation, options.compiler, options.tiles, interpreting.current()
    )


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _run(problem, implementation, compiler, tiles, interpreter):
    t, h, _ = problem.q.shape
    results = (
        jax.ShapeDtypeStruct((t, h, problem.keys.v.shape[-1]), problem.q.dtype),
        jax.ShapeDtypeStruct((t, h), jnp.float32),
    )
    if t == 0 or problem.num_seqs == 0:
        nothing = jnp.full((t, h), -jnp.inf, jnp.float32)
        return jnp.zeros(results[0].shape, results[0].dtype), nothing

    def on(name):
        target = TARGETS[name]
        if name == "xla":
            return lambda p: target.run(p, tiles)
        reason = target.reason_not(problem, tiles)
        if reason:
            return lambda p: tuple(refuse(f'implementation="{name}": {reason}', results))
        extra = (compiler,) if name == "triton" else ()
        return lambda p: target.run(p, tiles, interpreter, *extra)

    if implementation is not None:
        out, lse = on(implementation)(problem)
    else:
        tpu, gpu, other = on("mosaic"), on("triton"), on("xla")
        out, lse = lax.platform_dependent(problem, tpu=tpu, cuda=gpu, rocm=gpu, default=other)
    # Rows of no sequence have no sink either.
    return out, jnp.where(jnp.arange(t)[:, None] < problem.cu_q_lens[-1], lse, -jnp.inf)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _call(problem, implementation, compiler, tiles, interpreter):
    return _run(problem, implementation, compiler, tiles, interpreter)


def _no_gradient(*_):
    raise NotImplementedError(
        'jaxattn\'s kernels have no gradient yet; implementation="reference" has one'
    )


_call.defvjp(lambda *args: (_run(*args), None), _no_gradient)
