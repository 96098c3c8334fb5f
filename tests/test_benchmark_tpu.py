"""`python -m scripts.benchmark_tpu`: how it reads the compiler's dumps, its table, its errors."""

import copy
import json
from pathlib import Path

import pytest

from scripts import benchmark_tpu, console
from scripts.tpu import baseline, bundles, chips, document, ours, page, profile, suites, table, ways
from scripts.tpu.trips import Trips

DOCS = Path(__file__).parent.parent / "docs"
# A grid loop with two bodies, of which a step runs one, and a loop over tiles inside the second.
CODE = """\
= control target key start
LB: loop body
= control target key end
     0   :  { %s0 = smov 0 }
   0x1 LB: > { %s1 = sadd.s32 1 }
   0x2 PF: > { %m = vmatmul.mubr.bf16 }
   0x3   : > { %22 = dma.hbm_to_vmem [thread:$0] /*hbm=*/%s1, /*size_in_granules=*/64, %s2 ;; %v }
   0x4 PB: > { %m = vmatmul.mubr.bf16 }
   0x5 LB: >> { %m = vadd.f32 ;; %23 = dma.vmem_to_hbm /*v=*/%s1, /*size_in_granules=*/%s77_s1 }
   0x6   : > { sbr.rel }
   0x7   :  { sst }
"""
TABLE = """\
== CAPACTIY:
MATMUL, MATPUSH, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU
    2     2     2     4     2     1     3     3     2     2     2
== UTILIZATION:
{}
"""
NOTHING = [0] * 10


def rows(*matmul):
    return "\n".join(" ".join(map(str, [n, *NOTHING])) for n in matmul)


@pytest.fixture
def kernel():
    return bundles.parse("k", CODE, TABLE.format(rows(0, 0, 2, 2, 2, 1, 1, 0)))


@pytest.fixture
def call(capsys):
    """Run the program in this process: (exit code, stdout, stderr)."""

    def run(*argv):
        with pytest.raises(SystemExit) as exit_:
            console.run(benchmark_tpu.PROG, lambda: benchmark_tpu.main(list(argv)))
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


def test_loops_blocks_and_copies_are_found(kernel):
    root, grid, inner = kernel.root.walk()
    assert (root.bundles, grid.bundles, inner.bundles) == (2, 5, 1)
    assert [block.bundles for block in grid.blocks] == [1, 2, 2]
    assert grid.copies == [("hbm_to_vmem", 64 * bundles.GRANULE)]
    assert inner.copies == [("vmem_to_hbm", None)]
    assert kernel.bundles == 8
    assert kernel.used("MATMUL") == 8


def test_a_turn_is_the_loop_with_its_shortest_body(kernel):
    grid = kernel.hottest
    assert [body.used["MATMUL"] for body in grid.bodies] == [4, 3]
    turn = grid.turn()
    assert (turn.bundles, turn.used["MATMUL"]) == (3, 4)
    assert kernel.utilization(turn)["MATMUL"] == 4 / (3 * 2)


def test_executed_bundles_count_turns_and_bodies(kernel):
    assert Trips((10, 30)).executed(kernel) == 2 + 10 * 5 + 30
    grid, bodies = 10, (7, 3)
    one_loop = bundles.Kernel("k", bundles.Loop(inner=[kernel.hottest]), kernel.capacity)
    one_loop.root.inner[0].inner = []
    assert Trips((grid,), bodies).executed(one_loop) == grid * 1 + 7 * 2 + 3 * 2
    assert Trips((10, 30, 5)).executed(kernel) is None, "the loops are others"


@pytest.mark.parametrize(
    ("code", "utilization", "match"),
    [
        (CODE, "nothing", "no table"),
        (CODE, TABLE.format(rows(0, 0)), "more bundles"),
        (CODE, TABLE.format(rows(*range(20))), "rows in its table"),
        (CODE, TABLE.replace("EUP", "TRANS").format(rows(0)), "must be MATMUL"),
    ],
)
def test_other_dumps_are_refused(code, utilization, match):
    with pytest.raises(ValueError, match=match):
        bundles.parse("k", code, utilization)


def test_cycles_count_equal_operations(tmp_path):
    entry = (
        'hlo_op_estimate {{ hlo_op_name: "{}"\n estimated_cycles: {}\n num_equivalent_hlos: {} }}'
    )
    for name, cycles, alike in (("copy.1", 100, 3), ("kernel", 7, 1)):
        path = tmp_path / f"{name}_static_llo_profile.textproto"
        path.write_text(entry.format(name, cycles, alike))
    assert profile.cycles(tmp_path) == {"copy.1": 300, "kernel": 7}


@pytest.mark.parametrize("topology", ["v9:1x1", "v6e", "", "v6e:1x1 "])
def test_an_unknown_topology_lists_the_known(call, topology):
    code, out, err = call("--topology", topology)
    assert code == console.BAD_INPUT
    assert not out
    assert repr(topology) in err
    assert all(name in err for name in chips.NAMES)


@pytest.mark.parametrize(
    ("argv", "match"),
    [
        ((), "--topology is missing"),
        (("--topology", "v6e:1x1", "--suite", "big"), "vit, prefill, decode, paged, all"),
        (("--topology", "v6e:1x1", "--peers", "cudnn"), "flash_attention"),
        (("--topology", "v6e:1x1", "--json", "/"), "is a folder"),
        (("--topology", "v6e:1x1", "--json", "/no/such/x.json"), "folder that can be written"),
        (("--report", "x.json", "--topology", "v6e:1x1"), "no other option"),
        (("--report", "/no/such.json"), "/no/such.json"),
    ],
)
def test_bad_input_is_one_line(call, argv, match):
    code, out, err = call(*argv)
    assert code == console.BAD_INPUT
    assert not out
    assert match in err
    assert err.count("\n") == 1


def test_every_case_has_a_plan():
    for case in suites.suite("all"):
        (queries, keys), trips, _ = ours.plan(case)
        assert queries >= 1
        assert keys >= 1
        assert all(count > 0 for count in trips.counts[:1])
        assert set(ways.names(case)) <= set(ways.NAMES)


def recorded():
    return sorted(baseline.FOLDER.glob("*.json"))


@pytest.mark.parametrize("path", recorded(), ids=lambda path: path.stem)
def test_committed_figures_are_whole(path):
    found = document.read(path)
    assert baseline.path_of(found["topology"]) == path
    assert [case["name"] for case in found["cases"]] == [c.name for c in suites.suite("all")]
    for case in found["cases"]:
        assert baseline.recorded(found, case["name"])["error"] is None
    assert table.plain(found).count("\n") >= len(found["cases"])
    json.dumps(found)


def test_the_page_has_the_committed_figures():
    paths = {Path(f"docs/benchmarks/tpu/{path.name}"): document.read(path) for path in recorded()}
    text = (DOCS / "tpu.md").read_text()
    assert text.endswith(page.tables(paths)), "run the command that docs/tpu.md names"


def test_worse_figures_are_named():
    before = dict.fromkeys(baseline.FIGURES, 100) | {"cycles": None}
    assert baseline.worse(before, before, same_compiler=True) == []
    now = copy.copy(before) | {"bundles_512": 106, "spills": 105}
    assert baseline.worse(now, before, same_compiler=True) == ["bundles_512 106, on record 100"]
    assert baseline.worse(now, before, same_compiler=False) == []
    lost = copy.copy(before) | {"kernel_bundles": None}
    assert baseline.worse(lost, before, same_compiler=True)


def test_the_ratio_is_of_cycles_or_else_of_bundles():
    mine = {"error": None, "cycles": 50, "bundles_512": 10}
    assert table.ratio({"error": None, "cycles": 100, "bundles_512": 40}, mine) == (0.5, "cycles")
    unknown = {"error": None, "cycles": None, "bundles_512": 40}
    assert table.ratio(unknown, mine) == (0.25, "bundles")
    assert table.ratio({"error": "no"}, mine) is None
