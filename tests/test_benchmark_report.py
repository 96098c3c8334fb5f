"""The results of a benchmark: what makes a document of them, the page, figures and targets."""

import dataclasses
import functools
import json
from pathlib import Path

import pytest

from scripts import benchmark_attention
from scripts.bench import figures, page, results
from scripts.bench.targets import OURS, Target, judge

GOLDEN = Path(__file__).parent / "golden"
DOCS = Path(__file__).parent.parent / "docs"
RUNS = sorted((DOCS / "benchmarks").glob("*.json"))


@pytest.fixture
def call(call_main):
    """Run the program: (exit code, stdout, stderr)."""
    return functools.partial(call_main, benchmark_attention)


def test_a_json_of_something_else_is_no_report(call, tmp_path):
    other = tmp_path / "x.json"
    for text in ("[]", "{}", "{", '{"schema": 0}'):
        other.write_text(text)
        code, _, err = call("--report", str(other))
        assert code == 2
        assert "x.json" in err


@pytest.mark.parametrize("missing", sorted(results.KEYS))
def test_a_report_that_lacks_something_is_refused(call, tmp_path, missing):
    document = {"schema": results.SCHEMA} | dict.fromkeys(results.KEYS - {missing})
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(document))
    said = f"benchmark_attention: error: {path}: no {missing} in this benchmark's JSON\n"
    assert call("--report", str(path)) == (2, "", said)


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
