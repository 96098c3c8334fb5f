"""Runs of `python -m scripts.benchmark_attention`.

Programs compile slowly on a CPU, so runs are few, in miniature, and of a case of each kind.
"""

import dataclasses
import functools
import json

import jax
import pytest
from benchmark_shapes import TINY

from scripts import benchmark_attention, console
from scripts.bench import measure, oracle, ours, results, roofline, suites
from scripts.bench.peers import presence, xla
from scripts.bench.targets import OURS


@pytest.fixture
def call(call_main):
    """Run the program: (exit code, stdout, stderr)."""
    return functools.partial(call_main, benchmark_attention)


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


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "name a suite"),
        (["vits"], "suite 'vits'"),
        (["vit", "--only", "nothing"], "--only nothing: no case matches (--list prints them)"),
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


def test_a_missing_module_is_named():
    assert presence.missing("json") is None
    assert "no_such_module cannot be imported" in presence.missing("json", "no_such_module")
