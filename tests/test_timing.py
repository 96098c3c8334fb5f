"""scripts/timing.py: every call of a chain is made, once, and a longer call takes longer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scripts import timing


def mix(x, a):
    return x @ a


@pytest.fixture
def operands():
    x = jax.random.normal(jax.random.key(0), (64, 64))
    return x, jnp.linalg.qr(x)[0]


def test_the_compiled_chain_makes_every_call_once(operands):
    chain = timing.Chain(mix, *operands, guess=timing.ROUND_SECONDS / 5)
    assert chain._run.as_text().count(" dot(") == 5


def test_calls_whose_result_has_another_shape_are_all_made(operands):
    chain = timing.Chain(lambda x, a: (x @ a).sum(0), *operands, guess=timing.ROUND_SECONDS / 4)
    assert chain._run.as_text().count(" dot(") == 4


def test_the_chain_is_no_longer_than_a_model_is_deep(operands):
    chain = timing.Chain(mix, *operands, guess=1e-9)
    assert chain._run.as_text().count(" dot(") == timing.UNROLLED


def test_first_is_the_result_for_the_callers_operand(operands):
    chain = timing.Chain(mix, *operands, guess=timing.ROUND_SECONDS / 3)
    np.testing.assert_allclose(chain.first(), operands[0] @ operands[1], rtol=1e-5, atol=1e-5)
    chain.time(rounds=3)
    np.testing.assert_allclose(chain.first(), operands[0] @ operands[1], rtol=1e-5, atol=1e-5)


def test_a_longer_call_takes_longer():
    # Each step is a product that needs the one before, so 16 times the steps is 16 times the work.
    def steps(count):
        def call(x, a):
            for _ in range(count):
                x = x @ a
            return x

        x = jnp.eye(256) / 2
        return timing.Chain(call, x, jnp.eye(256)).time().median

    assert steps(16) > 4 * steps(1)


def test_a_slow_call_gets_fewer_rounds(monkeypatch, operands):
    monkeypatch.setattr(timing, "BUDGET_SECONDS", 1e-6)
    assert len(timing.Chain(mix, *operands).time(rounds=9).rounds) == timing.LEAST_ROUNDS
    monkeypatch.setattr(timing, "BUDGET_SECONDS", 60.0)
    assert len(timing.Chain(mix, *operands).time(rounds=9).rounds) == 9


def test_wall_time_waits_for_every_call(operands):
    assert timing.wall_time(mix, *operands).median >= timing.Chain(mix, *operands).time().median / 2


def test_median_of_the_rounds():
    assert timing.Timing((3.0, 1.0, 2.0), 4).median == 2.0
