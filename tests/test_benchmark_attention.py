"""`python -m scripts.benchmark_attention`: its cases, costs, checks, results, page and figures.

Programs compile slowly on a CPU, so runs are few, in miniature, and of a case of each kind.
"""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxattn
from scripts import benchmark_attention, console
from scripts.bench import (
    arrays,
    costs,
    figures,
    measure,
    oracle,
    ours,
    page,
    results,
    roofline,
    suites,
)
from scripts.bench.cases import parse
from scripts.bench.peers import PEERS, presence, xla
from scripts.bench.targets import OURS, Target, judge

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parent.parent / "docs"
RUNS = sorted((DOCS / "benchmarks").glob("*.json"))
ALL = suites.suite("all")
TINY = "decode:B2,S40,H4/2,D16,P8"
SHAPES = [
    "full:B2,S9,H2,D8",
    "prefill:B1,S9,H2,D8",
    "decode:B3,S9,T4,H4/2,D8,P4",
    "decode:B3,S9,T4,H4/2,D8,P4,W3",
    "prefill:B1,S9,H4/2,D8,P4,W3",
    "mixed:L2*1/7+5/9,H4/1,D16,P2",
    "mixed:L1/3+4/4,H4/4,D16,P256,W2",
]


@pytest.fixture
def call(capsys):
    """Run the program in this process: (exit code, stdout, stderr)."""

    def run(*argv):
        with pytest.raises(SystemExit) as exit_:
            console.run(benchmark_attention.PROG, lambda: benchmark_attention.main(list(argv)))
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


def kept(case, n):
    """bool[T, S]: which keys each query of sequence n sees, from the mask's definition."""
    t, s = case.q_lens[n], case.k_lens[n]
    q, k = s - t + np.arange(t)[:, None], np.arange(s)
    keep = np.ones((t, s), bool)
    if case.causal:
        keep &= k <= q
    if case.window:
        keep &= k > q - case.window
    return keep


@pytest.mark.parametrize("text", SHAPES)
def test_flops_and_bytes_count_what_the_mask_keeps(text):
    case = parse(text)
    masks = [kept(case, n) for n in range(len(case.q_lens))]
    pairs = sum(mask.sum() for mask in masks)
    assert costs.flops(case) == 4 * pairs * case.heads * case.head_dim
    queries, keys = sum(case.q_lens) * case.heads, sum(mask.any(0).sum() for mask in masks)
    assert costs.moved_bytes(case) == 2 * case.head_dim * 2 * (queries + keys * case.kv_heads)


def test_prefill_and_decode_cost_what_the_published_figures_count():
    cases = {case.name: case for case in ALL}
    prefill = cases["prefill 8k paged"]
    assert costs.flops(prefill) == pytest.approx(4 * 32 * 8192 * 8192 * 128 / 2, rel=1e-3)
    decode = cases["decode B16 ctx 8192"]
    assert costs.moved_bytes(decode) == pytest.approx(2 * 16 * 8192 * 8 * 128 * 2, rel=1e-3)


def test_the_bound_says_what_limits():
    decode, prefill = parse(TINY), parse("prefill:S512,H4/2,D16,P8")
    assert costs.bound(decode, 1e15, 1e9) == (costs.moved_bytes(decode) / 1e9, "memory")
    assert costs.bound(prefill, 1e9, 1e15) == (costs.flops(prefill) / 1e9, "compute")


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_the_text_of_a_case_names_it(case):
    again = parse(case.text)
    same = dataclasses.replace(again, name=case.name, targets=case.targets, peers=case.peers)
    assert same == case


@pytest.mark.parametrize("text", SHAPES)
def test_shapes_are_read_as_they_are_written(text):
    assert parse(text).text == text.replace("H4/4", "H4")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("decode", "must be KIND:FIELD"),
        ("dense:B1,S2,H1,D8", "must be KIND:FIELD"),
        ("decode:S8,H1", "D is missing"),
        ("decode:H1,D8", "S (or L) is missing"),
        ("decode:S8,S9,H1,D8", "S is given twice"),
        ("decode:S8,X3,H1,D8", "'X3' is no field"),
        ("decode:S8,H3/2,D8", "heads=3"),
        ("decode:S8,H1,D12", "head_dim=12"),
        ("decode:S8,H1,D8,P3", "page_size=3"),
        ("decode:S8,T9,H1,D8", "9 queries over 8 keys"),
        ("decode:B0,S8,H1,D8", "B must be from 1 to 65536"),
        ("decode:B99999999999,S8,H1,D8", "B must be from 1 to 65536"),
        ("mixed:L0*1/8,H1,D8,P1", "at least 1 sequence"),
        ("mixed:L65537*1/8,H1,D8,P1", "at most 65536 sequences"),
        ("decode:B2,S1073741824,H1,D8", "2147483648 keys in all"),
        ("full:S8,H1,D8,W2", "window=2"),
        ("mixed:L1/8+2/9,H1,D8", "need pages"),
        ("mixed:L1/8+2,H1,D8,P1", "'2' must be such as"),
        ("mixed:L1/8,S3,H1,D8,P1", "takes the place"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(call, text, said):
    code, out, err = call("--shapes", text)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_names_are_unique_and_targets_speak_of_what_there_is():
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names)
    for case in ALL:
        known = {way.implementation for way in ways_everywhere(case)} | {"vllm", "tokamax"}
        for target in case.targets:
            assert target.describe()
            others = known if target.kind == "peer" else names
            assert set(target.against) <= {*others, "fa3", "fa3 paged"}, case.name


def ways_everywhere(case):
    """The ways of those peers that can be listed without being installed."""
    for name in ("xla", "cudnn", "torch-sdpa"):
        try:
            yield from PEERS[name].ways(case)
        except presence.Unsuited:
            continue


def test_the_issues_cases_are_there():
    cases = {case.name: case for case in ALL}
    long = cases["decode 100k among 63 of 500"]
    assert sorted(long.k_lens) == [500] * 63 + [100_000]
    many = cases["decode 256 of 20 to 4000"]
    assert len(many.k_lens) == 256
    assert 20 <= min(many.k_lens) < 100
    assert 3900 < max(many.k_lens) <= 4000
    mixed = cases["64 decodes, 3 prefills"]
    assert mixed.q_lens == (1,) * 64 + (512, 1024, 300)
    assert mixed.k_lens[64:] == (512, 1024, 2300)
    neighbours = suites.suite("neighbours")
    decodes = [case for case in neighbours if case.name.startswith("decode")]
    assert {case.page_size for case in decodes} == {1, 16, 32, 64, 256}
    assert {case.head_dim for case in decodes} == {64, 80, 96, 128, 256}
    assert {case.group for case in decodes} == {1, 4, 5, 8}
    assert {case.q_lens[0] for case in decodes if case.k_lens[0] == 4096} == {*range(1, 9)}


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_miniatures_keep_the_kind(case):
    small = case.small()
    assert sum(small.k_lens) <= 4000
    for name in ("head_dim", "page_size", "causal", "group", "targets", "name"):
        assert getattr(small, name) == getattr(case, name)
    assert bool(small.window) == bool(case.window)
    assert (small.uniform is None) == (case.uniform is None)


def test_pages_are_dealt_once_and_hold_the_keys_in_order():
    case = parse("decode:B3,S21,H2/1,D8,P4")
    made = arrays.make(case)
    tables = arrays.page_tables(case)
    assert sorted(tables.ravel()) == [*range(3 * 6)]
    assert (np.sort(tables[0]) != tables[0]).any()
    q, k, v = arrays.contiguous(case, made)
    assert q.shape == (3, 1, 2, 8)
    for n in range(3):
        own_k, own_v = arrays.sequence_keys(case, made, n)
        np.testing.assert_array_equal(own_k, k[n])
        np.testing.assert_array_equal(own_v, v[n])
        np.testing.assert_array_equal(own_k[5], made.k[tables[n, 1], 1])


@pytest.mark.parametrize("text", SHAPES)
def test_the_slices_of_the_oracle_are_the_whole_result(text):
    case = parse(text)
    made = arrays.make(case)
    way = ours.way(case)
    whole = way_result(way, case, made, implementation="reference")
    checks = oracle.expected(case, made)
    assert {check.heads.start for check in checks} == {0, case.heads - case.group}
    assert oracle.error_of(whole, checks) < 1e-6


def way_result(way, case, made, **options):
    """A result f32[T, H, D] for the operands of ``way``, in float32."""
    in_float32 = lambda x: x.astype(np.float32) if x.dtype == arrays.DTYPE else x  # noqa: E731
    operands = jax.tree.map(in_float32, way.operands(made))
    mask = oracle.mask_of(case)
    if case.page_size is None:
        out = jaxattn.attention(*operands, mask=mask, **options)
    else:
        out = jaxattn.paged_attention(*operands, mask=mask, **options)
    return np.asarray(out, np.float32).reshape(-1, case.heads, case.head_dim)


def test_the_check_sees_one_wrong_row_and_any_nan():
    case = parse(TINY)
    made = arrays.make(case)
    right = way_result(ours.way(case), case, made, implementation="reference")
    checks = oracle.expected(case, made)
    wrong = right.copy()
    wrong[1, 3] *= 1.05
    assert oracle.error_of(right, checks) <= oracle.TOLERANCE < oracle.error_of(wrong, checks)
    wrong = right.copy()
    wrong[0, 1, 0] = np.nan
    assert oracle.error_of(wrong, checks) == np.inf


@pytest.mark.parametrize(
    ("given", "handed"),
    [(None, {}), ("xla", {"compiler": "xla"}), ("triton", {"compiler": "triton"})],
)
@pytest.mark.parametrize("text", [TINY, "full:S8,H1,D8"])
def test_the_compiler_is_handed_on_only_when_given(monkeypatch, text, given, handed):
    seen = []
    for name in ("attention", "paged_attention"):
        monkeypatch.setattr(jaxattn, name, lambda *_, **options: seen.append(options))
    case = parse(text)
    way = ours.way(case, given)
    way.call(*way.operands(arrays.make(case)))
    assert seen == [{"mask": oracle.mask_of(case)} | handed]


def test_every_suite_runs_in_miniature(call, tmp_path):
    file = tmp_path / "run.json"
    names = (
        "SigLIP D72",
        "full 4k",
        "decode B16 ctx 8192",
        "64 decodes, 3 prefills",
        "decode P1",
        "decode window *",
    )
    only = [part for name in names for part in ("--only", name)]
    flags = ["--small", "--peers", "xla,fa3", "--rounds", "3", "--json", str(file)]
    code, out, err = call("all", *only, *flags)
    assert code == 0, err
    assert "fa3 skipped: it needs a GPU" in err
    document = results.read(file)
    assert document["versions"]["jax"] == jax.__version__
    assert [*document["suites"]] == [*suites.NAMES]
    names = [name for cases in document["suites"].values() for name in cases]
    assert len(names) == 6
    assert [case["name"] for case in document["cases"]] == names
    for case in document["cases"]:
        assert case["name"] in out
        for row in case["results"]:
            assert row["error"] is None
            assert row["off"] <= oracle.TOLERANCE
            assert len(row["rounds"]) == 3
            assert min(row["rounds"]) <= row["seconds"] <= max(row["rounds"])


def test_own_shapes_and_json_on_stdout(call):
    code, out, err = call("--shapes", TINY, "--small", "--peers", "none", "--wall", "--json", "-")
    assert code == 0, err
    (case,) = json.loads(out)["cases"]
    assert case["name"] == TINY
    assert case["results"][0]["wall_seconds"] > 0


def broken(kind):
    """The `ways` of a peer that is wrong, or that raises when it is traced."""
    right_ways = xla.ways

    def ways(case):
        (right,) = right_ways(case)

        def wrong(*operands):
            if kind == "raises":
                raise RuntimeError("no such\nkernel")
            return right.call(*operands) * 1.1

        return [dataclasses.replace(right, call=wrong)]

    return ways


@pytest.mark.parametrize(
    ("kind", "said"), [("wrong", "wrong: off by 0.1"), ("raises", "RuntimeError: no such; kernel")]
)
def test_a_peer_that_fails_is_reported_and_not_timed(call, monkeypatch, kind, said):
    monkeypatch.setattr(xla, "ways", broken(kind))
    code, out, err = call("--shapes", TINY, "--small", "--peers", "xla", "--json", "-")
    assert code == 0, err
    mine, theirs = json.loads(out)["cases"][0]["results"]
    assert mine["error"] is None
    assert said in theirs["error"]
    assert theirs["seconds"] is None
    assert theirs["rounds"] == []


def test_results_of_ours_that_are_wrong_fail_the_run(call, monkeypatch):
    def way(case, compiler):
        return dataclasses.replace(broken("wrong")(case)[0], implementation=OURS)

    monkeypatch.setattr(ours, "way", way)
    code, out, _ = call("--shapes", TINY, "--small", "--peers", "none")
    assert code == console.FAILED
    assert "wrong: off by" in out


def test_results_are_kept_case_by_case(call, monkeypatch, tmp_path):
    run_case = measure.run_case

    def interrupted(case, *rest):
        if case.name != TINY:
            raise KeyboardInterrupt
        return run_case(case, *rest)

    monkeypatch.setattr(measure, "run_case", interrupted)
    file = tmp_path / "run.json"
    other = "full:S24,H1,D8"
    code, _, _ = call(
        "--shapes", TINY, "--shapes", other, "--small", "--peers", "none", "--json", str(file)
    )
    assert code == console.INTERRUPTED
    assert [case["name"] for case in results.read(file)["cases"]] == [TINY]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_list_names_cases_and_targets(call):
    code, out, _ = call("decode", "--list")
    assert code == 0
    assert "decode B16 ctx 8192: decode:B16,S8192,H32/8,D128,P16\n" in out
    assert ">= 1.1 x fa3 paged" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "name a suite"),
        (["vits"], "suite 'vits'"),
        (["vit", "--only", "nothing"], "--only nothing matches no case"),
        (["vit", "--peers", "xla,flash"], "--peers 'flash'"),
        (["vit", "--list", "--peers", "flash"], "--peers 'flash'"),
        (["vit", "--rounds", "0"], "--rounds must be at least 1"),
        (["vit", "--json", "no/such/folder/x.json"], "no such folder"),
        (["vit", "--report", "x.json"], "--report runs nothing"),
        (["--report", "no-such.json"], "no-such.json"),
    ],
)
def test_bad_input_is_one_line(call, argv, said):
    code, out, err = call(*argv)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_folder_for_the_json_is_refused_before_anything_runs(call, tmp_path, monkeypatch):
    monkeypatch.setattr(roofline, "measure", lambda small: pytest.fail("it ran"))
    code, out, err = call("--shapes", TINY, "--peers", "none", "--json", str(tmp_path))
    said = f"benchmark_attention: error: --json {tmp_path}: is a folder, must be a file\n"
    assert (code, out, err) == (2, "", said)


def test_a_json_of_something_else_is_no_report(call, tmp_path):
    other = tmp_path / "x.json"
    for text in ("[]", "{}", "{", '{"schema": 0}'):
        other.write_text(text)
        code, _, err = call("--report", str(other))
        assert code == 2
        assert "x.json" in err


def test_the_page_is_what_the_results_give(call):
    code, out, _ = call("--report", str(GOLDEN / "benchmark.json"))
    assert code == 0
    assert out == (GOLDEN / "benchmark_page.txt").read_text()


def test_the_committed_page_is_what_the_committed_results_give():
    committed = DOCS / "benchmarks.md"
    assert committed.exists() == bool(RUNS)
    if RUNS:
        assert committed.read_text() == page.page({path: results.read(path) for path in RUNS})


def test_golden_results_are_judged_again_the_same():
    document = results.read(GOLDEN / "benchmark.json")
    before = json.dumps(document)
    assert json.dumps(results.judged(document)) == before


def test_figures_are_small_and_the_same_each_time(tmp_path):
    document = results.read(GOLDEN / "benchmark.json")
    first = figures.draw(document, "run", tmp_path / "a")
    assert [path.name for path in first] == ["run-prefill.svg", "run-decode.svg"]
    for path, again in zip(first, figures.draw(document, "run", tmp_path / "b"), strict=True):
        assert path.read_bytes() == again.read_bytes()
        assert len(path.read_bytes()) < 100_000
    drawn = first[1].read_text()
    assert "decode P1" in drawn
    assert "fa3 paged" in drawn


def timed(name, seconds, flops=100, nbytes=1000, limit="memory"):
    row = {"implementation": name, "variant": "", "error": None, "seconds": seconds}
    return {"flops": flops, "bytes": nbytes, "limit": limit, "results": [row]}


@pytest.mark.parametrize(
    ("target", "got"),
    [
        (Target("read", 0.5), 0.5),
        (Target("time", 0.5, ("other",)), 2.0),
        (Target("rate", 0.5, ("other",)), 4.0),
        (Target("peer", 0.5, ("xla", "fa3")), 1.5),
        (Target("peer", 0.5, ("vllm",)), None),
        (Target("time", 0.5, ("missing",)), None),
    ],
)
def test_what_a_target_measures(target, got):
    case = timed(OURS, 2.0)
    case["results"] += timed("xla", 4.0)["results"] + timed("fa3", 3.0)["results"]
    cases = {"other": timed(OURS, 4.0, nbytes=500)}
    roofline = {"read_bytes_per_second": 1000.0}
    assert judge(dataclasses.asdict(target), case, cases, roofline) == got


def test_a_missing_module_is_named():
    assert presence.missing("json") is None
    assert "no_such_module cannot be imported" in presence.missing("json", "no_such_module")


@pytest.mark.parametrize("missing", sorted(results.KEYS))
def test_a_report_that_lacks_something_is_refused(call, tmp_path, missing):
    document = {"schema": results.SCHEMA} | dict.fromkeys(results.KEYS - {missing})
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(document))
    said = f"benchmark_attention: error: {path}: no {missing} in this benchmark's JSON\n"
    assert call("--report", str(path)) == (2, "", said)
