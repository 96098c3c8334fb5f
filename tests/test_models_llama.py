"""Every family in every format against transformers (golden/make_families.py says how)."""

import jax
import models_support as support
import numpy as np
import pytest
from flax import nnx
from models_support import GOLDEN, families, ropes

import models
from models.config_hf import from_hf

# A float32 forward in another order of additions moves these logits, of spread 1.2, by a few 1e-6.
CLOSE = {"rtol": 0, "atol": 3e-5}
# A GGUF cannot say: a window on some layers only (Qwen), YaRN without rounding of its bounds.
IN_GGUF = [name for name in families.FAMILIES if name not in ("qwen2_window", "qwen3_yarn")]


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "families.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module", params=families.FAMILIES)
def family(request, tmp_path_factory):
    """(name, the model loaded from one safetensors file)."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    support.write_hf(folder, families.FAMILIES[name], families.weights(name))
    return name, models.load(folder)


def test_logits_of_every_position(family, golden):
    name, loaded = family
    (got,) = support.teacher_forced(loaded, [families.prompt(name)], [families.PROMPT_LENGTH - 1])
    np.testing.assert_allclose(got, golden[f"{name}_logits"], **CLOSE)


def test_greedy_ids_through_the_cache(family, golden):
    name, loaded = family
    got = support.greedy(loaded, families.prompt(name), families.NEW_TOKENS)
    assert got == golden[f"{name}_ids"].tolist()


def test_sharded_safetensors_hold_the_same(family, tmp_path):
    name, loaded = family
    folder = support.write_hf(tmp_path, families.FAMILIES[name], families.weights(name), shards=3)
    same(models.load(folder), loaded)


@pytest.mark.parametrize("family", IN_GGUF, indirect=True)
def test_gguf_holds_the_same(family, tmp_path):
    name, loaded = family
    raw, weights = families.FAMILIES[name], families.weights(name)
    other = models.load(support.write_gguf(tmp_path / "model.gguf", raw, weights))
    same(other, loaded)
    assert other.config.windows == loaded.config.windows
    assert other.config.eos_token_ids == loaded.config.eos_token_ids
    rope, head_dim = other.config.rope, other.config.head_dim
    want = loaded.config.rope.inv_freq(head_dim)
    np.testing.assert_allclose(rope.inv_freq(head_dim), want, rtol=1e-6)
    assert rope.attention_factor == pytest.approx(loaded.config.rope.attention_factor)


def same(one, other):
    """Assert that two loaded models have the same weights, bit for bit, and sizes."""
    assert len(one.params) == len(other.params)
    for a, b in zip(one.params, other.params, strict=True):
        np.testing.assert_array_equal(a, b)
    assert one.cache_spec == other.cache_spec
    assert one.config.tie_embeddings == other.config.tie_embeddings


def test_llama3_scaling_of_a_gguf_gives_the_golden_logits(golden, tmp_path):
    path = support.write_gguf(
        tmp_path / "model.gguf", families.FAMILIES["llama31"], families.weights("llama31")
    )
    (got,) = support.teacher_forced(
        models.load(path), [families.prompt("llama31")], [families.PROMPT_LENGTH - 1]
    )
    np.testing.assert_allclose(got, golden["llama31_logits"], **CLOSE)


@pytest.mark.parametrize("name", ropes.ROPES)
def test_frequencies_of_real_models(name, golden):
    rope = from_hf(ropes.ROPES[name]).rope
    raw = ropes.ROPES[name]
    head_dim = raw.get("head_dim", raw["hidden_size"] // raw["num_attention_heads"])
    np.testing.assert_allclose(rope.inv_freq(head_dim), golden[f"{name}_inv_freq"], rtol=2e-6)
    assert rope.attention_factor == pytest.approx(float(golden[f"{name}_factor"]), rel=1e-6)


def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(golden, tmp_path):
    name = "mistral"  # its window of 12 reaches over two chunks of 8
    loaded = models.load(
        support.write_hf(tmp_path, families.FAMILIES[name], families.weights(name))
    )
    step = jax.jit(loaded.step, compiler_options=support.HURRY)
    caches = support.new_caches(loaded.cache_spec, families.PROMPT_LENGTH)
    for start in range(0, families.PROMPT_LENGTH, 8):
        chunk = families.prompt(name)[start : start + 8]
        logits, caches = step(loaded.params, support.one_sequence(chunk, start, pages=5), caches)
        np.testing.assert_allclose(logits[0], golden[f"{name}_logits"][start + 7], **CLOSE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype, tmp_path, golden):
    folder = support.write_hf(tmp_path, families.FAMILIES["llama31"], families.weights("llama31"))
    loaded = models.load(folder, dtype=dtype)
    assert {str(leaf.dtype) for leaf in loaded.params} == {dtype}
    (got,) = support.teacher_forced(
        loaded, [families.prompt("llama31")], [families.PROMPT_LENGTH - 1]
    )
    assert got.dtype == np.float32
    want = golden["llama31_logits"]
    # bf16 keeps 8 bits: after three layers about two decimals of logits of spread 1.1 are left.
    error = np.abs(got - want).mean()
    assert error < (0.03 if dtype == "bfloat16" else 0.004), error
    assert error > 1e-5, "this was computed in float32"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_step_makes_no_copy_of_the_weights(dtype):
    """Temporary memory of a compiled decode step stays far below one layer's weights."""
    raw = families.FAMILIES["llama31"] | {"hidden_size": 256, "intermediate_size": 512}
    graphdef, state = models.llama.abstract(from_hf(raw), dtype)
    step = jax.jit(models.llama.make_step(graphdef, state), donate_argnums=2)
    spec = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 16, "dtype": dtype}
    caches = jax.eval_shape(lambda: support.new_caches(spec, 8))
    batch = support.one_sequence([1], 0, pages=1)
    compiled = step.lower(jax.tree.leaves(state), batch, caches).compile()
    layer = np.dtype(jax.tree.leaves(state)[0].dtype).itemsize * 3 * 512 * 256
    assert compiled.memory_analysis().temp_size_in_bytes < layer / 4


def test_a_model_with_random_weights_is_its_step():
    """Llama(config) itself, as training would build it, gives what the step gives for its
    leaves."""
    config = from_hf(families.FAMILIES["qwen3"])
    model = models.llama.Llama(config, rngs=nnx.Rngs(3))
    graphdef, state = nnx.split(model)
    spec = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 32, "dtype": np.float32}
    batch, caches = support.one_sequence([5, 6, 7], 0, pages=1), support.new_caches(spec, 8)
    step = models.llama.make_step(graphdef, state)
    got, _ = jax.jit(step)(jax.tree.leaves(state), batch, caches)
    want, after = model(batch, caches)
    assert got.shape == (1, config.vocab_size)
    assert np.std(got) > 0.01
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert len(after) == 3
    with pytest.raises(ValueError, match="2 caches were given for 3 layers"):
        model(batch, caches[:2])
