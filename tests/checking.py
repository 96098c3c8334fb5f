"""Runs a `problems.Call` on a target and on the oracle, and compares."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from numpy_oracle import attend_all
from problems import Call, dense, unreachable
from recipes import MASKS, sinks

import jaxattn
from jaxattn import reference

FUNCTIONS = {"attention": "attention", "varlen": "varlen_attention", "paged": "paged_attention"}
# Largest error of a row relative to its norm: the rounding of the output and of the weights.
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}


@functools.cache
def jitted(kind, implementation, tiles, interpreter, scale, compiler=None):
    """The public function, compiled once for all calls of a shape."""
    if implementation == "oracle":
        run = getattr(reference, FUNCTIONS[kind])
    else:
        named = {"implementation": implementation, "tiles": tiles, "compiler": compiler}
        run = functools.partial(getattr(jaxattn, FUNCTIONS[kind]), **named)
    # Compiling is nearly all that a test costs on a CPU.
    hurry = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(functools.partial(run, scale=scale, return_lse=True), compiler_options=hurry)


def options(call: Call, mask="causal", score=(), with_sinks=False):
    """Keyword arguments from recipes or their names."""
    named = {"mask": mask.build(call), "score": tuple(one.build(call) for one in score)}
    if with_sinks:
        named["sinks"] = jnp.asarray(sinks(call))
    return jax.tree.map(jnp.asarray, named)


def run(call: Call, implementation, mask=MASKS["causal"], score=(), with_sinks=False, *, scale=None,
        tiles=None, dma=None, compiler=None):  # fmt: skip
    """`out, lse` with every key that the mask makes unreachable full of NaN."""
    args = jax.tree.map(jnp.asarray, call.args(unreachable(call, mask)))
    named = options(call, mask, score, with_sinks)
    if implementation == "oracle":
        as_f32 = lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x  # noqa: E731
        args = jax.tree.map(as_f32, args)
    f = jitted(call.kind, implementation, tiles, dma, scale, compiler)
    if implementation in ("mosaic", "triton") and jax.default_backend() == "cpu":
        with jaxattn.interpret(dma=dma or "on_wait"):
            results = f(*args, **named)
        return fail_on_race(results) if implementation == "mosaic" else results
    return f(*args, **named)


def fail_on_race(results):
    """The results of an interpreted kernel; some JAX versions only print that it raced."""
    jax.block_until_ready(results)
    races = getattr(interpret_pallas_call, "races", None)
    found = races is not None and races.races_found
    if found:
        races.races_found = False  # a later test must not fail for it
    assert not found, "a race between copies, printed above"
    return results


def check(call: Call, implementation, mask=MASKS["causal"], score=(), with_sinks=False, *,
          tolerance=None, **how):  # fmt: skip
    """Fails unless the target agrees with the oracle row by row.

    Compiling the oracle for each case would take most of the time. So small calls are compared with
    the numpy that it is itself tested against (test_reference.py), and for the others the mask
    becomes a dense one in numpy, so that all the masks of a shape share one compiled oracle.
    """
    got = run(call, implementation, mask, score, with_sinks, **how)
    scale = how.get("scale")
    if sum(q_len * k_len for q_len, k_len in call.seqs) < 20_000:
        want = attend_all(call, mask, score, scale, sinks(call) if with_sinks else None)
    else:
        want = run(call, "oracle", dense(mask), score, with_sinks, scale=scale)
    # A float32 logit of hundreds has lost this much of what it means in an exponent.
    rounded = call.spread * np.finfo(np.float32).eps * 5
    agree(got, want, tolerance or max(TOLERANCE[call.dtype], rounded))


def agree(got, want, tolerance):
    """Rows of out within `tolerance` of their norm (or a tenth of a usual one's), lse to 1e-4."""
    out, want_out = (np.asarray(x[0], np.float64) for x in (got, want))
    lse, want_lse = (np.asarray(x[1], np.float64) for x in (got, want))
    assert out.shape == want_out.shape
    assert got[1].dtype == jnp.float32
    assert not np.isnan(out).any(), f"NaN in rows {np.argwhere(np.isnan(out).any(-1))[:5].tolist()}"
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(want_lse), "rows that are empty")
    some = ~np.isneginf(want_lse)
    np.testing.assert_allclose(lse[some], want_lse[some], rtol=1e-5, atol=1e-4, err_msg="lse")
    norm = np.linalg.norm(want_out, axis=-1)
    typical = np.sqrt(np.mean(norm[norm > 0] ** 2)) if (norm > 0).any() else 1.0
    error = np.linalg.norm(out - want_out, axis=-1) / np.maximum(norm, typical / 10)
    worst = np.unravel_index(error.argmax(), error.shape) if error.size else ()
    assert error.max(initial=0) <= tolerance, f"row {worst}: error {error.max():.2e} of its norm"
    assert not out[norm == 0].any(), "rows without keys are not 0"


def check_case(case, implementation, **how):
    """`check` on a `grids.Case`."""
    how = {"scale": case.scale} | how
    check(case.call, implementation, case.mask, case.score, case.with_sinks, **how)


def parametrize(*tables):
    """Runs a test with `case` from tables of named cases."""
    named = [pytest.param(case, id=name) for table in tables for name, case in table.items()]
    return pytest.mark.parametrize("case", named)
