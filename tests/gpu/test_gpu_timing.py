"""scripts/timing.py on a GPU: two ways to time the same work agree."""

import jax
import jax.numpy as jnp
import pytest

from scripts import timing

SIZE = 4096


@pytest.mark.gpu
def test_a_chain_costs_less_than_calls_that_are_waited_for():
    x = jax.random.normal(jax.random.key(0), (64, 64), jnp.bfloat16)
    call = lambda x, a: jnp.tanh(x @ a)  # noqa: E731
    assert timing.Chain(call, x, x).time().median < timing.wall_time(call, x, x).median


@pytest.mark.gpu
def test_jax_and_torch_take_about_as_long_for_a_product():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a PyTorch built for CUDA")
    x, a = (jax.random.normal(jax.random.key(i), (SIZE, SIZE), jnp.bfloat16) for i in range(2))
    ours = timing.Chain(jnp.matmul, x, a * SIZE**-0.5).time().median
    p, q = (torch.from_dlpack(jax.block_until_ready(y)) for y in (x, a))
    theirs = timing.time_torch(lambda: p @ q).median
    assert 0.6 < ours / theirs < 1.7
