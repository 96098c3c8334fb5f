"""Tile sizes of a launch: tables of what was tuned, the formula for the rest, and the rules."""

import dataclasses
import json
from importlib import resources

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxattn import chips, tuning, tuning_formula
from jaxattn.problem import Tiles
from jaxattn.tuning import Entry, Shape, parse, spell
from scripts import tune_cases

H200, A100, B200 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA B200"
MI300X = "AMD Instinct MI300X"
KINDS = (H200, "NVIDIA H100 80GB HBM3", A100, B200, MI300X, "NVIDIA L4", None)
DECODE = tune_cases.parse("decode:B16,S8192,H32/8,D128,P16").shape
PREFILL = tune_cases.parse("prefill:B1,S8192,H32/8,D128,P16").shape
BEST = Tiles(1, 64, 4, 3, 512)


def shape_of(name):
    return tune_cases.parse(name).shape


SHAPES = st.builds(
    Shape,
    few=st.booleans(),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    head_dim=st.integers(1, 32).map(lambda n: 8 * n),
    head_dim_v=st.integers(1, 32).map(lambda n: 8 * n),
    group=st.sampled_from([1, 4, 5, 7, 8, 16, 71]),
    kv_heads=st.integers(1, 32),
    page_size=st.sampled_from([None, 1, 16, 256]),
    queries=st.integers(1, 9000),
    num_seqs=st.integers(1, 600),
    max_keys=st.integers(1, 200_000),
    masked=st.booleans(),
    pair_operands=st.booleans(),
)


@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        ("decode:B16,S8192,H32/8,D128,P16", "1x64 w4 s2 p512"),
        ("decode:B128,S2048,H32/8,D128,P16", "1x64 w4 s2 p512"),
        ("decode:B1,S32768,H32/8,D128,P16", "1x64 w4 s4 p256"),
        ("decode:B32,S4096,T8,H32/8,D128,P16", "8x64 w2 s2 p512"),
        ("decode:B16,S200,H32/8,D128,P16", "1x64 w4 s2 p0"),
        ("prefill:B1,S8192,H32/8,D128,P16", "32x128 w8 s3 p0"),
        ("full:B64,S577,H16,D64", "64x64 w4 s3 p0"),
        ("prefill:B2,S4096,H16,D64", "128x64 w8 s3 p0"),
        ("prefill:B1,S4096,H16/8,D256,P16", "32x32 w4 s2 p0"),
        ("prefill:B1,S2048,H32/8,D128,P16,F32", "16x32 w4 s2 p0"),
        ("full:B1,S9,H4,D64", "16x16 w4 s3 p0"),
        ("decode:B1,S8192,T128,H32/8,D128,P16", "32x128 w8 s3 p256"),  # 32 programs on 132 cores
    ],
)
def test_the_formula_gives_what_was_fast_on_an_h200(name, tiles):
    assert spell(tuning.formula(shape_of(name), H200)) == tiles


@settings(deadline=None, max_examples=200)
@given(shape=SHAPES, kind=st.sampled_from(KINDS))
def test_the_formula_fits_its_chip(shape, kind):
    tiles, facts = tuning.formula(shape, kind), chips.named(kind)
    assert tiles.block_k >= 16
    assert tiles.num_warps * facts.warp <= 1024
    assert tiles.block_q == 1 or tiles.block_q * shape.group <= 128
    assert tiles.programs <= shape.programs(tiles.block_q) * -(-shape.max_keys // 256)
    assert tiles.programs == 0 or shape.max_keys > 256
    smallest = tuning_formula.shared_bytes(shape, Tiles(1, 16, 4, 1), facts)
    if smallest <= facts.shared:
        assert tuning_formula.why_not(shape, tiles, facts) is None
    assert tuning.tiles(shape, kind) == tuning.tiles(shape, kind)


@settings(deadline=None, max_examples=200)
@given(shape=SHAPES, queries=st.integers(9, 9000), kind=st.sampled_from(KINDS))
def test_two_kinds_share_what_a_launch_has_once(shape, queries, kind):
    prompts = dataclasses.replace(shape, few=False, queries=queries)
    decodes = dataclasses.replace(shape, few=True, queries=1)
    many, few = tuning.pair(prompts, decodes, kind)
    assert (many.num_warps, many.num_stages) == (few.num_warps, few.num_stages)
    assert many.block_q == 1 or many.block_q * shape.group <= 64  # two programs a core
    assert few.block_q == 1
    facts = chips.named(kind)
    smallest = tuning_formula.shared_bytes(prompts, Tiles(1, 16, 4, 1), facts)
    if smallest <= facts.shared:
        assert tuning_formula.why_not(prompts, many, facts) is None
        assert tuning_formula.why_not(decodes, few, facts) is None


@pytest.mark.parametrize(
    ("tiles", "reason"),
    [
        (Tiles(32, 64, 4, 3), None),
        (Tiles(32, 8, 4, 3), "block_k=8"),
        (Tiles(32, 128, 8, 4), "shared memory"),  # 32 KiB of q and 4 x 64 KiB
        (Tiles(32, 128, 4, 2), "registers"),  # 128 rows x (128 + 128 + 64) of 128 threads
        (Tiles(32, 64, 64, 3), "num_warps=64"),
    ],
)
def test_tiles_that_a_chip_cannot_run_are_told_why(tiles, reason):
    found = tuning_formula.why_not(PREFILL, tiles, chips.named(H200))
    assert found is None if reason is None else reason in found


def test_pair_operands_take_shared_memory_too():
    pairs = dataclasses.replace(PREFILL, pair_operands=True)
    tiles = Tiles(32, 64, 4, 4)  # 32 KiB of q, 4 x 32 KiB of keys and values, 4 x 32 KiB of pairs
    assert tuning.fits(PREFILL, tiles, H200)
    assert not tuning.fits(pairs, tiles, H200)


def test_a_shape_is_what_a_call_says(monkeypatch):
    """The shapes of scripts.tune are those that its calls have."""
    seen = []

    def run(problem, tiles=None):
        seen.append(Shape.of(problem, False, queries=11))
        t, h, _ = problem.q.shape
        out = jnp.zeros((t, h, problem.keys.v.shape[-1]), problem.q.dtype)
        return out, jnp.zeros((t, h), jnp.float32)

    monkeypatch.setattr("jaxattn.xla.run", run)
    for name in (
        "decode:B3,S37,T11,H6/2,D24,V40,F16",
        "full:B3,S37,T11,H4,D24,F32",
        "decode:B3,S37,T11,H6/2,D24,P8",
    ):
        case = tune_cases.parse(name)
        jax.eval_shape(tune_cases.call(case, implementation="xla"), *tune_cases.operands(case))
        assert seen.pop() == case.shape, name
    from jaxattn import Alibi, Bias, Causal, Dense, attention

    x = jnp.zeros((3, 11, 6, 24))
    for options, pairs in (
        ({"mask": Causal() & Dense(jnp.ones((11, 11), bool))}, True),
        ({"score": Bias(jnp.zeros((6, 11, 11)))}, True),
        ({"score": Alibi(jnp.zeros(6))}, False),
    ):
        jax.eval_shape(lambda o=options: attention(x, x, x, implementation="xla", **o))
        assert seen.pop().pair_operands is pairs


def test_the_chip_is_the_one_that_is_lowered_for():
    from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

    assert tuning.chip() is None or jax.default_backend() == "gpu"
    for kind, platform in ((A100, "gpu"), ("TPU v5e", "tpu")):
        device = AbstractDevice(device_kind=kind, num_cores=108, platform=platform)
        mesh = AbstractMesh((1,), ("x",), (AxisType.Auto,), abstract_device=device)
        with use_abstract_mesh(mesh):
            assert (tuning.chip() == kind) is (platform == "gpu")
            with tuning.on_chip(B200):
                assert tuning.chip() == B200


def test_a_program_is_traced_again_for_another_chip():
    seen = []

    @jax.jit
    def f(x):
        seen.append(tuning.chip())
        return x

    for kind in (A100, B200, A100):
        with tuning.on_chip(kind):
            f(1.0)
    assert seen == [A100, B200]


def test_the_nearest_entry_is_taken_within_its_limits():
    entries = tuple(
        Entry(shape_of(name), Tiles(1, 16, 1, n + 1))
        for n, name in enumerate(
            (
                "decode:B16,S8192,H32/8,D128,P16",
                "decode:B16,S1024,H32/8,D128,P16",
                "decode:B16,S8192,H32/8,D128",
                "decode:B16,S8192,H32/8,D64,P16",
                "decode:B32,S8192,T8,H32/8,D128,P16",
                "decode:B16,S8192,T512,H32/8,D128,P16",
            )
        )
    )
    for name, number in (
        ("decode:B16,S8192,H32/8,D128,P16", 0),
        ("decode:B20,S6000,H32/8,D112,P64,F16", 0),  # 112 is loaded as 128
        ("decode:B16,S8192,H32/8,D80,P16", None),  # and 80 as 64 + 16
        ("decode:B64,S2000,H32/8,D128,P16", 1),
        ("decode:B64,S8192,H8/2,D128,P16", 0),  # as many programs
        ("decode:B16,S9000,H32/8,D128", 2),
        ("decode:B16,S9000,H32/8,D64,P16", 3),
        ("decode:B32,S8192,T7,H32/8,D128,P16", 4),
        ("decode:B16,S8192,T300,H32/8,D128,P16", 5),
        ("decode:B65,S8192,H32/8,D128,P16", None),  # 4.06 times as many sequences
        ("decode:B16,S33000,H32/8,D128,P16", None),
        ("decode:B16,S8192,H32/8,D128,P16,F32", None),
        ("decode:B16,S8192,H32/8,D256,P16", None),
        ("decode:B16,S8192,T16,H32/8,D128,P16", None),
        ("decode:B16,S8192,T100,H32/8,D128,P16", None),
    ):
        found = tuning.nearest(shape_of(name), entries)
        assert found == (None if number is None else entries[number]), name
    again = Entry(entries[0].shape, Tiles(1, 128))
    assert tuning.nearest(entries[0].shape, (*entries, again)) == entries[0]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose file for the H200 holds `cases`: name -> best tiles, or any text."""

    def write(cases):
        data = {name: {"shape": vars(shape_of(name)), "best": best} for name, best in cases.items()}
        text = json.dumps({"format": 1, "device": H200, "cases": data})
        (tmp_path / "tuned").mkdir(exist_ok=True)
        (tmp_path / "tuned" / "nvidia_h200.json").write_text(text)
        tuning._tuned.cache_clear()
        return tmp_path / "tuned" / "nvidia_h200.json"

    monkeypatch.setattr(tuning.resources, "files", lambda name: tmp_path)
    yield write
    tuning._tuned.cache_clear()


def test_tiles_come_from_the_file_of_the_chip(package):
    name = "decode:B16,S8192,H32/8,D128,P16"
    package({name: "1x16 w1 s2 p64", "decode:B1,S8192,H32/8,D128,P16": None})
    assert tuning.tiles(DECODE, H200) == Tiles(1, 16, 1, 2, 64)
    assert tuning.tiles(DECODE, A100) == tuning.formula(DECODE, A100)
    assert tuning.tiles(DECODE, None) == tuning.formula(DECODE, None)
    far = dataclasses.replace(DECODE, num_seqs=1)
    assert tuning.tiles(far, H200) == tuning.formula(far, H200)


def test_an_entry_keeps_its_rows_under_another_group(package):
    package({"prefill:B1,S8192,H32/8,D128,P16": "32x128 w8 s3 p0"})
    for group, block_q in ((4, 32), (8, 16), (5, 25), (2, 64), (1, 128)):
        other = dataclasses.replace(PREFILL, group=group)
        assert tuning.tiles(other, H200) == Tiles(block_q, 128, 8, 3, 0)
    package({"decode:B32,S4096,T8,H32/8,D128,P16": "8x64 w2 s2 p512"})
    for queries, group, block_q in ((7, 4, 7), (8, 4, 8), (3, 8, 3), (6, 4, 6)):
        other = dataclasses.replace(DECODE, queries=queries, group=group, num_seqs=32)
        assert tuning.tiles(other, H200).block_q == block_q


def test_an_entry_that_does_not_fit_is_not_taken(package):
    package({"decode:B16,S8192,H32/8,D128,P16": "1x256 w8 s4 p64"})
    assert tuning.tiles(DECODE, H200) == tuning.formula(DECODE, H200)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:-20], "Expecting"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format is 2: must be 1"),
        (lambda text: text.replace('"cases"', '"case"'), "'cases' is missing"),
        (lambda text: text.replace("1x64 w4", "1/64 w4"), "must be like"),
        (lambda text: text.replace("1x64 w4", "1x63 w4"), "must be a power of two"),
        (lambda text: text.replace('"group"', '"groups"'), "groups"),
        (lambda text: text.replace('"group": 4', '"group": 0'), "shape has group 0"),
        (lambda text: text.replace('"kv_heads": 8', '"kv_heads": "8"'), "shape has kv_heads '8'"),
        (lambda text: text.replace("bfloat16", "bf16"), "shape has dtype 'bf16'"),
        (lambda text: text.replace('"few": true', '"few": 1'), "shape has few 1"),
        (lambda text: "[" * 100_000, "recursion"),
    ],
)
def test_a_damaged_file_is_named(package, damage, reason):
    path = package({"decode:B16,S8192,H32/8,D128,P16": spell(BEST)})
    assert tuning.tiles(DECODE, H200) == BEST
    tuning._tuned.cache_clear()
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=r"^tuned/nvidia_h200\.json: not a file") as error:
        tuning.tiles(DECODE, H200)
    assert reason in str(error.value)


@given(
    st.builds(
        Tiles,
        st.integers(1, 300),
        st.sampled_from([16, 64, 256]),
        st.none() | st.sampled_from([1, 2, 4, 8]),
        st.none() | st.integers(1, 9),
        st.none() | st.integers(0, 5000),
        st.sampled_from([None, "xla", "triton"]),
    )
)
def test_tiles_are_spelled_and_read_back(tiles):
    assert parse(spell(tiles)) == tiles


def test_the_files_of_the_package_are_small_and_of_their_device():
    """Every file that is there; scripts.tune writes them, and none is also a valid state."""
    folder = resources.files("jaxattn") / "tuned"
    files = [f for f in folder.iterdir() if f.name.endswith(".json")] if folder.is_dir() else []
    for file in files:
        text = file.read_text()
        device = json.loads(text)["device"]
        assert file.name == f"{tuning.slug(device)}.json"
        assert len(text) < 300_000
        for shape, best in tuning.read(text, file.name):
            assert tuning.fits(shape, best, device)
            given = tuning.tiles(shape, device)
            if shape.few and not best.programs:  # the lengths of a call may be unlike
                best = dataclasses.replace(best, programs=tuning.formula(shape, device).programs)
            assert given == best
