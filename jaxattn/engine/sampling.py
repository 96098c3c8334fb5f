"""Sampling on the device: from logits to one token id a row, every setting an array.

A row's id depends on its own logits, settings, seed and position only, never on the rows beside it
or on how many there are. Thresholds are found by bisection on the bits of the floats, which is
exact, needs no sort, and costs 32 passes over the logits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

BLOCK = 256  # the draw sums the vocabulary in blocks of this size: a short scan, not a long one


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingRows:
    """The settings of N rows. See SamplingParams for what each means.

    temperature f32[N] (0: greedy), top_k i32[N] (0: all), top_p f32[N], min_p f32[N],
    seeds u32[N, 2] (high and low half).
    """

    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    seeds: jax.Array


def sample(logits: jax.Array, rows: SamplingRows, positions: jax.Array) -> jax.Array:
    """Choose a token for each row: i32[N]; -1 where the largest logit is not a finite number.

    logits: f32[N, V]. positions: i32[N], the place of the new token in its sequence; with the
    row's seed it makes the key, so a request's tokens do not depend on when they are computed.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    # argmax points at a NaN where there is one.
    largest = jnp.take_along_axis(logits, greedy[:, None], axis=-1)
    ids = jax.lax.cond(
        jnp.any(rows.temperature > 0),
        lambda: jnp.where(rows.temperature > 0, _draw(logits, largest, rows, positions), greedy),
        lambda: greedy,
    )
    return jnp.where(jnp.isfinite(largest[:, 0]), ids, -1)


def kept_logits(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """The logits f32[N, V] that `rows` leaves, less their maximum and divided by the temperature.

    Tokens that top-k, top-p or min-p take out are -inf. Every temperature must be above 0.
    """
    return _filter(logits, jnp.max(logits, axis=-1, keepdims=True), rows)


def _draw(logits, largest, rows: SamplingRows, positions) -> jax.Array:
    # A greedy row in a mixed batch is overwritten; 1 keeps its arithmetic finite.
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)
    weights = jnp.exp(_filter(logits, largest, replace(rows, temperature=temperature)))
    keys = jax.random.wrap_key_data(rows.seeds, impl="threefry2x32")
    keys = jax.vmap(jax.random.fold_in)(keys, positions)
    # One number a row and its place in the running sum: on a CPU noise for every logit, the other
    # way to draw, costs more than all the rest of sampling.
    uniform = jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)
    blocks = _in_blocks(weights)
    sums = jnp.sum(blocks, axis=-1)
    target = uniform * jnp.sum(sums, axis=-1)
    block, target = _first_above(sums, target)
    chosen = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * BLOCK + _first_above(chosen, target)[0]


def _in_blocks(weights) -> jax.Array:
    """f32[N, V] -> f32[N, V/BLOCK, BLOCK], the last block filled with zeros."""
    rows, size = weights.shape
    return jnp.pad(weights, ((0, 0), (0, -size % BLOCK))).reshape(rows, -1, BLOCK)


def _first_above(weights, target) -> tuple[jax.Array, jax.Array]:
    """Where the running sum of f32[N, M] first exceeds `target` f32[N]: (i32[N], rest f32[N]).

    The rest is the target less the sum before that place. An entry of weight 0 is never chosen,
    whatever rounding does to the sums.
    """
    sums = jnp.cumsum(weights, axis=-1)
    possible = weights > 0
    above = possible & (sums > target[:, None])
    last = weights.shape[-1] - 1 - jnp.argmax(possible[:, ::-1], axis=-1)
    index = jnp.where(jnp.any(above, axis=-1), jnp.argmax(above, axis=-1), last)
    before = jnp.take_along_axis(sums - weights, index[:, None], axis=-1)[:, 0]
    return index.astype(jnp.int32), target - before


def _filter(logits, largest, rows: SamplingRows) -> jax.Array:
    scaled = (logits - largest) / rows.temperature[:, None]
    scaled = jax.lax.cond(
        jnp.any(rows.top_k > 0), lambda: _keep_top_k(scaled, rows.top_k), lambda: scaled
    )
    scaled = jax.lax.cond(
        jnp.any(rows.top_p < 1), lambda: _keep_top_p(scaled, rows.top_p), lambda: scaled
    )
    # The likeliest token has exp(0) = 1, so exp(scaled) is the ratio that min_p speaks of.
    return jnp.where(jnp.exp(scaled) >= rows.min_p[:, None], scaled, -jnp.inf)


def _keep_top_k(scaled, top_k) -> jax.Array:
    def enough(at_least):  # bool[N, V] -> bool[N]
        return jnp.sum(at_least, axis=-1, dtype=jnp.int32) >= top_k

    kept = _largest_threshold(scaled, enough)
    return jnp.where(kept | (top_k <= 0)[:, None], scaled, -jnp.inf)


def _keep_top_p(scaled, top_p) -> jax.Array:
    weights = jnp.exp(scaled)  # 0 for what top-k took out
    needed = top_p * jnp.sum(weights, axis=-1)

    def enough(at_least):
        return jnp.sum(jnp.where(at_least, weights, 0.0), axis=-1) >= needed

    kept = _largest_threshold(scaled, enough)
    # top_p 1 keeps all: in float32 the tail may add nothing to a sum that is already complete.
    return jnp.where(kept | (top_p >= 1)[:, None], scaled, -jnp.inf)


def _largest_threshold(values, enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The entries of f32[N, V] at or above each row's largest threshold that `enough` accepts.

    `enough` maps bool[N, V] to bool[N], and once true stays true as the threshold falls. The
    threshold is built from its highest bit down, in an unsigned order that agrees with the floats'.
    """
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    ordered = jnp.where(bits & sign, ~bits, bits | sign)

    def try_bit(step, threshold):
        candidate = threshold | (sign >> step.astype(jnp.uint32))
        return jnp.where(enough(ordered >= candidate[:, None]), candidate, threshold)

    threshold = jax.lax.fori_loop(0, 32, try_bit, jnp.zeros(values.shape[:1], jnp.uint32))
    return ordered >= threshold[:, None]
