"""What a benchmark case costs: FLOPs, bytes, and the bound that they set."""

import numpy as np
import pytest
from benchmark_shapes import SHAPES, TINY

from scripts.bench import costs, suites
from scripts.bench.cases import parse


def kept(case, n):
    """bool[T, S]: which keys each query of sequence n sees, from the mask's definition."""
    t, s = case.q_lens[n], case.k_lens[n]
    q, k = s - t + np.arange(t)[:, None], np.arange(s)
    keep = np.ones((t, s), bool)
    if case.causal:
        keep &= k <= q
    if case.window:
        keep &= k > q - case.window
    return keep


@pytest.mark.parametrize("text", SHAPES)
def test_flops_and_bytes_count_what_the_mask_keeps(text):
    case = parse(text)
    masks = [kept(case, n) for n in range(len(case.q_lens))]
    pairs = sum(mask.sum() for mask in masks)
    assert costs.flops(case) == 4 * pairs * case.heads * case.head_dim
    queries, keys = sum(case.q_lens) * case.heads, sum(mask.any(0).sum() for mask in masks)
    assert costs.moved_bytes(case) == 2 * case.head_dim * 2 * (queries + keys * case.kv_heads)


def test_prefill_and_decode_cost_what_the_published_figures_count():
    cases = {case.name: case for case in suites.suite("all")}
    prefill = cases["prefill 8k paged"]
    assert costs.flops(prefill) == pytest.approx(4 * 32 * 8192 * 8192 * 128 / 2, rel=1e-3)
    decode = cases["decode B16 ctx 8192"]
    assert costs.moved_bytes(decode) == pytest.approx(2 * 16 * 8192 * 8 * 128 * 2, rel=1e-3)


def test_the_bound_says_what_limits():
    decode, prefill = parse(TINY), parse("prefill:S512,H4/2,D16,P8")
    assert costs.bound(decode, 1e15, 1e9) == (costs.moved_bytes(decode) / 1e9, "memory")
    assert costs.bound(prefill, 1e9, 1e15) == (costs.flops(prefill) / 1e9, "compute")
