"""Tokenizers built from each kind of vocabulary, chat templates, and text that comes id by id."""

import datetime
import io
import json

import pytest
import sentencepiece
import tokenizers

from models import chat
from models.tokenizer import Stream, Tokenizer
from models.tokenizer_gguf import PATTERNS, tokenizer_from_gguf
from models.tokenizer_hf import tokenizer_from_folder
from models.tokenizer_spm import BYTE, CONTROL, NORMAL, UNKNOWN, SentencePieceBackend, model_proto

TEXTS = [
    "",
    " ",
    "Hello world",
    " Hello  world ",
    "a\n\n b\tc",
    "don't 12345 3.14 $9.99!!",
    "Größe 中国 🍕 👩‍👩‍👧‍👦",
]


def byte_level_meta(pre="default", **more):
    """GGUF metadata of a byte-level BPE: all 256 bytes, a few merges, two specials."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merged = ["he", "ll", "llo", "hello", "Ġw", "12", "123"]
    merges = ["h e", "l l", "ll o", "he llo", "Ġ w", "1 2", "12 3"]
    tokens = ["<s>", "</s>", *alphabet, *merged, "<|user|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [CONTROL] * 2 + [NORMAL] * (len(tokens) - 3) + [4],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def pieces_meta(**more):
    """GGUF metadata of a SentencePiece vocabulary with byte fallback."""
    words = ["He", "ll", "llo", "Hello", "▁Hello", "▁", "H", "e", "l", "o", "a", "b", "c"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(words))],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


PADDED = [2, *pieces_meta()["tokenizer.ggml.token_type"][1:-1], UNKNOWN]


@pytest.fixture(params=[*PATTERNS, "pieces"])
def tokenizer(request):
    meta = pieces_meta() if request.param == "pieces" else byte_level_meta(request.param)
    return tokenizer_from_gguf(meta, (1,))


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_is_the_decoded_text(tokenizer, text):
    ids = tokenizer.encode(text)
    stream = tokenizer.stream()
    parts = [stream.push(i) for i in ids]
    assert not any("\ufffd" in part for part in parts)
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids)


def test_bytes_that_are_no_text_come_out_at_the_end(tokenizer):
    ids = tokenizer.encode("a🍕", add_special=False)[:-1]  # the pizza lacks its last byte
    stream = tokenizer.stream()
    assert "".join(stream.push(i) for i in ids) == "a"
    left = stream.flush()
    assert left
    assert set(left) == {"\ufffd"}
    assert stream.flush() == ""


def test_broken_bytes_before_text_are_not_lost(tokenizer):
    pizza = tokenizer.encode("🍕", add_special=False)
    ids = [*pizza[-4:-1], *tokenizer.encode("a", add_special=False)[-1:]]
    stream = tokenizer.stream()
    assert "".join(stream.push(i) for i in ids) + stream.flush() == tokenizer.decode(ids)


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer):
    ids = tokenizer.encode("ab", add_special=False)
    assert tokenizer.decode([*ids, tokenizer.vocab_size + 5]) == "ab"


def test_special_tokens_in_a_text(tokenizer):
    bos, eos = (tokenizer.decode([i], skip_special=False) for i in (0, 1))
    text = f"{bos}ab{eos}"
    if isinstance(tokenizer._backend, SentencePieceBackend):
        bos, eos, text = "<s>", "</s>", "<s>ab</s>"
    ids = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special=False) == text
    assert len(ids) <= 6


@pytest.mark.parametrize(
    ("meta", "text", "ids"),
    [
        # Ids of the alphabet are 2 + rank; the merges follow it from 258 on.
        (byte_level_meta(), "hello w", [261, 262]),
        (byte_level_meta("smollm"), "123", "1|2|3"),
        (byte_level_meta("qwen2"), "123", "1|2|3"),
        (byte_level_meta("default"), "1234", "123|4"),
        (byte_level_meta("llama3", add_bos_token=False), "1234", "123|4"),
        (byte_level_meta("tekken", add_bos_token=False), "123", "1|2|3"),
        (byte_level_meta("llama3"), "123", [0, 264]),
        (byte_level_meta(add_bos_token=True, add_eos_token=True), "123", [0, 264, 1]),
        (byte_level_meta("gpt-2"), "1234", "123|4"),
        (byte_level_meta(), "<|user|>hello", [265, 261]),
        (pieces_meta(), "Hello Hello", [1, 263, 263]),
        (pieces_meta(add_bos_token=False), "Hello", [263]),
        (pieces_meta(add_bos_token=False, add_space_prefix=False), "Hello", [262]),
        # Padding marked as unknown, and a bos of another name.
        (pieces_meta(bos_token_id=259, token_type=PADDED), "Hello", [259, 263]),
        (pieces_meta(add_eos_token=True), "Hello", [1, 263, 2]),
        (pieces_meta(add_bos_token=False), "</s>Hello", [2, 263]),
        (pieces_meta(add_bos_token=False), "é", [264, 3 + 0xC3, 3 + 0xA9]),
    ],
)
def test_ids(meta, text, ids):
    tokenizer = tokenizer_from_gguf(meta)
    got = tokenizer.encode(text)
    if isinstance(ids, str):
        got = "|".join(tokenizer.decode([i]) for i in got)
    assert got == ids


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (byte_level_meta("grok"), "pre 'grok' is not supported; default"),
        (byte_level_meta(model="bert"), "model 'bert' is not supported; gpt2 and llama are"),
        (byte_level_meta(tokens=[]), r"no tokenizer\.ggml\.tokens"),
        (byte_level_meta(merges=None), r"no tokenizer\.ggml\.merges"),
        (byte_level_meta(merges=["h e", "he y"]), "merges in the GGUF do not fit its tokens"),
        (byte_level_meta(merges=["he"]), r"merges\[0\] is 'he'; it must be two tokens"),
        (pieces_meta(scores=None), r"no tokenizer\.ggml\.scores"),
        (pieces_meta(token_type=None, scores=None), r"scores and no tokenizer\.ggml\.token_type"),
        (byte_level_meta(tokens="abc"), r"tokens is 'abc'; it must be a list of texts"),
        (byte_level_meta(tokens=["a", 5]), r"tokens\[1\] is 5; it must be text"),
        (byte_level_meta(add_bos_token="false"), "add_bos_token is 'false'; it must be true or"),
        (byte_level_meta(bos_token_id=-1), "bos_token_id is -1; it must be a whole number of at"),
        (byte_level_meta(token_type=[3]), "token_type has 1 entries for 266 tokens"),
        (pieces_meta(unknown_token_id=-70), "unknown_token_id is -70"),
        (pieces_meta(scores=[1e300] * 272), "the SentencePiece vocabulary in the GGUF is broken"),
    ],
)
def test_vocabularies_that_are_refused(meta, message):
    with pytest.raises(ValueError, match=message):
        tokenizer_from_gguf(meta)


WRONG = ("x", 5, -5, 1.5, True, [], ["x"], [5], [[1]], ["a"] * 64, [1.5] * 272, {"a": 1})


@pytest.mark.parametrize("meta", [byte_level_meta(), pieces_meta()], ids=["bytes", "pieces"])
def test_metadata_of_wrong_types_raises_nothing_but_value_errors(meta):
    """Whatever stands at any key, the vocabulary is refused in words or can be used."""
    flags = ("add_bos_token", "add_eos_token", "add_space_prefix")
    keys = [*meta, *(f"tokenizer.ggml.{name}" for name in flags), "tokenizer.chat_template"]
    refusals = []
    for key in keys:
        for value in WRONG:
            try:
                tokenizer = tokenizer_from_gguf(meta | {key: value})
            except ValueError as error:
                refusals.append(str(error))
            else:
                assert type(tokenizer.encode("a")) is list, (key, value)
    assert len(keys) * len(WRONG) / 2 < len(refusals) < len(keys) * len(WRONG)
    for refusal in refusals:
        assert "tokenizer." in refusal or "in the GGUF" in refusal, refusal
        assert "\n" not in refusal


def test_a_proto_from_gguf_lists_is_the_model_itself(tmp_path):
    """Pieces, scores and kinds of a trained model, written by model_proto, encode as the
    original."""
    model = io.BytesIO()
    text = "the quick brown fox jumps over the lazy dog and the small cat sleeps " * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split(" and ")),
        model_writer=model,
        vocab_size=330,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    original = tokenizer_from_folder(tmp_path)
    assert (original.bos_token_id, original.eos_token_ids) == (1, (2,))
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(pieces.get_piece_size())
    kinds = [_kind(pieces, i) for i in ids]
    proto = model_proto(
        [pieces.id_to_piece(i) for i in ids],
        [pieces.get_score(i) for i in ids],
        kinds,
        add_space_prefix=True,
        ids={"unk": 0, "bos": 1, "eos": 2},
    )
    copy = Tokenizer(SentencePieceBackend(proto, before=[1]))
    for sample in (*TEXTS, text, "<s>the fox</s> and 🦊"):
        assert copy.encode(sample) == original.encode(sample)
        assert copy.decode(copy.encode(sample)) == original.decode(original.encode(sample))


def _kind(pieces, i):
    if pieces.is_unknown(i):
        return UNKNOWN
    if pieces.is_control(i):
        return CONTROL
    return BYTE if pieces.is_byte(i) else NORMAL


@pytest.fixture
def folder(tmp_path):
    """A directory with a small tokenizer.json whose post-processor puts <s> before a text."""
    vocab = {token: i for i, token in enumerate(["<s>", "</s>", "a", "b", "ab"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[("a", "b")]))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $0", None, [("<s>", 0)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_tokenizer_json(folder):
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "x"}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.encode("ab</s>") == [0, 4, 1]
    assert tokenizer.encode("ab", add_special=False) == [4]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, (1,))
    assert tokenizer_from_folder(folder, (3, 1)).eos_token_ids == (3, 1)


@pytest.mark.parametrize("setting", ["truncation", "padding"])
def test_training_settings_do_not_change_a_prompt(setting, folder):
    """Truncation and padding that a training run left in tokenizer.json."""
    path = folder / "tokenizer.json"
    before = tokenizer_from_folder(folder).encode("abab")
    stored = tokenizers.Tokenizer.from_file(str(path))
    if setting == "truncation":
        stored.enable_truncation(max_length=2)
    else:
        stored.enable_padding(length=20)
    stored.save(str(path))
    assert json.loads(path.read_text())[setting]
    assert tokenizer_from_folder(folder).encode("abab") == before == [0, 4, 4]


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]"), "Missing .UNK. token"),
        (tokenizers.models.Unigram([("a", -1.0)]), "`unk_id` is missing"),
    ],
    ids=["words", "unigrams"],
)
def test_a_text_that_has_no_ids(model, reason, tmp_path):
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(tmp_path)
    assert tokenizer.encode("a") == [0]
    with pytest.raises(ValueError, match=f"the tokenizer cannot encode this text: .*{reason}"):
        tokenizer.encode("xyz")


def test_half_a_surrogate_pair_is_no_text(tokenizer):
    with pytest.raises(ValueError, match="the tokenizer cannot encode this text"):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize(
    "template", [5, True, {"a": 1}, ["x"], [{}], [{"name": "default"}], [{"template": "x"}]]
)
def test_a_chat_template_that_is_no_text(template, folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ValueError, match=r"chat_template is .*; it must be text, or a list"):
        tokenizer_from_folder(folder)


def test_a_chat_template_of_other_bytes(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"chat_template\.jinja is not UTF-8 text"):
        tokenizer_from_folder(folder)


def test_where_a_chat_template_comes_from(folder):
    assert tokenizer_from_folder(folder).chat_template is None
    with pytest.raises(ValueError, match="this model has no chat template"):
        tokenizer_from_folder(folder).apply_chat_template([])
    settings = folder / "tokenizer_config.json"
    settings.write_text('{"chat_template": "one"}')
    assert tokenizer_from_folder(folder).chat_template == "one"
    named = [{"name": "tools", "template": "no"}, {"name": "default", "template": "two"}]
    settings.write_text(json.dumps({"chat_template": named}))
    assert tokenizer_from_folder(folder).chat_template == "two"
    (folder / "chat_template.jinja").write_text("three")
    assert tokenizer_from_folder(folder).chat_template == "three"


MESSAGES = [{"role": "user", "content": "1 < 2 & 'é'"}]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        # A block's own line and the spaces before it leave no trace.
        (
            "{% for m in messages %}\n  {% if true %}\n{{ m.role }}:{% endif %}\n{% endfor %}",
            "user:",
        ),
        ("{{ bos_token }}{{ messages[0]['content'] }}", "<s>1 < 2 & 'é'"),
        ("{{ messages | tojson }}", json.dumps(MESSAGES, ensure_ascii=False)),
        ("{{ {'b': 1} | tojson(indent=2) }}", '{\n  "b": 1\n}'),
        ("{{ strftime_now('%Y') }}", str(datetime.datetime.now().year)),
        ("{% generation %}x{{ 1 + 1 }}{% endgeneration %}", "x2"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ 'go' if add_generation_prompt }}", "go"),
        ("{{ tools is defined }}", "False"),
    ],
)
def test_templates(template, text):
    got = chat.render(template, MESSAGES, add_generation_prompt=True, bos_token="<s>")
    assert got.strip("\n") == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('only one turn') }}", "only one turn"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError"),
        ("{{ 'a'.encode('foo') }}", "LookupError: unknown encoding"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ raise_exception('one\\ntwo') }}", "one; two"),
        ("{{ strftime_now(5) }}", "TypeError"),
    ],
)
def test_templates_that_refuse(template, message):
    with pytest.raises(ValueError, match=f"chat template refuses these messages: .*({message})"):
        chat.render(template, MESSAGES, add_generation_prompt=False)


class Spelled:
    """A tokenizer whose decode is given as a table, to see what a Stream makes of it."""

    def __init__(self, table):
        self.table = table

    def decode(self, ids, skip_special=True):
        return b"".join(self.table[i] for i in ids).decode("utf-8", "replace").removeprefix(" ")


def test_a_stream_gives_each_part_as_soon_as_it_is_whole():
    stream = Stream(Spelled([b" The", b" caf\xc3", b"\xa9", b" \xf0\x9f", b"\x8d", b"\x95!"]))
    parts = [stream.push(i) for i in range(6)]
    assert parts == ["The", "", " café", "", "", " 🍕!"]
    assert stream.flush() == ""
