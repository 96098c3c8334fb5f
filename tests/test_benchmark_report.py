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


def golden():
    return json.loads((GOLDEN / "benchmark.json").read_text())


def places(value, at=()):
    """Where the parts of a document are: the keys that lead to each, containers before contents."""
    if at:
        yield at
    if isinstance(value, dict | list):
        keyed = value.items() if isinstance(value, dict) else enumerate(value[:1])
        for key, part in keyed:
            yield from places(part, (*at, key))


def spelled(place):
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in place).lstrip(".")


PLACES = [place for place in places(golden()) if place[-1] not in ("schema", "platform", "calls")]
REQUIRED = [p for p in PLACES if isinstance(p[-1], str) and p[0] not in ("versions", "suites")]
REQUIRED += [("versions",), ("suites",)]


def refused(call, path):
    """What the program says of the file after its name, in one line."""
    code, out, err = call("--report", str(path))
    begin = f"benchmark_attention: error: {path}: "
    assert (code, out) == (2, ""), err
    assert err.startswith(begin)
    assert err.count("\n") == 1
    return err.removeprefix(begin).rstrip("\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no JSON: Expecting value: line 1 column 1"),
        (b"{", "no JSON: Expecting property name"),
        ((GOLDEN / "benchmark.json").read_bytes()[:2000], "no JSON: "),
        (b'{"schema": "\xff"}', "no JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"\xff\xfe{\x00}\x00", "no JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, "no JSON: nested too deeply"),
        (b"9" * 5000, "no JSON: Exceeds the limit"),
        (b"[]", "must be a benchmark's JSON with schema 1"),
        (b"{}", "must be a benchmark's JSON with schema 1"),
        (b"null", "must be a benchmark's JSON with schema 1"),
        (b'{"schema": 0}', "must be a benchmark's JSON with schema 1"),
    ],
    ids=lambda x: repr(x[:20]),
)
def test_what_is_no_benchmarks_json_is_refused(call, tmp_path, content, said):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert refused(call, path).startswith(said)


def test_a_folder_is_no_report(call, tmp_path):
    assert refused(call, tmp_path) == "Is a directory"


@pytest.mark.parametrize("place", REQUIRED, ids=spelled)
def test_a_report_that_lacks_something_is_refused(call, tmp_path, place):
    document = part = golden()
    for key in place[:-1]:
        part = part[key]
    del part[place[-1]]
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(document))
    where = spelled(place[:-1]) or "this benchmark's JSON"
    assert refused(call, path) == f"no {place[-1]} in {where}"


NAN, HUGE = float("nan"), 10**400
WRONG = [{"x": 3}, [None], True, None, -1, HUGE, NAN]
RIGHT = {"small": [True], "off": [None, -1, HUGE, NAN]}
RIGHT |= {key: [None] for key in ("commit", "compiler", "error", "got")}


@pytest.mark.parametrize("place", PLACES, ids=spelled)
def test_a_report_with_something_of_a_wrong_type_is_refused(call, tmp_path, place):
    document = part = golden()
    for key in place[:-1]:
        part = part[key]
    path = tmp_path / "wrong.json"
    for wrong in WRONG:
        part[place[-1]] = wrong
        path.write_text(json.dumps(document))
        if wrong in RIGHT.get(place[-1], []):
            assert call("--report", str(path))[0] == 0
        else:
            assert spelled(place) in refused(call, path), wrong


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"results": []}, "cases[0].results is []: must have a row at least"),
        ({"limit": "memory or so"}, 'cases[0].limit is "memory or so": must be compute or memory'),
        ({"name": ["x"] * 99}, f"cases[0].name is {str(['x'] * 99)[:59]}…: must be a string"),
    ],
)
def test_what_is_wrong_with_a_case_is_said(call, tmp_path, change, said):
    document, path = golden(), tmp_path / "wrong.json"
    document["cases"][0] |= change
    path.write_text(json.dumps(document))
    assert refused(call, path) == said.replace("'", '"')


def test_a_time_is_wanted_of_what_did_not_fail(call, tmp_path):
    document, path = golden(), tmp_path / "wrong.json"
    document["cases"][0]["results"][1]["seconds"] = None
    path.write_text(json.dumps(document))
    said = "cases[0].results[1].seconds is null: must be a number without an error"
    assert refused(call, path) == said


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
