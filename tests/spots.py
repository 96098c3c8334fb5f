"""Some rows of calls too large for the oracle, in numpy one sequence at a time."""

import numpy as np
from checking import TOLERANCE, agree, run
from problems import Call, Recipe
from recipes import MASKS, sinks


def picked(q_len: int) -> list[int]:
    """The first query of a sequence, the last, and one between."""
    return sorted({0, q_len // 2, q_len - 1}) if q_len else []


def attend(call: Call, mask: Recipe, n: int, rows: list[int], with_sinks=False):
    """``out f64[rows, H, Dv]`` and ``lse f64[rows, H]`` of queries of sequence n. Products are of
    float32, the rest of float64."""
    heads, kv_heads, d, dv = call.heads
    group, keys = heads // kv_heads, call.seqs[n][1]
    keep = np.broadcast_to(mask.means(call, n), (1, *call.seqs[n]))[0, rows]  # [rows, S]
    q = call.q[n][rows].astype(np.float32).reshape(len(rows), kv_heads, group, d)
    out, lse = np.zeros((len(rows), kv_heads, group, dv)), np.zeros((len(rows), kv_heads, group))
    extra = np.full((kv_heads, group), -np.inf)
    if with_sinks:
        extra = sinks(call).astype(np.float64).reshape(kv_heads, group)
    for h in range(kv_heads):
        k, v = (np.ascontiguousarray(x[n][:, h], np.float32) for x in (call.k, call.v))
        s = (q[:, h].reshape(-1, d) @ k.T).reshape(len(rows), group, keys) * np.float64(d) ** -0.5
        s = np.where(keep[:, None], s, -np.inf)
        top = np.maximum(s.max(-1, initial=-np.inf), extra[h])
        some = np.where(np.isneginf(top), 0, top)
        p = np.exp(s - some[..., None])
        total = p.sum(-1) + np.exp(extra[h] - some)
        with np.errstate(divide="ignore"):
            lse[:, h] = some + np.log(total)
        values = (p.reshape(-1, keys).astype(np.float32) @ v).reshape(len(rows), group, dv)
        out[:, h] = values / np.where(total == 0, 1, total)[..., None]
    return out.reshape(len(rows), heads, dv), lse.reshape(len(rows), heads)


def expected(call: Call, mask: Recipe, with_sinks=False):
    """The packed rows that are looked at, padding among them, and their out and lse."""
    places, outs, lses = [], [], []
    for n, (q_len, _) in enumerate(call.seqs):
        if rows := picked(q_len):
            out, lse = attend(call, mask, n, rows, with_sinks)
            places += [call.cu_q_lens[n] + row for row in rows]
            outs.append(out), lses.append(lse)
    blank = range(call.rows - call.padding, call.rows)
    outs.append(np.zeros((len(blank), call.heads[0], call.heads[3])))
    lses.append(np.full((len(blank), call.heads[0]), -np.inf))
    return np.array([*places, *blank]), np.concatenate(outs), np.concatenate(lses)


def check(call: Call, mask: Recipe = MASKS["causal"], with_sinks=False, want=None, **how):
    """Fails unless the triton target agrees in those rows and none is NaN; gives its results.
    ``want`` is what :func:`expected` gave, to have it once."""
    out, lse = run(call, "triton", mask, with_sinks=with_sinks, **how)
    out, lse = np.asarray(out), np.asarray(lse)
    assert not np.isnan(out.astype(np.float32)).any()
    rows, *want = want or expected(call, mask, with_sinks)
    agree((out[rows], lse[rows]), want, TOLERANCE[call.dtype])
    return out, lse
