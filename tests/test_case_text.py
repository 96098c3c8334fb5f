"""The text of a case, and the options that name cases."""

import argparse
from types import SimpleNamespace

import pytest

from scripts import case_options, case_text
from scripts.bench import cases
from scripts.tune_cases import parse as parse_launch


@pytest.mark.parametrize(
    "text",
    [
        "full:B2,S9,H2,D8",
        "full:B1,S9,T4,H2,D8",
        "prefill:B1,S9,H4/2,D8,P4",
        "decode:B3,S9,T4,H4/2,D8,P4",
        "decode:B65536,S9,H1,D256,P256",
    ],
)
def test_a_text_means_the_same_to_both_programs(text):
    case, launch = cases.parse(text), parse_launch(text)
    assert case.text == launch.name == text
    assert case.uniform == (launch.seqs, launch.queries, launch.keys)
    for name in ("heads", "kv_heads", "head_dim", "page_size", "causal"):
        assert getattr(case, name) == getattr(launch, name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("decode:S8,H1", "D is missing"),
        ("decode:S8,T9,H1,D8", "9 queries over 8 keys"),
        ("decode:S8,H1,D8,P512", "page_size=512: must be a power of two up to 256"),
        ("decode:S8,H1,D264", "head_dim=264: must be a multiple of 8 from 8 to 256"),
        ("decode:S8,H0,D8", "heads=0: must be at least 1"),
        ("decode:S8,H1/2,D8", "heads=1: must be a multiple of 2 kv heads"),
        ("decode:S" + "9" * 5000 + ",H1,D8", "Exceeds the limit"),
    ],
)
@pytest.mark.parametrize("parse", [cases.parse, parse_launch])
def test_both_programs_refuse_in_the_same_words(parse, text, said):
    with pytest.raises(ValueError, match=f"^'{text}': {said}"):
        parse(text)


def test_a_field_that_a_program_does_not_have_is_unknown_to_it():
    with pytest.raises(ValueError, match="'W3' is no field"):
        case_text.read("full:S8,W3", ("full",), "S", "S")
    assert case_text.read("full:S8,W3", ("full",), "SW", "S").number("W") == 3


@pytest.mark.parametrize(
    ("argv", "left"),
    [
        ([], ["ab", "ba", "bb"]),
        (["--only", "a*"], ["ab"]),
        (["--only", "a*", "--only", "?b"], ["ab", "bb"]),
        (["--only", "A*"], []),
    ],
)
def test_only_leaves_the_cases_that_match_a_pattern(argv, left):
    parser = argparse.ArgumentParser()
    case_options.add_case_options(parser, "a case")
    args = parser.parse_args(argv)
    named = [SimpleNamespace(name=name) for name in ("ab", "ba", "bb")]
    assert [case.name for case in case_options.matching(named, args)] == left
