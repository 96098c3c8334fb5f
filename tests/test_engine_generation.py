"""The engine end to end on a small attention model, against that model without an engine.

One engine is compiled a page size; budgets and page counts are then varied by its scheduler, which
only ever uses less than what was compiled.
"""

import functools

import jax
import numpy as np
import pytest
import toy_lm
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxattn.engine import Engine, EngineConfig, SamplingParams
from jaxattn.engine import scheduler as scheduler_module
from jaxattn.engine.buckets import Bucket, power_of_two
from jaxattn.engine.scheduler import Scheduler

EOS = 13
LONGEST = 96
NEW = 24
GREEDY = SamplingParams(max_new_tokens=NEW)
SAMPLED = SamplingParams(max_new_tokens=NEW, temperature=0.8, top_k=40, top_p=0.95, min_p=0.01)


@functools.cache
def engine_of(page_size=16, max_num_seqs=4):
    """A warm engine. Its tests must leave it without requests."""
    config = EngineConfig(
        max_model_len=LONGEST,
        num_pages=max_num_seqs * -(-LONGEST // page_size),
        page_size=page_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
    )
    engine = Engine(
        toy_lm.step,
        toy_lm.weights(),
        toy_lm.CACHE_SPEC,
        config,
        vocab_size=toy_lm.VOCAB,
        tokenizer=toy_lm.Tokenizer(),
        eos_token_ids=(EOS,),
    )
    seqs = power_of_two(max_num_seqs)
    engine.warm_up([Bucket(seqs, seqs), Bucket(64, seqs)])
    return engine


def limit(engine, *, num_pages=None, budget=None, max_num_seqs=None):
    """Give the engine a scheduler with less than it was compiled for."""
    config = engine.config
    engine.schedulers[0] = Scheduler(
        num_pages or config.num_pages,
        config.page_size,
        max_num_seqs or config.max_num_seqs,
        budget or config.max_num_batched_tokens,
    )
    return engine


def random_prompts(count, seed=0, longest=60):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, toy_lm.VOCAB, rng.integers(1, longest + 1)).tolist() for _ in range(count)
    ]


@functools.cache
def oracle(prompt, new=NEW):
    return toy_lm.greedy(list(prompt), new, EOS)


def check(engine, prompts, params=GREEDY):
    completions = engine.generate(prompts, params)
    for prompt, completion in zip(prompts, completions, strict=True):
        expected = oracle(tuple(prompt), params.max_new_tokens)
        assert completion.token_ids == expected
        assert completion.finish_reason == ("stop" if expected[-1] == EOS else "length")
    assert not engine.has_work
    assert engine.schedulers[0].pages.num_free == engine.schedulers[0].pages.num_pages


def test_a_prompt_alone_and_among_32_others():
    engine = limit(engine_of(max_num_seqs=33))
    prompts = random_prompts(33)
    check(engine, prompts)
    check(engine, prompts[:1])
    check(engine, prompts[20:21])
    assert any(oracle(tuple(prompt))[-1] == EOS for prompt in prompts)  # both ends are seen
    assert any(len(oracle(tuple(prompt))) == NEW for prompt in prompts)


@pytest.fixture
def no_headroom(monkeypatch):
    """Admit requests as soon as their prompts fit: they then run out of pages as they grow."""
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 0)


@pytest.mark.parametrize("page_size", [1, 2, 16, 64, 256])
def test_any_page_size_with_chunks_and_preemption(page_size, no_headroom):
    engine = engine_of(page_size)
    # Two start together in the few pages, and do not fit any more as they grow.
    prompts = [(prompt * 60)[:60] for prompt in random_prompts(6, seed=page_size)]
    check(limit(engine), prompts)
    check(limit(engine, num_pages=2 * -(-60 // page_size), budget=7), prompts)
    if page_size < 256:  # one page holds a whole request there, and never needs another
        assert engine.schedulers[0].num_preemptions > 0


@pytest.mark.parametrize("budget", [4, 5, 13, 32, 64])
def test_any_chunk_budget(budget):
    check(limit(engine_of(), budget=budget), random_prompts(6, seed=budget))


def test_forced_preemption_among_many(no_headroom):
    engine = limit(engine_of(max_num_seqs=33), num_pages=12)
    check(engine, random_prompts(20, seed=5, longest=20))
    assert engine.schedulers[0].num_preemptions >= 3
    assert engine.stats.preemptions == engine.schedulers[0].num_preemptions


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 8),
    st.integers(6, 24),
    st.integers(1, 4),
    st.integers(0, 40),
)
def test_any_workload_with_late_arrivals(seed, count, num_pages, max_num_seqs, extra):
    engine = limit(
        engine_of(), num_pages=num_pages, budget=max_num_seqs + extra, max_num_seqs=max_num_seqs
    )
    prompts = random_prompts(count, seed)
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.integers(0, 30, count)).tolist()
    got, index_of = {}, {}
    step = 0
    while arrivals or engine.has_work:
        while arrivals and arrivals[0] <= step:
            arrivals.pop(0)
            index_of[engine.add_request(prompts[len(index_of)], GREEDY)] = len(index_of)
        for output in engine.step():
            got.setdefault(index_of[output.index], []).append(output.token_id)
        step += 1
    assert got == {i: oracle(tuple(prompt)) for i, prompt in enumerate(prompts)}


def test_a_seed_gives_the_same_text_whatever_the_batch(no_headroom):
    prompts = random_prompts(12, seed=9)
    params = [
        SamplingParams(max_new_tokens=NEW, temperature=0.5 + i / 10, top_p=0.9, seed=i * 2**40 + i)
        for i in range(12)
    ]
    engine = limit(engine_of(max_num_seqs=33))
    together = engine.generate(prompts, params)
    alone = [engine.generate([prompt], p)[0] for prompt, p in zip(prompts, params, strict=True)]
    small = limit(engine_of(), num_pages=9, budget=9)
    squeezed = small.generate(prompts, params)
    assert small.schedulers[0].num_preemptions > 0
    for a, b, c in zip(together, alone, squeezed, strict=True):
        assert a.token_ids == b.token_ids == c.token_ids
    greedy = engine.generate(prompts, GREEDY)
    assert sum(a.token_ids != g.token_ids for a, g in zip(together, greedy, strict=True)) >= 10


def test_seeds_differ_and_no_seed_means_a_new_one():
    engine = limit(engine_of(max_num_seqs=33))
    prompt = random_prompts(1, seed=3)[0]

    def texts(seeds):
        params = [
            SamplingParams(max_new_tokens=NEW, temperature=1.5, seed=seed, ignore_eos=True)
            for seed in seeds
        ]
        return [tuple(c.token_ids) for c in engine.generate([prompt] * len(seeds), params)]

    assert len(set(texts([1, 2, 3, 4]))) == 4
    assert len(set(texts([5, 5, 5]))) == 1
    assert len(set(texts([None] * 4))) == 4


def test_a_greedy_request_is_the_same_beside_sampled_ones():
    engine = limit(engine_of(max_num_seqs=33))
    prompts = random_prompts(8, seed=11)
    params = [GREEDY if i % 2 else SAMPLED for i in range(8)]
    for i, completion in enumerate(engine.generate(prompts, params)):
        if i % 2:
            assert completion.token_ids == oracle(tuple(prompts[i]))


def test_streaming_gives_every_token_once_in_order():
    engine = limit(engine_of())
    prompts = random_prompts(5, seed=21)
    outputs = list(engine.stream(prompts, GREEDY))
    for index, prompt in enumerate(prompts):
        mine = [output for output in outputs if output.index == index]
        assert [output.token_id for output in mine] == oracle(tuple(prompt))
        assert [o.finish_reason is None for o in mine] == [True] * (len(mine) - 1) + [False]
        ids = [output.token_id for output in mine]
        expected = toy_lm.Tokenizer().decode(ids[:-1] if ids[-1] == EOS else ids)
        assert "".join(output.text for output in mine) == expected


def long_text(engine):
    """A prompt whose text goes on for NEW tokens, with the text's ids."""
    for prompt in random_prompts(40, seed=31):
        ids = oracle(tuple(prompt))
        if len(ids) == NEW and max(ids) < 58:
            return prompt, ids, toy_lm.Tokenizer().decode(ids)
    raise AssertionError("no such prompt")


def test_a_stop_string_ends_the_text_before_itself():
    engine = limit(engine_of())
    prompt, ids, text = long_text(engine)
    stop = text[8:11]
    params = SamplingParams(max_new_tokens=NEW, stop=("nowhere", stop))
    (completion,) = engine.generate([prompt], params)
    assert completion.finish_reason == "stop"
    assert completion.text == text[: text.index(stop)]
    assert completion.token_ids == ids[: text.index(stop) + 3]
    # What may become a stop string but does not is given out in the end.
    params = SamplingParams(max_new_tokens=NEW, stop=(text[-2:] + "xyz",))
    (completion,) = engine.generate([prompt], params)
    assert (completion.text, completion.finish_reason) == (text, "length")


def test_stop_tokens_and_ignored_end_of_text():
    engine = limit(engine_of())
    prompt, ids, text = long_text(engine)
    params = SamplingParams(max_new_tokens=NEW, stop_token_ids=(ids[5],))
    (completion,) = engine.generate([prompt], params)
    first = ids.index(ids[5])
    assert completion.token_ids == ids[: first + 1]
    assert completion.text == text[:first]
    assert completion.finish_reason == "stop"

    ends = next(p for p in random_prompts(40, seed=41) if oracle(tuple(p))[-1] == EOS)
    (completion,) = engine.generate([ends], SamplingParams(max_new_tokens=NEW, ignore_eos=True))
    assert completion.token_ids == toy_lm.greedy(ends, NEW)
    assert len(completion.token_ids) == NEW


def test_the_context_ends_a_request_with_length():
    engine = limit(engine_of())
    prompt = random_prompts(1, seed=51, longest=1)[0] * (LONGEST - 3)
    params = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
    (completion,) = engine.generate([prompt], params)
    assert completion.token_ids == toy_lm.greedy(prompt, 3)
    assert completion.finish_reason == "length"


def test_text_prompts_are_encoded():
    engine = limit(engine_of())
    (completion,) = engine.generate(["hello world"], GREEDY)
    assert completion.token_ids == oracle(tuple(toy_lm.Tokenizer().encode("hello world")))


def test_abort_and_closing_the_stream_free_everything():
    engine = limit(engine_of())
    prompts = random_prompts(6, seed=61)
    stream = engine.stream(prompts, SamplingParams(max_new_tokens=NEW, ignore_eos=True))
    next(stream)
    with pytest.raises(RuntimeError, match="without other requests"):
        engine.generate(prompts)
    stream.close()
    assert not engine.has_work
    keep, drop = (engine.add_request(prompt, GREEDY) for prompt in prompts[:2])
    engine.step()
    engine.abort(drop)
    engine.abort(drop)
    engine.abort(10**9)
    ids = [output for _ in range(NEW) for output in engine.step()]
    assert {output.index for output in ids} == {keep}
    assert engine.schedulers[0].pages.num_free == engine.schedulers[0].pages.num_pages


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "is empty"),
        ("", "is empty"),
        ([1] * LONGEST, f"has {LONGEST} tokens: it must have from 1 to {LONGEST - 1}"),
        ([1, toy_lm.VOCAB], f"has the id {toy_lm.VOCAB}: ids must be from 0 to"),
        ([-1], "has the id -1"),
    ],
)
def test_a_bad_prompt_is_refused_and_leaves_nothing(prompt, message):
    engine = limit(engine_of())
    with pytest.raises(ValueError, match=message):
        engine.generate([[1, 2], prompt])
    assert not engine.has_work
    with pytest.raises(ValueError, match=message):
        engine.add_request(prompt)
    check(engine, random_prompts(1))


def test_a_request_too_large_for_the_cache_is_refused():
    engine = limit(engine_of(), num_pages=3)
    with pytest.raises(ValueError, match=r"may need 4 cache pages.*num_pages is 3"):
        engine.generate([[1] * 40], SamplingParams(max_new_tokens=20))
    assert not engine.has_work


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_pages": 0}, "num_pages must be at least 1, got 0"),
        ({"max_model_len": 1}, "max_model_len must be at least 2"),
        ({"page_size": 24}, "page_size must be a power of two from 1 to 256, got 24"),
        ({"page_size": 512}, "page_size must be a power of two"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 31}, r"at least max_num_seqs \(32\)"),
    ],
)
def test_bad_sizes_are_refused_by_name(sizes, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(**{"max_model_len": 64, "num_pages": 8, **sizes})


def test_nothing_compiles_after_warm_up():
    engine = limit(engine_of())
    compiles = []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            compiles.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        engine.generate(random_prompts(9, seed=71), SAMPLED)
        engine.generate(random_prompts(2, seed=72), GREEDY)
        assert compiles == []
        jax.jit(lambda x: x * 3 + 1)(np.float32(2))
        assert compiles, "the listener must hear a compile, or the test means nothing"
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_a_step_without_a_bucket_is_refused():
    engine = Engine(
        toy_lm.step,
        toy_lm.weights(),
        toy_lm.CACHE_SPEC,
        EngineConfig(max_model_len=32, num_pages=2),
        vocab_size=toy_lm.VOCAB,
    )
    engine.add_request([1, 2, 3])
    with pytest.raises(RuntimeError, match="3 tokens of 1 sequences fits no compiled bucket"):
        engine.step()
    with pytest.raises(ValueError, match=r"stop .* needs a tokenizer"):
        engine.add_request([1], SamplingParams(stop=("x",)))
    with pytest.raises(ValueError, match="no tokenizer"):
        engine.add_request("text")


def test_logits_that_are_not_finite_stop_the_engine():
    weights = dict(toy_lm.weights())
    weights["logits"] = weights["logits"] * np.float32(np.nan)
    engine = Engine(
        toy_lm.step,
        weights,
        toy_lm.CACHE_SPEC,
        EngineConfig(max_model_len=32, num_pages=2),
        vocab_size=toy_lm.VOCAB,
    )
    with pytest.raises(FloatingPointError, match="request 0 at position 1 are not finite"):
        engine.generate([[1]])
    for _ in range(2):
        engine.add_request([1])
    with pytest.raises(FloatingPointError, match="request 1"):
        engine.step()
    assert not engine.has_work
    assert engine.step() == []


def test_stats_count_every_token():
    engine = limit(engine_of())
    before = engine.stats.prefill_tokens, engine.stats.decode_tokens
    prompts = random_prompts(3, seed=81)
    completions = engine.generate(prompts, GREEDY)
    assert engine.stats.prefill_tokens - before[0] == sum(map(len, prompts))
    # The first token of each comes out of its prefill.
    generated = sum(len(completion.token_ids) - 1 for completion in completions)
    assert engine.stats.decode_tokens - before[1] == generated
    assert engine.stats.prefill_rate > 0
    assert engine.stats.decode_rate > 0
