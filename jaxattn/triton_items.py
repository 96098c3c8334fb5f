"""The work items of a launch as one table: a program reads all about its own from one place."""

import jax.numpy as jnp

from jaxattn.integers import arange
from jaxattn.kernel import Env, Rows
from jaxattn.parts import split
from jaxattn.problem import Problem
from jaxattn.schedule import uniform_item
from jaxattn.tuning_shape import pow2

__all__ = ["COLUMNS", "is_few", "mixed", "read", "table"]

COLUMNS = ("seq", "start", "count", "packed", "q_len", "kv_len", "lo", "hi", "first", "slot")
KIND = len(COLUMNS)  # one more, of a table of two kinds: 1 for few queries


def table(problem: Problem, block_k: int, wanted: int, **which):
    """``i32[I, 16]`` work items with the entries COLUMNS, in about ``wanted`` parts, and the table
    of :func:`jaxattn.triton_merge.merge`, or None where ``wanted`` is 0 and nothing is cut.

    ``which`` items: the arguments of :meth:`Problem.items`.
    """
    plan, kv_lens = problem.items(**which)
    cu = jnp.append(problem.cu_q_lens, problem.q.shape[0]).astype(jnp.int32)
    item = {
        "seq": jnp.minimum(plan.seq, problem.num_seqs - 1),
        "start": plan.start,
        "count": plan.count,
        "packed": cu[plan.seq],
        "q_len": cu[plan.seq + 1] - cu[plan.seq],
        # An unused item has no queries: without keys either it does nothing, and needs no branch,
        # which Triton would not pipeline loops inside as well.
        "kv_len": jnp.where(plan.count > 0, kv_lens[plan.seq], 0),
    }
    if not wanted:
        item |= {"lo": 0 * plan.seq, "hi": item["kv_len"], "first": 0 * plan.seq + 1}
        return _columns(item | {"slot": 0 * plan.seq - 1}, COLUMNS), None
    lo, hi = _span(problem, item)
    parts = split(lo, hi, block_k, wanted)
    used = parts.item < plan.seq.shape[0]
    at = jnp.minimum(parts.item, plan.seq.shape[0] - 1)
    pick = {name: x[at] for name, x in item.items()}
    pick |= {name: jnp.where(used, pick[name], 0) for name in ("count", "kv_len")}
    pick |= {name: getattr(parts, name) for name in ("lo", "hi", "first", "slot")}
    block = jnp.minimum(parts.merged, plan.seq.shape[0] - 1)
    merges = {
        "packed": (item["packed"] + item["start"])[block],
        "count": item["count"][block],
        "slot": parts.merged_slot,
        "parts": parts.merged_parts,
    }
    return _columns(pick, COLUMNS), _columns(merges, tuple(merges))


def mixed(many, few):
    """One table of the items of both, each kind's spread evenly among the other's, so that at all
    times some items multiply and some load. Of the many, later blocks (which may see more keys)
    come first; unused items come last."""

    def spread(table, rank):
        used = table[:, COLUMNS.index("count")] > 0
        share = (rank(jnp.sum(used, dtype=jnp.int32)) + 0.5) / jnp.maximum(jnp.sum(used), 1)
        return jnp.where(used, share, 2.0)

    i, j = arange(many.shape[0]), arange(few.shape[0])
    turn = jnp.concatenate([spread(many, lambda n: n - 1 - i), spread(few, lambda n: j)])
    both = jnp.concatenate([many, few.at[:, KIND].set(1)])
    return both[jnp.argsort(turn)]


def is_few(table, item):
    """In a kernel, whether an item of :func:`mixed` is of few queries."""
    return table[item, KIND] > 0


def _columns(item, names):
    """The entries ``names`` side by side, so that a program reads one or two sectors of memory."""
    table = jnp.stack([item[name] for name in names], axis=1).astype(jnp.int32)
    return jnp.pad(table, ((0, 0), (0, pow2(len(names)) - len(names))))


def _span(problem: Problem, item):
    """The keys ``lo <= key < hi`` of each item, by the mask, for all items at once."""
    rows = _rows(item, block_q=1, rows=1, group=1, kv_head=0)
    position = rows.position()
    span = problem.mask.span(position, position + rows.count, Env(rows)).clip(0, rows.kv_len)
    spread = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.int32), rows.seq.shape)  # noqa: E731
    return spread(span.lo), spread(span.hi)


def read(item, table, uniform, sizes, cut):
    """In a kernel, the :class:`Rows` of a work item, by arithmetic when sequences are alike, else
    by the table; and the slot of its result, when key ranges are cut.

    ``sizes`` are the fields of Rows that are known when tracing, and its ``kv_head``.
    """
    if uniform is not None:
        q_len, kv_len = uniform
        seq, start, count = uniform_item(item, q_len, sizes["block_q"])
        lens = {"packed_start": seq * q_len, "q_len": q_len, "kv_len": kv_len}
        return Rows(seq=seq, start=start, count=count, **lens, **sizes), None
    entry = {name: table[item, i] for i, name in enumerate(COLUMNS)}
    part = {"keys": (entry["lo"], entry["hi"]), "first": entry["first"] > 0} if cut else {}
    return _rows(entry, **part, **sizes), entry["slot"]


def _rows(entry, **more):
    """The Rows of entries of the table, which may be of all items at once."""
    fields = {name: entry[name] for name in ("seq", "start", "count", "q_len", "kv_len")}
    return Rows(packed_start=entry["packed"], **fields, **more)
