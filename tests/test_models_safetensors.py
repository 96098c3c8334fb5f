"""Hugging Face directories: what is read of them, and everything that can be wrong with one."""

import json

import ml_dtypes
import models_support as support
import numpy as np
import pytest
from models_support import families
from safetensors.numpy import load_file, save_file

import models
from models.config_hf import from_hf

LLAMA = families.FAMILIES["llama2"]


@pytest.fixture
def folder(tmp_path):
    """A sound directory of the tiny Llama 2."""
    return support.write_hf(tmp_path / "model", LLAMA, families.weights("llama2"))


def rewrite(path, change):
    """Replace the JSON object in `path` by `change` of it."""
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def refuse(folder, message, error=ValueError):
    """Assert that loading raises `error` with the directory and `message`, on one line."""
    with pytest.raises(error, match=message) as caught:
        models.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stored", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_stored_dtypes(stored, folder):
    weights = {name: tensor.astype(stored) for name, tensor in families.weights("llama2").items()}
    save_file(weights, folder / "model.safetensors")
    embed = weights["model.embed_tokens.weight"].astype(np.float32)
    assert any(np.array_equal(leaf, embed) for leaf in models.load(folder).params)


def test_quantised_weights_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"] = np.ones((80, 64), np.int8)
    save_file(weights, folder / "model.safetensors")
    refuse(folder, "up_proj.weight has dtype I8")


def test_harmless_extras(tmp_path):
    """A stored copy of a tied head, and the buffers of old transformers."""
    weights = families.weights("llama32")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    models.load(support.write_hf(tmp_path, families.FAMILIES["llama32"], weights))


def test_all_bad_weights_are_in_one_error(tmp_path):
    weights = families.weights("qwen2")
    del weights["model.layers.1.self_attn.k_proj.bias"]
    weights["model.layers.0.self_attn.o_proj.bias"] = np.ones(64, np.float32)
    weights["model.norm.weight"] = np.ones(48, np.float32)
    folder = support.write_hf(tmp_path, families.FAMILIES["qwen2"], weights)
    refuse(folder, "weights do not fit the model")
    with pytest.raises(ValueError, match="weights do not fit") as caught:
        models.load(folder)
    for part in (
        "1 missing (model.layers.1.self_attn.k_proj.bias)",
        "1 unexpected (model.layers.0.self_attn.o_proj.bias)",
        "model.norm.weight is [48], not [64]",
    ):
        assert part in str(caught.value)


def test_an_error_lists_no_more_than_twenty_names(folder):
    rewrite(folder / "config.json", lambda raw: raw | {"num_hidden_layers": 9})
    with pytest.raises(ValueError, match=r"54 missing .* and 34 more\)"):
        models.load(folder)


@pytest.mark.parametrize("size", [0, 5, 100, 2000, 100000])
def test_a_truncated_file(size, folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refuse(folder, "model.safetensors is not a whole safetensors file")


def test_a_missing_shard(tmp_path):
    folder = support.write_hf(tmp_path, LLAMA, families.weights("llama2"), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refuse(folder, "lacks model-00002-of-00003.safetensors", FileNotFoundError)


def test_a_broken_index(tmp_path):
    folder = support.write_hf(tmp_path, LLAMA, families.weights("llama2"), shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text("{}")
    refuse(folder, "has no weight_map")
    index.write_text('{"weight_map": ')
    refuse(folder, "index.json is not JSON")
    for name in (None, 5, [], ["model.safetensors"], {}, ""):
        rewrite_to = {"weight_map": {"a": "model.safetensors", "b": name}}
        index.write_text(json.dumps(rewrite_to))
        refuse(folder, "weight_map puts b into .*; it must be the name of a file")


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model.safetensors", "neither model.safetensors nor model.safetensors.index.json"),
        ("config.json", "no config.json and no GGUF file"),
        ("tokenizer.json", "neither tokenizer.json nor tokenizer.model"),
    ],
)
def test_a_missing_file(file, message, folder):
    (folder / file).unlink()
    refuse(folder, message, FileNotFoundError)


def test_a_path_to_the_weights_alone(folder):
    refuse(folder / "model.safetensors", "give the directory")


def test_json_nested_too_deeply(folder):
    for name in ("config.json", "tokenizer_config.json"):
        whole = (folder / name).read_text()
        (folder / name).write_text('{"a": ' + "[" * 100000)
        refuse(folder, f"{name} is nested too deeply")
        (folder / name).write_text(whole)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\xff"])
def test_a_broken_config(text, folder):
    (folder / "config.json").write_text(text)
    refuse(folder, "config.json (is not JSON|holds a list)")


def test_a_broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")
    refuse(folder, "tokenizer.json is not a tokenizer")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"no protocol buffer")
    refuse(folder, "tokenizer.model is not a SentencePiece model")


def test_an_unknown_dtype(folder):
    with pytest.raises(ValueError, match="dtype 'int8' is not supported; one of float32"):
        models.load(folder, dtype="int8")


def test_generation_config_names_the_end(folder):
    assert models.load(folder).config.eos_token_ids == (2,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    loaded = models.load(folder)
    assert loaded.config.eos_token_ids == loaded.tokenizer.eos_token_ids == (2, 7)


def test_without_any_eos_the_tokenizer_names_it(folder):
    rewrite(folder / "config.json", lambda raw: raw | {"eos_token_id": None})
    assert models.load(folder).config.eos_token_ids == (2,)


ROPE = {"rope_type": "yarn", "factor": 2.0}
LLAMA3 = families.FAMILIES["llama31"]["rope_scaling"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, "model_type 'gemma2' is not supported; one of llama"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope type 'linear' lacks factor"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": "2"}},
            "factor is '2'; it must be a number above 0",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            "lacks low_freq_factor, high_freq_factor",
        ),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "1.0 must be below high_freq_factor",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config .* is not supported"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads 3"),
        ({"head_dim": 20}, "head_dim 20 must be a multiple of 8"),
        ({"head_dim": 264}, "head_dim 264 must be a multiple of 8 from 8 to 256"),
        ({"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4"),
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"vocab_size": 64.5}, "vocab_size is 64.5"),
        ({"rope_theta": 1.0}, "rope theta is 1.0; it must be above 1"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id is 'x'"),
        ({"eos_token_id": [2, 64]}, "eos_token_id is 64; it must be below vocab_size 64"),
        (
            {"architectures": "LlamaForCausalLM"},
            r"architectures 'LlamaForCausalLM' is not supported; \['LlamaForCausalLM'\] is",
        ),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'; it must be true or"),
        ({"attention_bias": "no"}, "attention_bias is 'no'; it must be true or false"),
        ({"mlp_bias": 1}, "mlp_bias is 1; it must be true or false"),
        ({"rope_scaling": ROPE | {"truncate": "x"}}, "truncate is 'x'; it must be true or false"),
        ({"hidden_act": "x" * 5000}, "hidden_act 'xx.{100,130}xx' is not supported"),
    ],
)
def test_config_that_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        from_hf(LLAMA | change)


@pytest.mark.parametrize(
    ("name", "change", "windows"),
    [
        ("mistral", {}, (12, 12, 12)),
        ("mistral", {"sliding_window": None}, (None, None, None)),
        ("llama2", {"sliding_window": 12}, (None, None, None)),
        ("qwen2", {}, (None, None, None)),
        ("qwen2", {"use_sliding_window": True}, (None, None, None)),  # max_window_layers: 28
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}, (None, None, 12)),
        ("qwen3", {"layer_types": ["full_attention"] * 3}, (None, None, None)),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (9, None, 9),
        ),
    ],
)
def test_windows(name, change, windows):
    assert from_hf(families.FAMILIES[name] | change).windows == windows


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (["full_attention"], r"\['full_attention'\] is not supported; 3 of"),
        (["chunked_attention"] * 3, "chunked_attention"),
        (["sliding_attention"] * 3, "no sliding_window is set"),
    ],
)
def test_layer_types_that_are_refused(types, message):
    with pytest.raises(ValueError, match=message):
        from_hf(families.FAMILIES["qwen3"] | {"layer_types": types})


def test_both_spellings_of_rope_mean_the_same():
    old = from_hf(LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 2.0}})
    new = from_hf(LLAMA | {"rope_parameters": ROPE | {"rope_theta": 5e5}})
    assert old.rope == new.rope
    assert old.rope.original_max_position_embeddings == LLAMA["max_position_embeddings"]


def test_biases_and_norms_by_family():
    for name, qkv, out, mlp, norm in [
        ("llama2", False, False, False, False),
        ("llama_biases", True, True, True, False),
        ("mistral", False, False, False, False),
        ("qwen2", True, False, False, False),
        ("qwen3", False, False, False, True),
        ("qwen3_yarn", True, True, False, True),
    ]:
        config = from_hf(families.FAMILIES[name])
        found = (config.qkv_bias, config.out_bias, config.mlp_bias, config.qk_norm)
        assert found == (qkv, out, mlp, norm), name


STRANGE = ("x", [], {}, -1, 0, 1.5, True, None, [1, "a"], float("nan"), {"rope_type": []}, {"a": 1})


@pytest.mark.parametrize("name", ["llama31", "qwen2_window", "qwen3_yarn", "mistral"])
def test_strange_values_raise_nothing_but_value_errors(name):
    """Whatever stands at any key, the config is refused in words or can be used."""
    raw = families.FAMILIES[name]
    keys = {*raw, "sliding_window", "max_window_layers", "layer_types", "rope_parameters"}
    nested = raw.get("rope_scaling", {})
    changes = [{key: value} for key in keys for value in STRANGE]
    changes += [{"rope_scaling": nested | {key: value}} for key in nested for value in STRANGE]
    accepted, refusals = 0, []
    for change in changes:
        try:
            config = from_hf(raw | change)
        except ValueError as error:
            refusals.append(str(error))
            continue
        assert np.isfinite(config.rope.inv_freq(config.head_dim)).all(), change
        accepted += 1
    assert 0 < accepted < len(refusals)
    assert all(refusal.startswith("config.json: ") for refusal in refusals)
