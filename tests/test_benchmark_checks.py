"""What a benchmark gives to an implementation, and the check that its result has to pass."""

import jax
import numpy as np
import pytest
from benchmark_shapes import SHAPES, TINY

import jaxattn
from scripts.bench import arrays, oracle, ours
from scripts.bench.cases import parse


def test_pages_are_dealt_once_and_hold_the_keys_in_order():
    case = parse("decode:B3,S21,H2/1,D8,P4")
    made = arrays.make(case)
    tables = arrays.page_tables(case)
    assert sorted(tables.ravel()) == [*range(3 * 6)]
    assert (np.sort(tables[0]) != tables[0]).any()
    q, k, v = arrays.contiguous(case, made)
    assert q.shape == (3, 1, 2, 8)
    for n in range(3):
        own_k, own_v = arrays.sequence_keys(case, made, n)
        np.testing.assert_array_equal(own_k, k[n])
        np.testing.assert_array_equal(own_v, v[n])
        np.testing.assert_array_equal(own_k[5], made.k[tables[n, 1], 1])


@pytest.mark.parametrize("text", SHAPES)
def test_the_slices_of_the_oracle_are_the_whole_result(text):
    case = parse(text)
    made = arrays.make(case)
    way = ours.way(case)
    whole = way_result(way, case, made, implementation="reference")
    checks = oracle.expected(case, made)
    assert {check.heads.start for check in checks} == {0, case.heads - case.group}
    assert oracle.error_of(whole, checks) < 1e-6


def way_result(way, case, made, **options):
    """A result f32[T, H, D] for the operands of ``way``, in float32."""
    in_float32 = lambda x: x.astype(np.float32) if x.dtype == arrays.DTYPE else x  # noqa: E731
    operands = jax.tree.map(in_float32, way.operands(made))
    mask = oracle.mask_of(case)
    if case.page_size is None:
        out = jaxattn.attention(*operands, mask=mask, **options)
    else:
        out = jaxattn.paged_attention(*operands, mask=mask, **options)
    return np.asarray(out, np.float32).reshape(-1, case.heads, case.head_dim)


def test_the_check_sees_one_wrong_row_and_any_nan():
    case = parse(TINY)
    made = arrays.make(case)
    right = way_result(ours.way(case), case, made, implementation="reference")
    checks = oracle.expected(case, made)
    wrong = right.copy()
    wrong[1, 3] *= 1.05
    assert oracle.error_of(right, checks) <= oracle.TOLERANCE < oracle.error_of(wrong, checks)
    wrong = right.copy()
    wrong[0, 1, 0] = np.nan
    assert oracle.error_of(wrong, checks) == np.inf


@pytest.mark.parametrize(
    ("given", "handed"),
    [(None, {}), ("xla", {"compiler": "xla"}), ("triton", {"compiler": "triton"})],
)
@pytest.mark.parametrize("text", [TINY, "full:S8,H1,D8"])
def test_the_compiler_is_handed_on_only_when_given(monkeypatch, text, given, handed):
    seen = []
    for name in ("attention", "paged_attention"):
        monkeypatch.setattr(jaxattn, name, lambda *_, **options: seen.append(options))
    case = parse(text)
    way = ours.way(case, given)
    way.call(*way.operands(arrays.make(case)))
    assert seen == [{"mask": oracle.mask_of(case)} | handed]
