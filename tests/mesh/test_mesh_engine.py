"""An engine on meshes of eight devices generates what one on one device does."""

import jax
import numpy as np
import pytest
import tiny_checkpoint
from mesh.meshes import SHAPES

import models
from jaxattn.engine import Engine, EngineConfig, SamplingParams
from models import sharding

SIZES = {"max_model_len": 96, "num_pages": 24, "page_size": 8, "max_num_seqs": 3}
PROMPTS = [list(range(3, 3 + n)) for n in (40, 1, 17, 9, 30, 2, 5)]
PARAMS = [SamplingParams(max_new_tokens=12 + i, ignore_eos=True) for i in range(len(PROMPTS))]
PARAMS[2] = SamplingParams(max_new_tokens=20, temperature=1.0, seed=7, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


def engine(folder, mesh=None, **sizes):
    loaded = models.load(folder, mesh=mesh)
    config = EngineConfig(**SIZES | {"max_num_batched_tokens": 32} | sizes)
    return Engine(
        loaded.step, loaded.params, loaded.cache_spec, config,
        vocab_size=loaded.config.vocab_size, mesh=mesh,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wanted(folder):
    return [each.token_ids for each in engine(folder).generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_tokens_are_those_of_one_device(folder, wanted, shape):
    on_mesh = engine(folder, sharding.make_mesh(*shape))
    got = [each.token_ids for each in on_mesh.generate(PROMPTS, PARAMS)]
    assert got == wanted
    assert not on_mesh.has_work
    for scheduler in on_mesh.schedulers:
        assert scheduler.pages.num_free == scheduler.pages.num_pages


def test_replicas_share_the_requests_and_preempt_by_themselves(folder, wanted):
    """Seven pages hold one long request and little else."""
    on_mesh = engine(folder, sharding.make_mesh(4, 2), num_pages=7)
    busy = [0] * 4
    for prompt, params in zip(PROMPTS, PARAMS, strict=True):
        on_mesh.add_request(prompt, params)
    for i, scheduler in enumerate(on_mesh.schedulers):
        busy[i] = len(scheduler.waiting)
    assert sum(busy) == len(PROMPTS)
    assert min(busy) >= 1
    for scheduler in on_mesh.schedulers:
        for sequence in list(scheduler.waiting):
            scheduler.remove(sequence)
    got = [each.token_ids for each in on_mesh.generate(PROMPTS, PARAMS)]
    assert got == wanted


def test_processes_that_disagree_are_found_out(folder, monkeypatch):
    """Each process digests what it would run; here one device is given another digest."""
    on_mesh = engine(folder, sharding.make_mesh(2, 4))
    make = jax.make_array_from_callback

    def meddle(shape, place, read):
        return make(shape, place, lambda index: read(index) + (shape == (8,)) * index[0].start)

    monkeypatch.setattr(jax, "make_array_from_callback", meddle)
    with pytest.raises(RuntimeError, match="different requests"):
        on_mesh.generate([[5, 6]], SamplingParams(max_new_tokens=2))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_weights_are_read_onto_the_mesh(folder, shape):
    """As those of a model that was loaded whole and then placed."""
    mesh = sharding.make_mesh(*shape)
    placed, read = sharding.shard(models.load(folder), mesh), models.load(folder, mesh=mesh)
    assert read.config == placed.config
    assert read.cache_spec == placed.cache_spec
    for one, other in zip(read.params, placed.params, strict=True):
        assert one.sharding.is_equivalent_to(other.sharding, one.ndim)
        np.testing.assert_array_equal(one, other)
