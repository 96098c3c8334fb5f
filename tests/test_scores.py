"""Scores against plain numpy on bare logits."""

import numpy as np
import pytest
from recipes import SCORES
from test_masks import CALL, NumpyEnv

import jaxattn


class ScoreEnv(NumpyEnv):
    """The same with the numbers of a head."""

    def per_head(self, operand):
        return operand.value[self.head]


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("n", range(4))
def test_apply(name, n):
    score, (q, k) = SCORES[name].build(CALL), CALL.positions(n)
    s = CALL.rng("logits").standard_normal((2, *CALL.seqs[n])).astype(np.float32) * 4
    want = SCORES[name].means(CALL, n)(s.astype(np.float64))
    for head in range(2):
        got = score.apply(s[head], q, k, ScoreEnv(n, head))
        np.testing.assert_allclose(got, want[head], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("s", [-1e30, -5000.0, -89.0 * 50, 0.0, 89.0 * 50, 5000.0, 1e30])
def test_softcap_is_finite_and_bounded(s):
    got = float(jaxattn.Softcap(50.0).apply(np.full((1, 1), s, np.float32), None, None, None)[0, 0])
    assert np.isfinite(got)
    assert got == pytest.approx(50.0 * np.tanh(s / 50.0), rel=1e-6)


@pytest.mark.parametrize("cap", [0.0, -3.0, float("nan")])
def test_softcap_wants_a_positive_cap(cap):
    with pytest.raises(ValueError, match="cap="):
        jaxattn.Softcap(cap)
