"""What the engine refuses before anything is compiled, and how its errors name it."""

import numpy as np
import pytest
import toy_lm

from jaxattn.engine import Engine, EngineConfig, SamplingParams


def engine(**sizes):
    return Engine(
        toy_lm.step,
        toy_lm.weights(),
        toy_lm.CACHE_SPEC,
        EngineConfig(**{"max_model_len": 32, "num_pages": 2, **sizes}),
        vocab_size=toy_lm.VOCAB,
        tokenizer=toy_lm.Tokenizer(),
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_new_tokens", 1.5, "max_new_tokens must be an integer, got 1.5"),
        ("max_new_tokens", True, "max_new_tokens must be an integer, got True"),
        ("max_new_tokens", "5", "max_new_tokens must be an integer, got '5'"),
        ("top_k", 2.0, "top_k must be an integer"),
        ("seed", 1.0, "seed must be an integer"),
        ("temperature", "1", "temperature must be a number"),
        ("temperature", True, "temperature must be a number"),
        ("temperature", 10**400, "temperature must be a number that a float can hold"),
        ("top_p", None, "top_p must be a number"),
        ("min_p", 1j, "min_p must be a number"),
        ("stop", "ab", "stop must be a list or a tuple of strings, got 'ab'"),
        ("stop", 5, "stop must be a list or a tuple of strings, got 5"),
        ("stop", ("a", b"b"), "stop must be a tuple of strings"),
        ("stop_token_ids", 5, "stop_token_ids must be a list or a tuple of ids"),
        ("stop_token_ids", (1.0,), "each of stop_token_ids must be an integer, got 1.0"),
        ("stop_token_ids", (-1,), "stop_token_ids must be ids of at least 0"),
        ("ignore_eos", 1, "ignore_eos must be True or False, got 1"),
    ],
)
def test_params_of_the_wrong_kind(field, value, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**{field: value})


def test_numbers_of_numpy_and_lists_are_params():
    params = SamplingParams(
        max_new_tokens=np.int64(3), temperature=np.float32(0.5), top_p=1, stop=["a"],
        stop_token_ids=[np.int32(4)],
    )  # fmt: skip
    assert params == SamplingParams(
        max_new_tokens=3, temperature=0.5, top_p=1.0, stop=("a",), stop_token_ids=(4,)
    )
    assert type(params.max_new_tokens) is int
    assert type(params.stop_token_ids[0]) is int


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_pages": 2.0}, "num_pages must be an integer, got 2.0"),
        ({"max_num_seqs": True}, "max_num_seqs must be an integer"),
        ({"page_size": "16"}, "page_size must be an integer"),
        ({"num_pages": 10**30}, "num_pages must be at most 2147483647"),
        ({"max_model_len": 2**31}, "max_model_len must be at most 2147483647"),
        ({"num_pages": 2**27}, "num_pages must be at most 134217727, so that the slots of pages"),
    ],
)
def test_sizes_that_no_device_can_hold(sizes, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**{"max_model_len": 64, "num_pages": 8, **sizes})
    assert EngineConfig(max_model_len=64, num_pages=2**27 - 1).page_size == 16


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (b"ab", "must be text or a list of ids, got b'ab'"),
        (5, "must be text or a list of ids, got 5"),
        ([1, 2.7], "each id of prompt {} must be an integer, got 2.7"),
        ([1, True], "each id of prompt {} must be an integer, got True"),
        ([toy_lm.VOCAB], "prompt {} has the id 61"),
        ([1] * 32, "prompt {} has 32 tokens"),
        ([1] * 20, "prompt {}: the request may need 2 cache pages"),
    ],
)
def test_a_bad_prompt_is_named_by_its_place_in_the_call(prompt, message):
    """Also by an engine that has served others."""
    used = engine(num_pages=1)
    for _ in range(3):
        used.abort(used.add_request([1], SamplingParams(max_new_tokens=1)))
    with pytest.raises(ValueError, match=message.format(1)):
        used.generate([[1], prompt], SamplingParams(max_new_tokens=4))
    assert not used.has_work
    with pytest.raises(ValueError, match=message.format(4)):  # one was queued, and dropped
        used.add_request(prompt, SamplingParams(max_new_tokens=4))


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ("ab", SamplingParams(), "prompts must be a list of prompts, got 'ab'"),
        ([[1]], [], "params must have an entry for each of the 1 prompts, got 0"),
        ([[1]], None, "params must be SamplingParams, or a list of them, got None"),
        ([[1]], [{"top_k": 1}], "params of prompt 0 must be SamplingParams"),
        ([[1]], SamplingParams(stop_token_ids=(61,)), "must be ids from 0 to 60, got 61"),
    ],
)
def test_calls_that_do_not_fit_together(prompts, params, message):
    refusing = engine()
    with pytest.raises(ValueError, match=message):
        refusing.generate(prompts, params)
    with pytest.raises(ValueError, match=message):
        list(refusing.stream(prompts, params))
    assert not refusing.has_work


def test_no_prompts_compile_nothing():
    idle = engine()

    def on_compile(*_):
        pytest.fail("compiled for nothing")

    assert idle.generate([], on_compile=on_compile) == []
    assert idle.generate([], [], on_compile) == []


class HoldsToTheEnd(toy_lm.Tokenizer):
    """A tokenizer whose text comes out when it is flushed, as half a character's does."""

    def stream(self):
        return self

    def push(self, token_id):
        return ""

    def flush(self):
        return "text END"


def test_a_stop_string_that_only_the_end_completes():
    ending = engine()
    ending._tokenizer = HoldsToTheEnd()
    params = SamplingParams(max_new_tokens=1, stop=("END",))
    both = [params, SamplingParams(max_new_tokens=1, stop=("BEND",))]
    stopped, cut = ending.generate([[1], [1]], both)
    assert (stopped.text, stopped.finish_reason) == ("text ", "stop")
    assert (cut.text, cut.finish_reason) == ("text END", "length")
