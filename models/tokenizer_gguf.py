"""Tokenizer of a GGUF file's metadata: byte-level BPE ("gpt2") or SentencePiece ("llama")."""

import struct

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from models.fields import flag, numbers, text, texts, whole
from models.tokenizer import Tokenizer
from models.tokenizer_hf import FastBackend
from models.tokenizer_spm import (
    CONTROL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceBackend,
    model_proto,
)
from models.wording import one_line, shown

PREFIX = "tokenizer.ggml."
# How text is cut into words before merges apply, per family of `tokenizer.ggml.pre`. None is
# GPT-2's own pattern, which the library has built in.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# llama.cpp's own default cuts at each of these in turn.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
PATTERNS = {
    "default": DEFAULT,
    "gpt-2": None,
    "gpt2": None,
    "smollm": None,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": TEKKEN,
}
SINGLE_DIGITS = ("smollm",)  # each digit is a word of its own before the pattern applies
WHOLE_WORDS = (LLAMA3, TEKKEN)  # a word that is in the vocabulary is taken whole, merges or not
ADD_BOS = ("llama-bpe", "llama3", "llama-v3", "tekken")  # when the file does not say


def tokenizer_from_gguf(meta, eos_token_ids=()):
    """Tokenizer of GGUF metadata (key -> value). Raises ValueError naming what is not supported."""
    kind = text(meta, PREFIX + "model")
    if kind not in BUILDERS:
        raise ValueError(
            f"{PREFIX}model {shown(kind)} is not supported; {' and '.join(BUILDERS)} are"
        )
    tokens = texts(meta, PREFIX + "tokens")
    if not tokens:
        raise ValueError(f"the GGUF metadata has no {PREFIX}tokens")
    special = {
        name: whole(meta, f"{PREFIX}{name}_token_id", minimum=0)
        for name in ("bos", "eos", "padding", "unknown")
    }
    special = {name: i for name, i in special.items() if i is not None and i < len(tokens)}
    names = {
        f"{short}_token": tokens[special[name]]
        for name, short in (("bos", "bos"), ("eos", "eos"), ("padding", "pad"), ("unknown", "unk"))
        if name in special
    }
    return Tokenizer(
        BUILDERS[kind](meta, tokens, special),
        chat_template=text(meta, "tokenizer.chat_template"),
        special_tokens=names,
        bos_token_id=special.get("bos"),
        eos_token_ids=eos_token_ids,
    )


def _byte_level_bpe(meta, tokens, special):
    pre = text(meta, PREFIX + "pre", "default")
    if pre not in PATTERNS:
        raise ValueError(f"{PREFIX}pre {shown(pre)} is not supported; {', '.join(PATTERNS)} are")
    pattern, merges = PATTERNS[pre], _merges(meta)
    try:
        bpe = models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=pattern in WHOLE_WORDS,
        )
    except Exception as error:  # the library raises bare Exception
        raise ValueError(
            f"the merges in the GGUF do not fit its tokens: {one_line(error)}"
        ) from None
    tokenizer = tokenizers.Tokenizer(bpe)
    if pattern == QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, pattern)
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        tokenizers.AddedToken(tokens[i], special=kind == CONTROL, normalized=False)
        for i, kind in enumerate(_for_each(tokens, meta, "token_type", int))
        if kind in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    before, after = _around(meta, special, add_bos=pre in ADD_BOS)
    return FastBackend(tokenizer, before=before, after=after)


def _merges(meta):
    """Pairs of tokens that become one, the first pair first."""
    merges = texts(meta, PREFIX + "merges")
    if not merges:
        raise ValueError(f"the GGUF metadata has no {PREFIX}merges")
    for i, merge in enumerate(merges):
        if " " not in merge:
            raise ValueError(
                f"{PREFIX}merges[{i}] is {shown(merge)}; it must be two tokens with a space between"
            )
    return [tuple(merge.split(" ", 1)) for merge in merges]


def _pre_tokenizer(pre, pattern):
    steps = [pre_tokenizers.Digits(individual_digits=True)] if pre in SINGLE_DIGITS else []
    parts = (pattern,) if isinstance(pattern, str) else pattern or ()
    steps += [pre_tokenizers.Split(Regex(part), "isolated") for part in parts]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
    return pre_tokenizers.Sequence(steps)


def _sentence_pieces(meta, tokens, special):
    scores = _for_each(tokens, meta, "scores", float)
    kinds = list(_for_each(tokens, meta, "token_type", int))
    given = {"scores": scores, "token_type": kinds}
    missing = [PREFIX + key for key, values in given.items() if not values]
    if missing:
        raise ValueError(f"the GGUF metadata has no {' and no '.join(missing)}")
    unknown = special.get("unknown", kinds.index(UNKNOWN) if UNKNOWN in kinds else 0)
    # A model has one unknown piece; files mark the padding of their vocabulary as unknown too.
    kinds = [UNUSED if kind == UNKNOWN else kind for kind in kinds]
    kinds[unknown] = UNKNOWN
    add_space_prefix = flag(meta, PREFIX + "add_space_prefix", True)
    ids = {
        "unk": unknown,
        "bos": special.get("bos", -1),
        "eos": special.get("eos", -1),
        "pad": special.get("padding", -1),
    }
    before, after = _around(meta, special, add_bos=True)
    try:
        proto = model_proto(tokens, scores, kinds, add_space_prefix=add_space_prefix, ids=ids)
        return SentencePieceBackend(proto, before=before, after=after)
    except (RuntimeError, OverflowError, struct.error) as error:
        raise ValueError(
            f"the SentencePiece vocabulary in the GGUF is broken: {one_line(error)}"
        ) from None


def _for_each(tokens, meta, name, kind):
    """The list of one number a token, or [] when the metadata does not have it."""
    values = numbers(meta, PREFIX + name, kind)
    if values and len(values) != len(tokens):
        raise ValueError(f"{PREFIX}{name} has {len(values)} entries for {len(tokens)} tokens")
    return values


def _around(meta, special, add_bos):
    """Ids to put before and after a text, by the file's add_bos_token and add_eos_token."""
    before = flag(meta, PREFIX + "add_bos_token", add_bos) and "bos" in special
    after = flag(meta, PREFIX + "add_eos_token") and "eos" in special
    return [special["bos"]] if before else [], [special["eos"]] if after else []


BUILDERS = {"gpt2": _byte_level_bpe, "llama": _sentence_pieces}
