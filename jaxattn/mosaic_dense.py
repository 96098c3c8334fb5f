"""TPU: dense attention with static lengths as one pipeline over tiles, products beside softmax.

Every step of the grid works on three tiles (jaxattn/mosaic_units.py): the logits of one, the
weights of the one before, the weighted values of the one before that. Nothing of a step waits for
anything else of it, so that the compiler's schedule fills the matrix units and the vector units at
once. Logits stand with keys on the sublanes and queries on the lanes: the largest and the sum over
keys are then plain vector operations, and m and l are rows of lanes.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxattn import tile
from jaxattn.mosaic_blocks import LANES
from jaxattn.mosaic_units import (
    FIRST,
    LAG,
    LAST,
    MASKED,
    MOST_UNITS,
    SIDES,
    Shape,
    choose_tiles,
    sides,
    units,
)
from jaxattn.operands import PerHead, is_operand
from jaxattn.problem import Packed, Problem, Tiles

__all__ = ["fits", "run", "shape_of"]

FEWEST_ROWS = 64  # of fewer the heads of a group are better folded into one tile
F32_SIDE = 512


def fits(problem: Problem, tiles: Tiles | None) -> bool:
    """Whether this launch does the problem: one length for all, known when tracing, and a mask that
    needs no array and has no holes."""
    if problem.uniform is None or not isinstance(problem.keys, Packed):
        return False
    if problem.uniform < FEWEST_ROWS or problem.mask.holes:
        return False
    if problem.keys.k.shape[0] != problem.num_seqs * problem.max_keys:
        return False
    operands = jax.tree.leaves((problem.mask, problem.scores), is_leaf=is_operand)
    if not all(isinstance(x, PerHead) for x in operands):
        return False
    shape = shape_of(problem, tiles)
    return shape is not None and _heads_a_launch(shape, problem.mask) is not None


def shape_of(problem: Problem, tiles: Tiles | None) -> Shape | None:
    """The launch's sizes; None where the tiles asked for are none that it can have."""
    queries, keys = problem.uniform, problem.max_keys
    if tiles is None:
        longest = F32_SIDE if problem.q.dtype == jnp.float32 else SIDES[-1]
        heads = problem.num_seqs * problem.q.shape[1]
        tiles = choose_tiles(queries, keys, heads, problem.mask, longest)
    found = sides(tiles, queries, keys)
    if found is None:
        return None
    n = problem.num_seqs
    return Shape(
        heads=n * problem.q.shape[1],
        kv_heads=n * problem.keys.num_kv_heads,
        queries=queries,
        keys=keys,
        d=problem.q.shape[-1],
        dv=problem.keys.v.shape[-1],
        rows=found[0],
        width=found[1],
    )


def run(problem: Problem, tiles: Tiles | None, interpret):
    """``out [T, H, Dv]`` in q's dtype and ``lse f32[T, H]`` (natural log)."""
    shape = shape_of(problem, tiles)
    heads = _heads_a_launch(shape, problem.mask)
    table, count = units(shape, problem.mask, heads)
    tree = jax.tree.structure((problem.scores, problem.sinks), is_leaf=is_operand)
    numbers = [
        x.value for x in jax.tree.leaves((problem.scores, problem.sinks), is_leaf=is_operand)
    ]
    h = problem.q.shape[1]
    spec = functools.partial(_spec, shape, heads)
    dtype = problem.q.dtype
    bodies = tuple(sorted(set(masked_steps(problem, shape))))
    launch = _Launch(shape, problem.mask, problem.scale, heads, h, bodies)
    kernel = functools.partial(_kernel, launch=launch, tree=tree)
    n, t = shape.heads, shape.queries
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(table) + len(numbers),
        grid=(n // heads, count + LAG),
        in_specs=[
            spec("q", shape.d, 0),
            spec("k", shape.d, 0),
            spec("k", shape.dv, 1 if _lanes(shape.dv) else LAG),
        ],
        out_specs=[spec("q", shape.dv, LAG), spec("q", 1, LAG)],
        scratch_shapes=_scratch(shape, dtype),
    )
    out_shape = (n, t, shape.dv) if _lanes(shape.dv) else (n, shape.dv, t)
    out, lse = pl.pallas_call(
        kernel,
        grid_spec=grid_spec,
        out_shape=[
            jax.ShapeDtypeStruct(out_shape, dtype),
            jax.ShapeDtypeStruct((n, 1, t), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            disable_bounds_checks=True,  # blocks are of a table that is made here
        ),
        interpret=interpret,
        name="jaxattn_dense",
    )(*table, *numbers, *_operands(problem, shape))
    return _unfold(out, h, _lanes(shape.dv)), _unfold(lse, h, False)[..., 0]


def masked_steps(problem: Problem, shape: Shape) -> list[bool]:
    """Of every step of the grid, whether the tile that it scores needs the mask."""
    heads = _heads_a_launch(shape, problem.mask)
    (*_, flags), count = units(shape, problem.mask, heads)
    steps = [bool(flag & MASKED) for flag in flags[LAG : LAG + count + LAG]]
    return steps * (shape.heads // heads)


def _lanes(d: int) -> bool:
    """Whether columns of that many go on the lanes. If they do not fill them, positions do: XLA
    chooses the same for arrays of such heads, and then nothing is copied."""
    return d % LANES == 0


def _heads_a_launch(shape: Shape, mask) -> int | None:
    """How many heads one turn of the outer grid dimension takes: as many as the table has room
    for, in two turns at least where that is possible, for chips of two cores."""
    each = units(shape, mask, 1)[1]
    options = [
        n
        for n in range(shape.group, shape.heads + 1, shape.group)
        if shape.heads % n == 0 and n * each <= MOST_UNITS
    ]
    return max(options, default=None)


def _operands(problem: Problem, shape: Shape):
    """q, k and v as ``[heads, positions, columns]`` or ``[heads, columns, positions]``."""
    for x, length in (
        (problem.q, shape.queries),
        (problem.keys.k, shape.keys),
        (problem.keys.v, shape.keys),
    ):
        x = x.reshape(problem.num_seqs, length, *x.shape[1:])
        order = (0, 2, 1, 3) if _lanes(x.shape[-1]) else (0, 2, 3, 1)
        x = x.transpose(order)
        yield x.reshape(-1, *x.shape[2:])


def _unfold(x, heads: int, lanes: bool):
    """What the kernel wrote as ``[T, H, n]`` of packed rows."""
    x = x.reshape(-1, heads, *x.shape[1:])
    x = x.transpose((0, 2, 1, 3) if lanes else (0, 3, 1, 2))
    return x.reshape(-1, *x.shape[2:])


def _spec(shape: Shape, heads: int, kind: str, columns: int, lag: int):
    """Blocks of q's or k's positions, of the unit that the step works on ``lag`` steps late."""
    length = shape.rows if kind == "q" else shape.width
    lanes = _lanes(columns)

    def index(part, step, head, kv_head, strip, block, *_):
        entry = step + LAG - lag
        if kind == "q":
            first, position = part * heads + head[entry], strip[entry]
        else:
            first, position = part * (heads // shape.group) + kv_head[entry], block[entry]
        return (first, position, 0) if lanes else (first, 0, position)

    return pl.BlockSpec((None, length, columns) if lanes else (None, columns, length), index)


def _scratch(shape: Shape, dtype):
    row = pltpu.VMEM((1, shape.rows), jnp.float32)
    turned = (shape.dv, shape.width) if _lanes(shape.dv) else (8, LANES)
    return [
        pltpu.VMEM((shape.width, shape.rows), jnp.float32),  # logits
        pltpu.VMEM((shape.width, shape.rows), dtype),  # weights
        pltpu.VMEM(turned, dtype),  # values
        *[row] * 4,  # the logits' largest, m, l, and how much the sums before decay
        pltpu.VMEM((shape.dv, shape.rows), jnp.float32),
    ]


@dataclasses.dataclass(frozen=True)
class _Launch:
    """What is the same for all tiles. heads: of one turn of the outer grid dimension. bodies: of a
    step, the one without a mask (False) and the one with, as far as some step has them."""

    shape: Shape
    mask: Any
    scale: float
    heads: int
    q_heads: int
    bodies: tuple[bool, ...]
    scores: tuple = ()
    sinks: PerHead | None = None


def _kernel(*refs, launch: _Launch, tree):
    """refs: the table's rows, the numbers a head, then blocks and scratch."""
    table, numbers, refs = refs[:5], refs[5 : 5 + tree.num_leaves], refs[5 + tree.num_leaves :]
    scores, sinks = jax.tree.unflatten(tree, map(PerHead, numbers))
    launch = dataclasses.replace(launch, scores=scores, sinks=sinks)
    step = pl.program_id(1)
    units = [_Unit(launch, table, step + LAG - lag) for lag in range(LAG + 1)]
    if len(launch.bodies) == 1:
        return _step(units, refs, *launch.bodies)
    masked = (units[0].flag & MASKED) != 0
    pl.when(masked)(lambda: _step(units, refs, True))
    pl.when(~masked)(lambda: _step(units, refs, False))


def _step(units, refs, masked: bool):
    """One step. What a stage reads of the step before is read before a later stage's unit, whose
    part stands after it here, writes the same place."""
    q, k, v, out, lse, s, p, turned, top, m, l, decay, acc = refs
    scoring, weighing, adding = units
    lanes = _lanes(scoring.shape.dv)
    values = turned[...] if lanes else _known(v[...], adding, 1)
    sums = jnp.where(adding.first, 0.0, acc[...] * decay[...])
    sums = sums + tile.dot(values, p[...], 1, 0)
    acc[...] = sums
    state = m[...], l[...], sums

    m_old, l_old = weighing.begin(m[...], l[...])
    logits = s[...], weighing.unit
    m[...], l[...], weights, decay[...] = tile.weigh(m_old, l_old, logits, top[...], axis=0)
    p[...] = weights.astype(p.dtype)
    if lanes:
        turned[...] = _known(v[...].T, weighing, 1)

    logits = scoring.logits(q[...], k[...], masked)
    s[...] = logits
    top[...] = jnp.max(logits, axis=0, keepdims=True)
    # Last, since a condition ends a stretch of code that is scheduled together.
    pl.when(adding.last)(lambda: _write(out, lse, state, lanes))


def _write(out, lse, state, lanes: bool):
    value, total = tile.finish(state)
    out[...] = (value.T if lanes else value).astype(out.dtype)
    lse[...] = total


def _known(v, unit, axis: int):
    """``v`` with 0 for the keys outside the strip's span: 0 times what stands there may be NaN."""
    if True not in unit.launch.bodies:
        return v
    size = [1, 1]
    size[axis] = unit.shape.width
    key = unit.k_first + lax.broadcasted_iota(jnp.int32, tuple(size), axis)
    span = unit.span()
    return jnp.where((key >= span.lo) & (key < span.hi), v, jnp.zeros_like(v))


class _Unit:
    """One tile: its places, and what masks and scores ask about it (as kernel.Env, of one head)."""

    def __init__(self, launch: _Launch, table, entry):
        head, _, strip, block, flags = (row[entry] for row in table)
        self.launch, self.shape, self.flag = launch, launch.shape, flags
        self.head = lax.rem(pl.program_id(0) * launch.heads + head, jnp.int32(launch.q_heads))
        self.start = strip * self.shape.rows
        self.q_first = self.start + (self.shape.keys - self.shape.queries)
        self.k_first = block * self.shape.width
        self.first, self.last = (flags & FIRST) != 0, (flags & LAST) != 0

    def span(self):
        """The keys that some query of the strip may see."""
        count = jnp.minimum(self.shape.rows, self.shape.queries - self.start)
        span = self.launch.mask.span(self.q_first, self.q_first + count, self)
        return span.clip(0, self.shape.keys)

    @property
    def unit(self) -> float:
        """What makes the logits base-2 logits."""
        return tile.scaled(0.0, self.launch.scale, (lambda s: s) if self.launch.scores else None)[1]

    def logits(self, q, k, masked: bool):
        """``f32[keys, rows]``."""
        lanes = _lanes(self.shape.d)
        s = tile.dot(k, q, int(lanes), int(lanes))
        q_idx = self.q_first + lax.broadcasted_iota(jnp.int32, (1, self.shape.rows), 1)
        k_idx = self.k_first + lax.broadcasted_iota(jnp.int32, (self.shape.width, 1), 0)

        def alter(s):
            for score in self.launch.scores:
                s = score.apply(s, q_idx, k_idx, self)
            return s

        s, _ = tile.scaled(s, self.launch.scale, alter if self.launch.scores else None)
        if not masked:
            return s
        keep = self.launch.mask.keep(q_idx, k_idx, self)
        if self.shape.ragged:
            keep &= k_idx < self.shape.keys
        return jnp.where(keep, s, tile.MASKED)

    def begin(self, m, l):
        """m and l before this unit: those of no keys if it is the first of its strip.

        m begins above every masked logit, so that such logits weigh nothing without a look at the
        mask: this takes base-2 logits below half of the masked one for masked.
        """
        sink = None if self.launch.sinks is None else self.per_head(self.launch.sinks)
        m_none, l_none, _ = tile.init(None, (), sink)
        least = 0.5 * tile.MASKED * self.unit
        if sink is not None:  # of -inf, which is no sink
            l_none = jnp.where(m_none < least, 0.0, l_none)
        m_none = jnp.maximum(m_none, least)
        return jnp.where(self.first, m_none, m), jnp.where(self.first, l_none, l)

    def per_head(self, operand):
        """The number of this unit's head."""
        return operand.value[self.head]
