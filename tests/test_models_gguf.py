"""GGUF files: every quantisation the package can write, and everything that can be wrong with
one."""

import gguf
import models_support as support
import numpy as np
import pytest
from models_support import families

import models
from models import config_gguf
from models.gguf_file import GGUFFile

Kind = gguf.GGMLQuantizationType
WRITABLE = (Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0)
# Read but not written by the gguf package: blocks of any bits are some numbers.
READABLE = (Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.IQ4_XS)


@pytest.fixture
def path(tmp_path):
    """A sound GGUF file of the tiny Llama 3.1."""
    return support.write_gguf(
        tmp_path / "model.gguf", families.FAMILIES["llama31"], families.weights("llama31")
    )


@pytest.mark.parametrize("kind", WRITABLE, ids=lambda kind: kind.name)
def test_quantised_weights(kind, tmp_path):
    """The loaded model is that of the weights after a round trip through the quantisation."""
    raw = families.FAMILIES["qwen2"] | {"intermediate_size": 96}
    names = dict(families.weights("qwen2"))
    for name, tensor in names.items():
        if "mlp" in name:
            grown = [96 if size == 80 else size for size in tensor.shape]
            names[name] = np.resize(tensor, grown)
    loaded = models.load(support.write_gguf(tmp_path / "q.gguf", raw, names, kind))
    rounded = {
        name: gguf.dequantize(gguf.quantize(tensor, kind), kind) if tensor.ndim == 2 else tensor
        for name, tensor in names.items()
    }
    changed = sum(not np.array_equal(names[name], rounded[name]) for name in names)
    assert changed == sum(tensor.ndim == 2 for tensor in names.values())
    same = models.load(support.write_hf(tmp_path / "hf", raw, rounded))
    for got, want in zip(loaded.params, same.params, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", READABLE, ids=lambda kind: kind.name)
def test_every_kind_of_block_is_read(kind, tmp_path):
    """Blocks that only llama.cpp writes come out as the gguf package dequantises them."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(0).integers(0, 60, (4, 2 * size)).astype(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("w", data, raw_dtype=kind)
    _write(writer)
    file = GGUFFile(tmp_path / "q.gguf")
    assert file.shapes == {"w": (4, 2 * block)}
    np.testing.assert_array_equal(file.read("w"), gguf.dequantize(data, kind))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.gguf does not exist"):
        models.load(tmp_path / "absent.gguf")


@pytest.mark.parametrize("content", [b"", b"GG", b"hello, world" * 100], ids=["empty", "2", "text"])
def test_no_gguf_at_all(content, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refuse(path, "is not a GGUF file")


def test_a_truncated_file(path):
    """Wherever it is cut: in the header, the metadata, the tensors' table, the tensors."""
    whole = path.read_bytes()
    for part in (0.0001, 0.005, 0.02, 0.04, 0.06, 0.3, 0.999):
        path.write_bytes(whole[: max(8, int(len(whole) * part))])
        refuse(path, "cut off or damaged|is damaged")
    path.write_bytes(whole)
    models.load(path)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ((1).to_bytes(4, "little"), "has GGUF version 1; 2 and 3 are supported"),
        ((99).to_bytes(4, "little"), "has GGUF version 99"),
        ((3).to_bytes(4, "big"), "is a big-endian GGUF file; only little-endian ones are"),
        (bytes(4), "has GGUF version 0"),
    ],
)
def test_other_versions(version, message, path):
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + version + whole[8:])
    refuse(path, message)


def test_an_unknown_architecture(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    _write(writer)
    refuse(tmp_path / "m.gguf", "architecture 'mamba' is not supported; one of llama, qwen2, qwen3")


def test_a_part_of_a_split_file(path, tmp_path):
    part = support.write_gguf(
        tmp_path / "p.gguf",
        families.FAMILIES["llama2"],
        families.weights("llama2"),
        extra={"split.count": 3},
    )
    refuse(part, "one of 3 parts; join them first")


def test_experts(tmp_path):
    path = support.write_gguf(
        tmp_path / "m.gguf",
        families.FAMILIES["llama2"],
        families.weights("llama2"),
        extra={"llama.expert_count": 8},
    )
    refuse(path, "expert_count is 8")


def test_all_bad_weights_are_in_one_error(tmp_path):
    weights = families.weights("llama2")
    del weights["model.layers.1.mlp.up_proj.weight"]
    del weights["model.norm.weight"]
    weights["model.layers.0.self_attn.q_norm.weight"] = np.ones(16, np.float32)
    weights["model.layers.2.mlp.down_proj.weight"] = np.ones((64, 64), np.float32)
    path = support.write_gguf(tmp_path / "m.gguf", families.FAMILIES["llama2"], weights)
    with pytest.raises(ValueError, match="weights do not fit") as caught:
        models.load(path)
    for part in (
        "2 missing (output_norm.weight, blk.1.ffn_up.weight)",
        "1 unexpected (blk.0.attn_q_norm.weight)",
        "blk.2.ffn_down.weight is [64, 64], not [64, 80]",
    ):
        assert part in str(caught.value)


def test_a_directory_with_one_gguf(path):
    assert models.load(path.parent).config.family == "llama"
    (path.parent / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(FileNotFoundError, match=r"no config\.json and 2 GGUF files"):
        models.load(path.parent)


META = {
    "general.architecture": "llama",
    "llama.vocab_size": 64,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.context_length": 128,
}


def test_defaults_of_sparse_metadata():
    config = config_gguf.from_gguf(META, {"output.weight"})
    assert (config.head_dim, config.num_kv_heads) == (16, 4)
    assert not config.tie_embeddings
    assert config_gguf.from_gguf(META, set()).tie_embeddings
    assert config.eos_token_ids == ()


YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}


def test_scaling_in_metadata():
    paper = 0.1 * np.log(4) + 1
    for change, kind, attention_factor in [
        (YARN, "yarn", paper),
        (YARN | {"llama.rope.scaling.attn_factor": 0.5}, "yarn", paper / 2),
        (YARN | {"llama.rope.scaling.yarn_attn_factor": 0.5}, "yarn", paper / 2),
        (YARN | {"llama.rope.scaling.type": "linear"}, "linear", 1.0),
        ({"llama.rope.scale_linear": 4.0}, "linear", 1.0),
        (YARN | {"llama.rope.scaling.type": "none"}, "default", 1.0),
    ]:
        rope = config_gguf.from_gguf(META | change, set()).rope
        assert (rope.kind, rope.factor) == (kind, None if kind == "default" else 4.0)
        assert rope.attention_factor == pytest.approx(attention_factor)
        if kind == "yarn":
            assert rope.original_max_position_embeddings == META["llama.context_length"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama.block_count": None}, "lacks block_count"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8: only the head dimension"),
        ({"llama.attention.value_length": 8}, "value_length is 8"),
        (
            {"llama.attention.head_count_kv": [4, 2]},
            r"head_count_kv is \[4, 2\]; it must be a whole number",
        ),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type 'longrope' is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "type 'yarn' lacks rope.scaling.factor"),
        (YARN | {"llama.rope.scaling.yarn_ext_factor": 0.0}, "yarn_ext_factor is 0.0: only 1"),
        ({"llama.attention.scale": 0.125}, "attention.scale is 0.125: that is not supported"),
        ({"llama.attention.head_count_kv": 3}, "must be a multiple of num_kv_heads 3"),
        ({"llama.embedding_length": 4 * 12}, "head_dim 12 must be a multiple of 8"),
        ({"llama.vocab_size": 0}, "vocab_size is 0"),
        ({"general.architecture": ["llama"]}, r"architecture \['llama'\] is not supported"),
        ({"tokenizer.ggml.tokens": 5}, r"tokenizer\.ggml\.tokens is 5; it must be a list"),
        ({"tokenizer.ggml.eos_token_id": "x"}, r"eos_token_id is 'x'; it must be a whole"),
        ({"tokenizer.ggml.eos_token_id": 64}, "eos_token_id is 64; it must be below vocab_size 64"),
    ],
)
def test_metadata_that_is_refused(change, message):
    meta = {key: value for key, value in (META | change).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        config_gguf.from_gguf(meta, {"output.weight"})


class Meta(gguf.GGUFWriter):
    """A writer of a file with one more piece of metadata, of whatever type."""

    def __init__(self, path, key, value):
        super().__init__(path, "llama")
        self.add_key_value(key, value, gguf.GGUFValueType.get_type(value))


def test_a_count_of_parts_that_is_no_number(tmp_path):
    _write(Meta(tmp_path / "m.gguf", "split.count", "2"))
    refuse(tmp_path / "m.gguf", "split.count is '2'; it must be a whole number")


def refuse(path, message):
    """Assert that loading raises ValueError with the path and `message`, on one line."""
    with pytest.raises(ValueError, match=message) as caught:
        models.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def _write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
