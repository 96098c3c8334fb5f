"""`python -m scripts.tune` in miniature: on a CPU, with the xla target's block sizes."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxattn import tuning
from jaxattn.problem import Tiles
from scripts import timing, tune, tune_cases, tune_record, tune_search
from scripts.tune_candidates import candidates, compiler_in_use

ROOT = Path(__file__).parent.parent
H200 = "NVIDIA H200"
FEW = "decode:B3,S72,H4/2,D16,P16,F32"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    """Compiling is nearly all that this takes: one call in a program, compiled once and badly."""
    monkeypatch.setattr(timing, "UNROLLED", 1)
    monkeypatch.setattr(timing, "ROUND_SECONDS", 1e-4)
    monkeypatch.setattr(timing, "wall_time", lambda *_, **__: timing.Timing((1e-3,), 1))
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the program on some small cases; gives its exit code, stdout, stderr and file."""

    def run(*options, only="decode:B3*"):
        path = tmp_path / "deep" / "tuned.json"
        fixed = ["--small", "--implementation", "xla", "--output", str(path), "--only", only]
        code = tune.main([*fixed, *options])
        text = capsys.readouterr()
        return code, text.out, text.err, json.loads(path.read_text())

    run.path = tmp_path / "deep" / "tuned.json"
    return run


def test_an_output_that_cannot_be_is_refused_before_anything_is_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "tune", lambda *_: pytest.fail("something was timed"))
    fixed = ["--small", "--implementation", "xla", "--output"]
    with pytest.raises(ValueError, match=f"--output {tmp_path}: is a folder"):
        tune.main([*fixed, str(tmp_path)])
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        tune.main([*fixed, str(tmp_path / "file" / "tuned.json")])


def test_every_candidate_is_timed_and_the_best_is_the_fastest(run):
    code, out, err, data = run(only="*")
    assert code == 0
    assert data["device"] == "cpu"
    assert set(data["cases"]) == set(tune_cases.SMALL_NAMES)
    assert len(out.splitlines()) == len(data["cases"])
    for name, case in data["cases"].items():
        wanted = candidates(tune_cases.parse(name).shape, "cpu", "xla")
        assert [tuning.parse(text) for text in case["times"]] == wanted
        assert case["best"] == min(case["times"], key=case["times"].get)
        assert case["finished"]
        assert not case["failures"]
        assert case["versions"] == tune_record.versions()
        assert all(time > 0 for time in case["times"].values())
        assert case["best"] in out
        assert f"{name}: candidate {len(wanted)} of {len(wanted)}" in err
    text = run.path.read_text()
    entries = tuning.read(text, "file")
    assert [entry.shape for entry in entries] == [
        tune_cases.parse(name).shape for name in data["cases"]
    ]
    assert not list(run.path.parent.glob(".*")), "a temporary file is left"


def test_a_second_run_times_nothing_and_says_the_same(run, monkeypatch):
    first = run("--json")
    monkeypatch.setattr(timing.Chain, "__init__", lambda *_, **__: pytest.fail("compiled again"))
    second = run("--json")
    assert second[1] == first[1]
    assert second[3] == first[3]
    assert json.loads(second[1])["case"] == FEW


def test_other_versions_start_a_case_anew(run, monkeypatch):
    before = run()[3]["cases"][FEW]
    monkeypatch.setattr(tune_record, "versions", lambda: {"jax": "9", "jaxlib": "9", "triton": "9"})
    after = run()[3]["cases"][FEW]
    assert after["versions"]["jax"] == "9"
    assert after["times"].keys() == before["times"].keys()
    assert after["times"] != before["times"]


def test_candidates_that_are_wrong_or_raise_are_recorded_and_never_the_best(run, monkeypatch):
    real = tune_cases.call

    def call(case, **options):
        tiles, right = options.get("tiles"), real(case, **options)
        if tiles == Tiles(1, 16):
            return lambda *arrays: right(*arrays) * 1.001
        if tiles == Tiles(1, 32):
            return lambda *arrays: right(*arrays) * jnp.nan
        if tiles == Tiles(1, 64):
            raise RuntimeError("too many\n  registers")
        return right

    monkeypatch.setattr(tune_cases, "call", call)
    code, _, err, data = run()
    assert code == 0
    case = data["cases"][FEW]
    assert list(case["times"]) == ["1x128"]
    assert case["best"] == "1x128"
    assert case["failures"]["1x64"] == "RuntimeError: too many registers"
    assert case["failures"]["1x16"].startswith("wrong: a row is off by 0.001 ")
    assert case["failures"]["1x32"].startswith("wrong: a row is off by nan ")
    assert "1x64 failed: RuntimeError: too many registers" in err


def test_a_candidate_that_takes_the_device_with_it_ends_the_run_and_is_not_tried_again(
    run, monkeypatch
):
    real, lost, tried = timing.Chain.time, [], []

    def time(chain, rounds):
        tried.append(chain)
        if len(tried) == 2:
            lost.append(True)
            raise RuntimeError("an illegal memory access was encountered")
        return real(chain, rounds)

    zeros = jnp.zeros

    def broken(*args, **kwargs):
        if lost:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        return zeros(*args, **kwargs)

    monkeypatch.setattr(timing.Chain, "time", time)
    monkeypatch.setattr(jnp, "zeros", broken)
    code, out, err, data = run()
    assert (code, out) == (1, "")
    assert err.endswith("after: an illegal memory access was encountered\n")
    case = data["cases"][FEW]
    assert len(case["times"]) == len(case["failures"]) == 1
    lost.clear()
    code, _, _, data = run()
    after = data["cases"][FEW]
    assert code == 0
    assert after["failures"] == case["failures"]
    assert len(after["times"]) == 3


def test_a_case_that_nothing_can_do_has_no_best(run, monkeypatch):
    monkeypatch.setattr(tune_search, "TOLERANCE", {"float32": -1.0})
    _, out, _, data = run()
    assert data["cases"][FEW]["best"] is None
    assert out == f"{FEW:<52} no candidate works\n"
    assert tuning.read(run.path.read_text(), "file") == ()


def test_a_spent_budget_keeps_what_was_measured_and_the_next_run_goes_on(run, monkeypatch):
    clock = iter(range(10_000))
    monkeypatch.setattr(tune_search.time, "monotonic", lambda: float(next(clock)))
    code, out, err, data = run("--budget", "8")
    assert code == 0
    assert out == ""
    assert "stopped by --budget in case 1 of 1" in err
    case = data["cases"][FEW]
    assert 1 <= len(case["times"]) < 4
    assert case["best"] in case["times"]
    assert not case["finished"]
    _, out, _, data = run()
    after = data["cases"][FEW]
    assert after["finished"]
    assert len(after["times"]) == 4
    assert case["times"].keys() < after["times"].keys()


def test_ctrl_c_leaves_a_file_that_is_whole(run, monkeypatch, capsys):
    calls, real = [], timing.Chain.time

    def time(chain, rounds):
        calls.append(rounds)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(chain, rounds)

    monkeypatch.setattr(timing.Chain, "time", time)
    with pytest.raises(KeyboardInterrupt):
        run()
    case = json.loads(run.path.read_text())["cases"][FEW]
    assert len(case["times"]) == 2
    assert not case["finished"]


@pytest.mark.parametrize("known", ["nothing", "others", "other versions"])
def test_ctrl_c_before_anything_is_timed_leaves_what_there_was(run, monkeypatch, known):
    if known == "others":
        run(only="prefill*")
    if known == "other versions":
        run()
        monkeypatch.setattr(tune_record, "versions", lambda: {"jax": "9"})
    before = run.path.read_bytes() if run.path.exists() else None

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(timing.Chain, "time", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert [*run.path.parent.iterdir()] == ([] if before is None else [run.path])
    assert before is None or run.path.read_bytes() == before


def test_the_best_are_timed_again_for_longer(run, monkeypatch):
    """A rough time that was too good does not win."""
    rough = {16: 1e-3, 32: 2e-3, 64: 3e-3, 128: 4e-3}
    longer = {16: 9e-3, 32: 8e-3, 64: 7e-3, 128: 5e-3}
    asked = []

    class Chain:
        def __init__(self, call, *arrays, guess=None):
            self.width = call.keywords["tiles"].block_k
            self.first = lambda: tune_cases.call(
                tune_cases.parse(FEW), implementation="xla", tiles=Tiles(1, 128)
            )(*arrays)

        def time(self, rounds):
            known = rough if rounds == tune_search.ROUGH_ROUNDS else longer
            asked.append((self.width, rounds))
            return timing.Timing((known[self.width],), 1)

    monkeypatch.setattr(tune_search, "Chain", Chain)
    _, _, _, data = run()
    assert [width for width, rounds in asked if rounds == tune_search.LONG_ROUNDS] == [
        16, 32, 64, 128,
    ]  # fmt: skip
    assert data["cases"][FEW]["times"] == {
        "1x16": 9000.0, "1x32": 8000.0, "1x64": 7000.0, "1x128": 5000.0,
    }  # fmt: skip
    assert data["cases"][FEW]["best"] == "1x128"


def test_the_formula_is_compared_with_the_best(run):
    run()
    code, out, err, data = run("--check-formula", "--json")
    line = json.loads(out)
    shape = tune_cases.parse(FEW).shape
    formula = dataclasses.replace(tuning.formula(shape, "cpu"), compiler=compiler_in_use())
    assert line["formula"] == tuning.spell(formula)
    assert line["formula"] in data["cases"][FEW]["times"], "it was not timed"
    assert line["ratio"] >= 1
    assert line["slow"] == (line["ratio"] > tune.SLOW)
    assert code == (1 if line["slow"] else 0)
    assert f"{int(line['slow'])} of 1 are slower than 1.1 times the best" in err
    times = data["cases"][FEW]["times"]
    fast, slow = min(times.values()) / 2, max(times.values()) * 2
    for time, expected in ((fast, 0), (slow, 1)):
        times[line["formula"]] = time
        data["cases"][FEW]["best"] = min(times, key=times.get)
        run.path.write_text(json.dumps(data))
        code, out, _, _ = run("--check-formula")
        assert code == expected
        assert out.endswith(" SLOW\n") == bool(expected)


def test_comparing_with_the_formula_stops_by_the_budget(run):
    run()
    before = run.path.read_bytes()
    code, out, err, _ = run("--check-formula", "--budget", "1e-9")
    assert (code, out) == (0, "")
    assert err.endswith("tune: stopped by --budget in case 1 of 1\n")
    assert run.path.read_bytes() == before


def test_a_file_of_a_device_that_is_not_here_is_compared_by_what_it_has(tmp_path, capsys):
    case = tune_cases.parse("decode:B16,S8192,H32/8,D128,P16")
    formula = tuning.spell(tuning.formula(case.shape, H200))
    path = tmp_path / "h200.json"
    entry = {"shape": vars(case.shape), "versions": {}, "date": "2026-11-30", "finished": True}
    for times, code, end in (
        ({formula: 10.5, "1x32 w2 s4 p512": 10.0}, 0, " 1.05\n"),
        ({formula: 11.5, "1x32 w2 s4 p512": 10.0}, 1, " 1.15 SLOW\n"),
        ({"1x32 w2 s4 p512": 10.0}, 1, " not timed SLOW\n"),
    ):
        cases = {case.name: entry | {"best": "1x32 w2 s4 p512", "times": times, "failures": {}}}
        path.write_text(json.dumps({"format": 1, "device": H200, "cases": cases}))
        assert tune.main(["--check-formula", "--output", str(path)]) == code
        assert capsys.readouterr().out.endswith(end)


def test_a_file_of_another_device_is_not_touched(run):
    run()
    text = run.path.read_text().replace('"device": "cpu"', '"device": "NVIDIA H200"')
    run.path.write_text(text)
    with pytest.raises(ValueError, match="is of 'NVIDIA H200', this device is 'cpu'"):
        run()
    assert run.path.read_text() == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "tuning needs a GPU, JAX has 'cpu' (--implementation xla --small tries"),
        (["--only", "x*"], "--only x*: no case matches"),
        (["--shapes", "few b1"], "'few b1': must be KIND:FIELD"),
        (["--implementation", "xla"], "--implementation xla needs --output"),
        (["--budget", "0"], "--budget=0: must be above 0"),
        (["--threads", "0"], "--threads=0: must be at least 1"),
        (["--small", "--shapes", FEW], "--small and --shapes both name the cases"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(options, message):
    done = subprocess.run(
        [sys.executable, "-m", "scripts.tune", *options],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tune: error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_the_cases_can_be_listed(capsys):
    assert tune.main(["--list", "--only", "decode:*,D256,*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = [n for n in tune_cases.NAMES if n.startswith("decode:") and ",D256," in n]
    assert lines == wanted
    assert len(wanted) == 3
