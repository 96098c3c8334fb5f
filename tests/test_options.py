"""The options of an engine: what they become, and errors that name flags."""

import argparse
import re
from types import SimpleNamespace

import pytest
import toy_lm

from scripts import console, generate, options


def arguments(*argv):
    parser = argparse.ArgumentParser()
    options.add_model_options(parser)
    options.add_engine_options(parser)
    return parser.parse_args(argv)


def engine_for(*argv, max_model_len=40, num_seqs=3):
    loaded = SimpleNamespace(
        step=toy_lm.step,
        params=toy_lm.weights(),
        cache_spec=toy_lm.CACHE_SPEC,
        config=SimpleNamespace(vocab_size=toy_lm.VOCAB),
        tokenizer=SimpleNamespace(eos_token_ids=()),
    )
    return options.make_engine(arguments(*argv), loaded, max_model_len, num_seqs)


@pytest.mark.parametrize(
    "argv", [[], ["--memory-fraction", "1"], ["--num-pages", "100000000"]], ids=str
)
def test_the_cache_is_no_larger_than_the_requests(argv):
    """All of a machine's memory would be taken, and its owner's process killed."""
    assert engine_for(*argv).config.num_pages == 3 * 3
    assert engine_for(*argv, "--max-num-seqs", "2").config.num_pages == 2 * 3


def test_fewer_pages_are_what_was_asked_for():
    assert engine_for("--num-pages", "4").config.num_pages == 4


def test_more_requests_than_tokens_in_a_step():
    assert engine_for("--max-num-seqs", "600").config.max_num_batched_tokens == 600
    assert engine_for("--max-num-seqs", "6").config.max_num_batched_tokens == 512
    options.check_engine_options(arguments("--max-num-seqs", "600"))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "num_pages must be 1, got 0 (page_size 4)",
            "--num-pages must be 1, got 0 (--page-size 4)",
        ),
        ("temperature must be 0", "--temperature must be 0"),
        ("the temperature must be 0", "the temperature must be 0"),
        ("stopped", "stopped"),
        ("a/top_p/top_k.gguf: my_num_pages", "a/top_p/top_k.gguf: my_num_pages"),
    ],
)
def test_errors_name_flags(message, expected):
    whole = f"^{re.escape(expected)}$"
    with pytest.raises(ValueError, match=whole), options.flags_named():
        raise ValueError(message)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("Unknown backend foo"), "Unknown backend foo"),
        (AssertionError(), "it finds no device"),
    ],
    ids=str,
)
def test_a_platform_that_jax_cannot_run_on(monkeypatch, error, why):
    def fail():
        raise error

    monkeypatch.setattr("jax.default_backend", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "foo")
    with pytest.raises(
        ValueError, match=f"JAX_PLATFORMS is 'foo', and JAX cannot run on it: {why}"
    ):
        options._backend()
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(type(error)):
        options._backend()


def lengths(context, *prompt_lens, max_model_len=None, max_new_tokens=4):
    args = SimpleNamespace(max_model_len=max_model_len, max_new_tokens=max_new_tokens)
    return generate._max_model_len(args, context, [[0] * length for length in prompt_lens])


def test_a_prompt_that_does_not_fit_is_told_what_it_does_not_fit():
    assert lengths(64, 5, 12) == 16
    assert lengths(64, 63) == 64
    assert lengths(64, 5, max_model_len=6) == 6
    with pytest.raises(ValueError, match=r"prompt 1 has 64 tokens.* the model's context of 64$"):
        lengths(64, 5, 64)
    with pytest.raises(ValueError, match=r"prompt 0 has 6 tokens.* --max-model-len 6$"):
        lengths(64, 6, max_model_len=6)
    with pytest.raises(ValueError, match=r"--max-model-len must be at most .* 64, got 65"):
        lengths(64, 6, max_model_len=65)
    with pytest.raises(ValueError, match="the model's context is 1: it must hold"):
        lengths(1, 1)


@pytest.mark.parametrize(
    "argv", [["--seed", "1"], ["--top-k", "5"], ["--top-p", ".9"], ["--min-p", ".1"]], ids=str
)
def test_what_has_no_effect_is_refused(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        generate.parse(["--prompt", "a", *argv])
    assert exit_.value.code == console.BAD_INPUT
    assert f"{argv[0]} needs --temperature above 0" in capsys.readouterr().err
    generate.parse(["--prompt", "a", *argv, "--temperature", "1"])
