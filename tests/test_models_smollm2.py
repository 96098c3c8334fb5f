"""SmolLM2-135M-Instruct, real weights: the default model against transformers on the same GGUF.

Skipped, with the reason, only when the file is neither in the cache nor to be had from the network.
"""

import json

import jax
import models_support as support
import numpy as np
import pytest
from models_support import GOLDEN

import models

RECORDS = json.loads((GOLDEN / "smollm2.json").read_text(encoding="utf-8"))["records"]
GROUP = 5  # records to a batch


@pytest.fixture(scope="module")
def smollm2():
    """The model, as `make generate` has it."""
    try:
        models.fetch_smollm2()
    except ConnectionError as error:
        pytest.skip(f"no SmolLM2 here: {error}")
    return models.load()


@pytest.fixture(scope="module")
def step(smollm2):
    return jax.jit(smollm2.step)


@pytest.mark.slow
def test_greedy_ids_equal_those_of_transformers(smollm2, step):
    """All 64 ids of every golden, each predicted from the golden ids before it.

    If every prediction is right, so is what a greedy loop writes: it would be in the same state.
    """
    assert len(RECORDS) >= 20
    groups = [RECORDS[i : i + GROUP] for i in range(0, len(RECORDS), GROUP)]
    texts = [[r["prompt_ids"] + r["ids"][:-1] for r in group] for group in groups]
    # One shape for all groups, so that the model is compiled once.
    tokens = max(sum(map(len, group)) for group in texts)
    pages = max(-(-len(text) // support.PAGE) for group in texts for text in group)
    shape = (-(-tokens // 128) * 128, GROUP * 64, pages, GROUP * pages)
    wrong = {}
    for group, ids in zip(groups, texts, strict=True):
        counts = [len(r["ids"]) - 1 for r in group]
        for record, logits in zip(
            group, support.teacher_forced(smollm2, ids, counts, shape, step), strict=True
        ):
            got = logits.argmax(-1).tolist()
            if got != record["ids"]:
                wrong[record["name"]] = [got, record["ids"]]
            for token, value in record["first_logits"]:
                assert logits[0, token] == pytest.approx(value, abs=2e-3), record["name"]
    assert not wrong


@pytest.mark.slow
def test_logits_and_answer_of_the_reference_notes(smollm2, step):
    """Two results that a NumPy forward of the same file gave, independent of transformers."""
    text = smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}]
    )
    chat = smollm2.tokenizer.encode(text, add_special=False)
    answer = [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert len(chat) == 37
    prompt = smollm2.tokenizer.encode("The capital of France is")
    assert prompt == [504, 3575, 282, 4649, 314]
    plain, chatted = support.teacher_forced(
        smollm2, [prompt, chat + answer[:-1]], [0, len(answer) - 1], (64, 16, 8, 16), step
    )
    top = {7042: 17.371, 260: 14.889, 4528: 13.245, 2250: 13.010, 1315: 12.952}
    assert np.argsort(-plain[0])[:5].tolist() == list(top)
    np.testing.assert_allclose(plain[0][list(top)], list(top.values()), atol=2e-3)
    first = {504: 25.325, 60: 25.243, 15319: 24.942, 2219: 24.402, 7026: 24.315}
    np.testing.assert_allclose(chatted[0][list(first)], list(first.values()), atol=2e-3)
    assert chatted.argmax(-1).tolist() == answer
    assert smollm2.tokenizer.decode(answer) == "The capital of France is Paris."


def test_config(smollm2):
    config = smollm2.config
    sizes = (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads)
    assert sizes == (30, 576, 9, 3)
    assert config.max_position_embeddings == 8192
    assert config.eos_token_ids == smollm2.tokenizer.eos_token_ids == (2,)
    assert config.tie_embeddings
    assert sum(leaf.size for leaf in smollm2.params) == 134_515_008
    assert smollm2.cache_spec["dtype"] == np.float32


def test_prompts_are_tokenised_as_transformers_does(smollm2):
    for record in RECORDS:
        chat = isinstance(record["prompt"], list)
        if chat:
            text = smollm2.tokenizer.apply_chat_template(record["prompt"])
            assert text == record["text"]
        ids = smollm2.tokenizer.encode(record["text"], add_special=not chat)
        assert ids == record["prompt_ids"], record["name"]
        assert smollm2.tokenizer.decode(ids, skip_special=False) == record["text"]


def test_a_stream_gives_the_text_of_all_ids(smollm2):
    for record in RECORDS:
        stream = smollm2.tokenizer.stream()
        parts = [stream.push(i) for i in record["ids"]]
        assert "".join(parts) + stream.flush() == smollm2.tokenizer.decode(record["ids"])


def test_a_stream_never_gives_half_a_character(smollm2):
    text = "pizza 🍕, 👩‍👩‍👧‍👦, Größe, 中国的首都, العربية"
    ids = smollm2.tokenizer.encode(text)
    stream = smollm2.tokenizer.stream()
    parts = [stream.push(i) for i in ids]
    assert len(ids) > len(text), "the test needs characters that take several ids"
    assert "".join(parts) == text
    assert stream.flush() == ""
    # Cut inside the first emoji: nothing of it comes out before the end of the text.
    cut = next(i for i, part in enumerate(parts) if "🍕" in part)
    stream = smollm2.tokenizer.stream()
    assert "".join(stream.push(i) for i in ids[:cut]).strip() == "pizza"
    assert "\ufffd" in stream.flush()
