"""SmolLM2-135M-Instruct through the engine: the ids of transformers, however the work is cut.

The goldens are greedy, 64 tokens each, end-of-text ignored; tests/golden/make_smollm2.py made them.
"""

import json
from pathlib import Path

import pytest

import models
from jaxattn.engine import Engine, EngineConfig, SamplingParams
from jaxattn.engine import scheduler as scheduler_module
from jaxattn.engine.buckets import Bucket
from jaxattn.engine.scheduler import Scheduler
from models.smollm2 import fetch_smollm2

pytestmark = pytest.mark.slow

GOLDEN = json.loads((Path(__file__).parent / "golden" / "smollm2.json").read_text("utf-8"))
RECORDS = GOLDEN["records"]
PARAMS = SamplingParams(max_new_tokens=64, ignore_eos=True)
LONGEST = 384


def make_engine(loaded):
    config = EngineConfig(
        max_model_len=LONGEST, num_pages=LONGEST, max_num_seqs=32, max_num_batched_tokens=256
    )
    engine = Engine(
        loaded.step,
        loaded.params,
        loaded.cache_spec,
        config,
        vocab_size=loaded.config.vocab_size,
        tokenizer=loaded.tokenizer,
        eos_token_ids=loaded.config.eos_token_ids,
    )
    engine.warm_up([Bucket(1, 1), Bucket(8, 8), Bucket(32, 32), Bucket(256, 32)])
    return engine


def check(engine, names=None, *, num_pages=None, budget=256):
    records = [record for record in RECORDS if names is None or record["name"] in names]
    engine.schedulers[0] = Scheduler(num_pages or engine.config.num_pages, 16, 32, budget)
    completions = engine.generate([record["prompt_ids"] for record in records], PARAMS)
    wrong = [
        record["name"]
        for record, completion in zip(records, completions, strict=True)
        if completion.token_ids != record["ids"]
    ]
    assert wrong == []
    return completions


def test_ids_however_the_work_is_cut(monkeypatch):
    """One test, since its engine takes far longer to compile than to run."""
    try:
        loaded = models.load(fetch_smollm2(), dtype="float32")
    except ConnectionError as error:
        pytest.skip(f"needs the SmolLM2 weights: {error}")
    engine = make_engine(loaded)
    all_together(engine, loaded.tokenizer)
    for name in ("capital", "emoji_joined", "chat_haiku"):
        check(engine, [name])
    # The 311 tokens of the longest come in 40 and more chunks, beside decodes.
    check(engine, ["one_letter", "long", "digits", "spaces", "chinese"], budget=8)
    chat_ends_by_itself(engine, loaded.tokenizer)
    monkeypatch.setattr(scheduler_module, "HEADROOM_TOKENS", 0)
    names = ["capital", "json", "sum", "russian", "arabic", "emoji", "tab", "chat_code"]
    check(engine, names, num_pages=20, budget=64)
    assert engine.schedulers[0].num_preemptions >= 3


def all_together(engine, tokenizer):
    assert len(RECORDS) >= 20
    completions = check(engine)
    for record, completion in zip(RECORDS, completions, strict=True):
        # transformers decodes all ids at once; the engine one by one, without special tokens.
        assert completion.text == tokenizer.decode(record["ids"], skip_special=True)


def chat_ends_by_itself(engine, tokenizer):
    """The two goldens that were made apart from transformers, in NumPy."""
    engine.schedulers[0] = Scheduler(engine.config.num_pages, 16, 32, 256)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.encode(tokenizer.apply_chat_template(question), add_special=False)
    assert len(ids) == 37
    (completion,) = engine.generate([ids], SamplingParams(max_new_tokens=64))
    assert completion.token_ids == [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert completion.text == "The capital of France is Paris."
    assert completion.finish_reason == "stop"
    (completion,) = engine.generate(["The capital of France is"], SamplingParams(max_new_tokens=1))
    assert completion.token_ids == [7042]
