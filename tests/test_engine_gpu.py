"""The engine on a GPU: the ids of the small model's oracle, chunked, preempted and sampled."""

from dataclasses import replace

import jax
import pytest
from test_engine_generation import SAMPLED, check, engine_of, limit, random_prompts

from jaxattn.engine import scheduler as scheduler_module
from jaxattn.engine.memory import device_bytes

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def full_precision():
    """A GPU multiplies float32 in TF32 unless told otherwise, and the oracle is exact."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("page_size", [1, 16])
def test_chunks_and_preemption(page_size, monkeypatch):
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 0)
    engine = engine_of(page_size)
    prompts = random_prompts(8, seed=page_size)
    check(limit(engine), prompts)
    check(limit(engine, num_pages=112 // page_size, budget=7), prompts)
    assert engine.schedulers[0].num_preemptions > 0


def test_a_seed_gives_the_same_text_alone():
    engine = limit(engine_of(16))
    prompts = random_prompts(4, seed=5)
    params = [replace(SAMPLED, seed=seed) for seed in range(4)]
    together = engine.generate(prompts, params)
    for prompt, one, completion in zip(prompts, params, together, strict=True):
        assert engine.generate([prompt], one)[0].token_ids == completion.token_ids


def test_the_device_says_how_much_memory_is_left():
    stats = jax.devices()[0].memory_stats()
    assert 0 < device_bytes() <= stats["bytes_limit"]
