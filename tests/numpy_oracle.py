"""Attention of one sequence in float64 numpy, row by row: the oracle is tested against this."""

import numpy as np


def attend(q, k, v, keep, change=(), scale=None, sinks=None):
    """q [T, H, D], k [S, K, D], v [S, K, Dv], keep [H, T, S] -> out [T, H, Dv], lse [T, H]."""
    (t, h, d), group = q.shape, q.shape[1] // k.shape[1]
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out, lse = np.zeros((t, h, v.shape[2])), np.full((t, h), -np.inf)
    scale = d**-0.5 if scale is None else scale
    s = np.stack([q[:, i] @ k[:, i // group].T for i in range(h)]) * scale  # [H, T, S]
    for f in change:
        s = f(s)
    for i in range(h):
        for row in range(t):
            seen = keep[i, row]
            logits = s[i, row, seen]
            if sinks is not None:
                logits = np.append(logits, sinks[i])
            top = logits.max(initial=-np.inf)
            if top == -np.inf:
                continue
            weights = np.exp(logits - top)
            lse[row, i] = top + np.log(weights.sum())
            values = v[seen, i // group]
            out[row, i] = weights[: len(values)] @ values / weights.sum()
    return out, lse


def attend_all(call, mask, scores=(), scale=None, sinks=None):
    """The same for every row of a `problems.Call`, in the form that the public function gives."""
    from problems import kept

    outs, lses = [], []
    for n, keep in enumerate(kept(call, mask)):
        change = [score.means(call, n) for score in scores]
        out, lse = attend(call.q[n], call.k[n], call.v[n], keep, change, scale, sinks)
        outs.append(out), lses.append(lse)
    if call.kind == "attention":
        return np.stack(outs), np.stack(lses)
    out, lse = np.concatenate(outs), np.concatenate(lses)
    pad = ((0, call.padding), (0, 0))
    return np.pad(out, (*pad, (0, 0))), np.pad(lse, pad, constant_values=-np.inf)
