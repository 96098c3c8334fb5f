"""The cases of `python -m scripts.benchmark_attention`: texts, suites and targets."""

import dataclasses
import functools

import pytest
from benchmark_shapes import SHAPES

from scripts import benchmark_attention
from scripts.bench import suites
from scripts.bench.cases import parse
from scripts.bench.peers import PEERS, presence

ALL = suites.suite("all")


@pytest.fixture
def call(call_main):
    """Run the program: (exit code, stdout, stderr)."""
    return functools.partial(call_main, benchmark_attention)


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
        ("decode:S8", "H, D are missing"),
        ("decode:S8,H1,D8,V8", "'V8' is no field"),
        ("decode:S8,,H1,D8", "'' is no field"),
        ("decode:S8,H2/0,D8", "kv_heads=0"),
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


def test_list_names_cases_and_targets(call):
    code, out, _ = call("decode", "--list")
    assert code == 0
    assert "decode B16 ctx 8192: decode:B16,S8192,H32/8,D128,P16\n" in out
    assert ">= 1.1 x fa3 paged" in out
