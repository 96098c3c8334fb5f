"""`scripts.plan`: what it compiles, what it counts, and how it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tpu_compiler

from scripts import plan
from scripts.planning import collectives, hlo, load, memory, roofline, topology, tpus, traffic
from scripts.planning.sizes import Sizes
from scripts.planning.steps import Step

ROOT = Path(__file__).parent.parent
needs_libtpu = pytest.mark.skipif(
    tpu_compiler.version() is None, reason="libtpu is not installed; it is in the extra `dev`"
)
TINY = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}


def run(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "scripts.plan", *map(str, args)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        **options,
    )


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture(scope="module")
def planned(config):
    """A plan of the tiny model for four v5e chips, as two replicas of two devices each."""
    args = ["--model", config, "--topology", "v5e:2x2", "--data", 2, "--max-num-seqs", 8]
    done = run(*args, "--max-model-len", 256, "--max-num-batched-tokens", 128, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def sizes(**changes):
    from models.config_hf import from_hf

    given = {"data": 1, "shards": 2, "seqs": 4, "max_model_len": 256}
    given |= {"batched_tokens": 128, "page_size": 16, "dtype": "bfloat16"}
    return Sizes(from_hf(TINY), **(given | changes))


@needs_libtpu
def test_weights_and_cache_by_hand(planned):
    """Per layer 4/8 of q, 1/2 of k and v, of the outputs, gate, up and down; all of both norms."""
    e, f, d = 256, 512, 64
    layer = (4 + 1 + 1) * d * e + e * 4 * d + 3 * e * (f // 2) + 2 * e
    weights = 2 * (2 * layer + 2 * (512 // 2) * e + e)
    got = planned["memory"]
    assert got["weights"] == weights
    assert got["page"] == 2 * 2 * 1 * d * 2 * 16, "layers, k and v, a head, bf16, tokens"
    assert got["hbm"] == int(15.75 * 2**30)
    used = got["weights"] + got["activations"] + got["code"]
    assert got["pages_left"] == (got["hbm"] - used) // got["page"]
    assert got["pages"] == 4 * 16, "no more than four requests of 256 tokens can use"
    assert got["fits"]
    assert got["tokens"] == 1024


@needs_libtpu
def test_each_step_reads_its_weights_once(planned):
    e, embed = 256, 2 * (512 // 2) * 256
    assert [step["name"] for step in planned["steps"]] == ["prefill", "mixed", "decode"]
    assert [step["tokens"] for step in planned["steps"]] == [128, 128, 4]
    for step in planned["steps"]:
        rows = min(step["tokens"] * e * 2, embed)  # of the embedding, a row a token
        rest = planned["memory"]["weights"] - embed
        # XLA may fetch so small an embedding whole.
        got = step["roofline"]["weights"]
        assert 0.98 * (rest + rows) <= got <= 1.02 * (rest + embed), step["name"]


@needs_libtpu
def test_cache_and_arithmetic_by_hand(planned):
    decode = planned["steps"][2]["roofline"]
    context = planned["engine"]["context"]
    assert context == 128
    token = planned["memory"]["page"] // 16
    written, read = 4 * token, 4 * context * token
    # XLA fetches so small a cache into vector memory, and writes it back, as a whole.
    whole = 2 * planned["memory"]["pages"] * planned["memory"]["page"]
    assert written + read <= decode["cache"] <= written + read + whole
    weights = planned["memory"]["weights"] / 2 - 512 // 2 * 256  # elements, less the embedding
    attention = 4 * 4 * context * (4 * 64) * 2  # 4 x pairs x local heads x head dim x layers
    products = 2 * weights * 4 + attention
    assert products <= decode["flops"] <= 1.1 * products, "a little for norms and for sampling"
    assert decode["hbm_seconds"] == pytest.approx(decode["hbm"] / 819e9)
    assert decode["tokens_per_second"] == pytest.approx(8 / decode["seconds"]), "both replicas"


@needs_libtpu
def test_only_sums_and_logits_cross_devices(planned):
    for step, seqs in zip(planned["steps"], (1, 4, 4), strict=True):
        every = [one for one in step["collectives"] if one["always"] and one["bytes"] >= 256 * 4]
        counts = {"all-reduce": 0, "all-gather": 0}
        for one in every:
            counts[one["kind"]] += one["count"]
        assert counts == {"all-reduce": 1 + 2 * 2, "all-gather": 1}, step["name"]
        assert {one["devices"] for one in every} == {2}
        # Of a ring of two, as much is sent as a sum has, and half of what is gathered.
        want = 5 * step["tokens"] * 256 * 2 + seqs * 512 * 4 / 2
        assert step["roofline"]["ici"] == pytest.approx(want, rel=0.1)


@needs_libtpu
def test_tables_and_the_page(config, planned, tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(planned))
    done = run("--report", path)
    assert done.returncode == 0, done.stderr
    assert "\n| decode | 4 | " in done.stdout
    assert "docs/plans/tiny.json > docs/plan.md" in done.stdout
    from scripts.planning import table

    text = table.plain(planned)
    assert "4 devices, data 2 x model 2; 2 kv heads stored\n" in text
    assert "prefill: 5 all-reduce of bf16[128x256] over 2 devices\n" in text


def test_docs_plan_is_made_of_its_json():
    page = (ROOT / "docs/plan.md").read_text()
    files = page.partition("--report ")[2].partition(" > ")[0].split()
    assert sorted(files) == sorted(f"docs/plans/{x.name}" for x in ROOT.glob("docs/plans/*.json"))
    done = run("--report", *files)
    assert done.stdout == page, done.stderr


@needs_libtpu
def test_weights_that_do_not_fit(config, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY | {"hidden_size": 65536, "intermediate_size": 65536}))
    done = run("--model", path, "--topology", "v5e:1x1", "--max-model-len", 256)
    assert done.returncode == 0, done.stderr
    assert "It does not fit." in done.stdout
    assert "tokens/s" not in done.stdout


@needs_libtpu
def test_what_attention_refuses_is_bad_input(tmp_path):
    """Tables of 64 sequences of 131072 tokens do not fit scalar memory; larger pages would."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY | {"max_position_embeddings": 131072}))
    done = run("--model", path, "--topology", "v5e:1x1", "--max-model-len", 131072)
    assert (done.returncode, done.stdout) == (2, "")
    assert "scalar memory holds" in done.stderr
    assert "use larger pages or fewer sequences" in done.stderr
    assert "compiled" not in done.stderr


@needs_libtpu
@pytest.mark.every_chip
@pytest.mark.parametrize("generation", tpus.TPUS)
def test_hbm_is_what_the_compiler_says(generation):
    """A program with too large an array is refused with what would be available."""
    import jax
    import jax.numpy as jnp

    def overflow(x):
        return x + 1

    with pytest.raises(Exception, match="HBM") as caught:
        tpu_compiler.compile_for(generation, overflow, jax.ShapeDtypeStruct((2**36,), jnp.float32))
    said = float(str(caught.value).split("available HBM (")[1].split("G")[0])
    assert said * 2**30 == pytest.approx(tpus.TPUS[generation].hbm, rel=1e-3)


@needs_libtpu
@pytest.mark.every_chip
def test_the_pages_that_are_left_are_those_that_compile():
    """Llama 3.1 8B's decode step compiles with the pages that the plan leaves, not with more."""
    from models import sharding
    from models.config_hf import from_hf
    from scripts.planning import steps

    tpu_compiler.load()
    config = from_hf(json.loads((ROOT / "docs/configs/Llama-3.1-8B.json").read_text()))
    where = topology.parse("v5e:2x2")
    given = Sizes(config, 1, 4, 64, 8192, 2048, 16, "bfloat16")
    mesh = sharding.make_mesh(1, 4, where.describe())
    compiler = steps.Compiler(given, mesh, "bfloat16")
    weights = given.weight_bytes(compiler.params)
    step = steps.steps(given)[2]
    one = compiler.compile(step, compiler.lower(step, 1000))
    left = memory.memory(given, where.tpu.hbm, weights, one.temporary, one.code).pages_left
    compiler.compile(step, compiler.lower(step, left * 99 // 100))
    with pytest.raises(RuntimeError, match="HbmOom"):
        compiler.compile(step, compiler.lower(step, left * 102 // 100))


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("v5e:3x3", "v5e:1x1, 2x2, 2x4, 4x4, 4x8, 8x8 … 16x16"),
        ("v6e:2x2x1", "v6e:1x1, 2x2, "),
        ("v5p:4x4", "v5p:1x1x1, 2x2x1, 2x2x2, 2x2x4, 2x4x4, 4x4x4 … 16x16x24"),
        ("v9:2x2", "v4:1x1x1, .*; v5e:1x1, .*; v5p:1x1x1, .*; v6e:1x1, .*; tpu7x:1x1x1, "),
        ("", "v4:1x1x1, "),
        ("v5e", "v4:1x1x1, "),
    ],
)
def test_a_wrong_topology_lists_the_valid_ones(name, valid):
    with pytest.raises(ValueError, match=f"--topology '{name}' is no slice .*; valid are {valid}"):
        topology.parse(name)


def test_links_of_a_slice():
    """v5e: 50 GB/s a link; a corner of a small slice has one along each axis."""
    per_device = {name: topology.parse(name).ici / 1e9 for name in (
        "v5e:1x1", "v5e:2x4", "v5e:16x16", "v5e:8x16", "v6e:2x2", "v5p:4x4x4", "tpu7x:2x2x1",
        "tpu7x:2x2x2",
    )}  # fmt: skip
    assert list(per_device.values()) == [0, 100, 200, 150, 200, 600, 100, 150]
    assert topology.parse("tpu7x:2x2x1").devices == 8


@pytest.mark.parametrize(
    ("given", "want"),
    [((None, None), (1, 8)), ((2, None), (2, 4)), ((None, 2), (4, 2)), ((4, 2), (4, 2))],
)
def test_mesh_shapes(given, want):
    assert plan.mesh_shape(8, *given) == want


WRONG = [
    (["--topology", "v5e:3x3"], "--topology 'v5e:3x3' is no slice of TPU chips; valid are v5e:1x1"),
    (["--data", "3"], "--data 3: it must divide the 4 devices of the topology"),
    (["--model-parallel", "0"], "--model-parallel 0: it must divide the 4 devices"),
    (["--data", "2", "--model-parallel", "4"], "are 8 devices: they must be the 4 of the topology"),
    (["--max-num-seqs", "0"], "--max-num-seqs must be at least 1, got 0"),
    (["--page-size", "3"], "--page-size must be a power of two from 1 to 256, got 3"),
    (["--max-model-len", "5000"], "must be at most the model's context of 4096, got 5000"),
    (["--max-num-batched-tokens", "8"], "must be at least --max-num-seqs (64)"),
    (["--context", "9000"], "--context 9000 must be at most --max-model-len 4096"),
    (["--context", "0"], "--context must be at least 1, got 0"),
    (["--dtype", "float16"], "invalid choice: 'float16'"),
    (["--model", "no/such/folder"], "--model 'no/such/folder': no/such/folder does not exist"),
    (["--model", "docs"], "--model 'docs': docs has no config.json"),
    (["--model", "README.md"], "README.md is not a config.json, nor a folder with one"),
    (["--model", ""], "--model '': a model with an empty name does not exist"),
    (["--model", "pyproject.json"], "--model 'pyproject.json': pyproject.json does not exist"),
    (["--report", "README.md"], "--report README.md: "),
]


@pytest.mark.parametrize(("args", "message"), WRONG)
def test_bad_input_is_one_line(config, args, message, monkeypatch, capfd):
    from scripts import console

    monkeypatch.chdir(ROOT)
    given = {"--model": str(config), "--topology": "v5e:2x2", "--max-model-len": "4096"}
    given |= dict(zip(args[::2], args[1::2], strict=True))
    argv = [text for pair in given.items() for text in pair]
    with pytest.raises(SystemExit) as ended:
        console.run("plan", lambda: plan.main(argv))
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1, err


def test_an_id_offline_says_so(monkeypatch):
    import huggingface_hub

    from models import catalog

    def unreachable(repo, name):
        raise huggingface_hub.errors.LocalEntryNotFoundError("cannot be reached\nat all")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(
        ConnectionError, match="owner/name is not a path, and it could not be downl"
    ):
        catalog.config_file("owner/name")


def test_loads_of_the_steps():
    given = sizes()
    assert load.load(Step("prefill", 128, 1), given, 50).groups == ((128, 128, 1),)
    assert load.load(Step("mixed", 128, 4), given, 50).groups == ((125, 125, 1), (1, 50, 3))
    assert load.load(Step("decode", 4, 4), given, 50).groups == ((1, 50, 4),)


@pytest.mark.parametrize("window", [None, 1, 3, 7, 10, 40])
@pytest.mark.parametrize(("queries", "keys"), [(1, 10), (4, 10), (10, 10)])
def test_pairs_are_those_that_the_mask_keeps(queries, keys, window):
    seen = [min(window or keys, keys - queries + i + 1) for i in range(queries)]
    assert load._pairs(queries, keys, window) == sum(seen)


HLO = """\
HloModule test

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}

%drawn (p: bf16[8,64]) -> bf16[16,64] {
  %p = bf16[8,64]{1,0} parameter(0)
  ROOT %gathered = bf16[16,64]{1,0} all-gather(%p), replica_groups=[2,2]<=[4], dimensions={0}
}

%scattered (c: bf16[64,64], i: s32[2], u: bf16[2,64]) -> bf16[64,64] {
  %c = bf16[64,64]{1,0} parameter(0)
  %i = s32[2]{0} parameter(1)
  %u = bf16[2,64]{1,0} parameter(2)
  ROOT %s = bf16[64,64]{1,0} scatter(%c, %i, %u), to_apply=%add
}

ENTRY %main (w: bf16[32,64], k: bf16[64,64]) -> bf16[8,64] {
  %w = bf16[32,64]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="params[0]"}
  %k = bf16[64,64]{1,0} parameter(1), metadata={op_name="caches[0].k"}
  %copy-start = (bf16[32,64]{1,0:T(8,128)(2,1)S(1)}, bf16[32,64]{1,0}, u32[]{:S(2)}) copy-start(%w)
  %copy-done = bf16[32,64]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %rows-start = ((), (), (s32[16]{0})) custom-call-start(), custom_call_target="any"
  %gather-rows = ((bf16[32,64]{1,0}), bf16[4,64]{1,0:S(1)}, (s32[16]{0})) \
custom-call-update(%rows-start, %w), custom_call_target="any"
  %index = s32[2]{0:S(1)} iota(), iota_dimension=0
  %made = bf16[8,64]{1,0} fusion(%copy-done), kind=kLoop, calls=%add
  %new = bf16[2,64]{1,0:S(1)} slice(%made), slice={[0:2], [0:64]}
  %written = bf16[64,64]{1,0} fusion(%k, %index, %new), kind=kCustom, calls=%scattered
  %out = (bf16[8,64]{1,0:S(1)}, f32[8]{0}) custom-call(%made, %written), \
custom_call_target="tpu_custom_call"
  %part = bf16[8,64]{1,0:S(1)} get-tuple-element(%out), index=0
  %reduced = bf16[8,64]{1,0:S(1)} all-reduce(%part), \
replica_groups=mesh['data'=2,'model'=4] {'model'}, to_apply=%add
  %maybe = bf16[16,64]{1,0} conditional(%index, %made), branch_computations={%drawn}
  ROOT %end = bf16[8,64]{1,0} copy(%reduced)
}
"""


def test_reading_a_program():
    program = hlo.parse(HLO)
    assert program.entry == "main"
    assert set(program.computations) == {"add", "drawn", "scattered", "main"}
    start = program.computations["main"][2]
    assert (start.name, start.opcode, start.operands) == ("copy-start", "copy-start", ("w",))
    assert [(x.shape, x.hbm) for x in start.results] == [
        ((32, 64), False), ((32, 64), True), ((), False),
    ]  # fmt: skip


def test_traffic_of_a_program():
    found = traffic.traffic(hlo.parse(HLO))
    assert found.weights == (32 + 4) * 64 * 2, "fetched ahead, once, and four rows"
    assert found.cache == 2 * 64 * 2, "of the scatter the update; the kernel's reads are not in it"
    made, sums, end = 8 * 64 * 2, 8 * 4, 8 * 64 * 2
    assert found.rest == made + 2 * 64 * 2 + (made + sums) + end


def test_collectives_of_a_program():
    reduced, gathered = collectives.collectives(hlo.parse(HLO), 8)
    assert (reduced.kind, reduced.devices, reduced.bytes, reduced.always) == (
        "all-reduce", 4, 8 * 64 * 2, True,
    )  # fmt: skip
    assert reduced.sent == 2 * 3 / 4 * 8 * 64 * 2
    assert (gathered.kind, gathered.devices, gathered.always) == ("all-gather", 2, False)
    assert gathered.sent == 16 * 64 * 2 / 2


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("replica_groups=mesh['data'=2,'model'=4] {'data','model'}", 8),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)4}", 4),
        ("replica_groups={{0,1,2},{3,4,5}}", 3),
        ("replica_groups=[4,2]<=[8]", 2),
        ("to_apply=%add", 8),
    ],
)
def test_group_sizes(text, want):
    assert collectives.group_size(text, 8) == want


def test_the_longest_time_is_the_bound():
    line = roofline.Roofline(1, 0, 1, 2, 3, 0, 0.1, 0.3, 0.2, 0)
    assert (line.bound, line.seconds, line.hbm) == ("HBM", 0.3, 6)


def test_a_cache_of_heads_that_do_not_divide_is_whole():
    assert sizes().token_bytes == 2 * 1 * 64 * 2 * 2
    assert sizes(shards=3).token_bytes == 2 * 2 * 64 * 2 * 2
