"""Tokenizer of a Hugging Face directory: tokenizer.json, or a SentencePiece tokenizer.model."""

import tokenizers

from models.fields import flag
from models.safetensors_files import read_json
from models.tokenizer import Tokenizer
from models.tokenizer_spm import SentencePieceBackend
from models.wording import one_line, shown

SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


class FastBackend:
    """A `tokenizers.Tokenizer`; bos and eos, if any, are added when no post-processor does it."""

    def __init__(self, tokenizer, *, before=(), after=()):
        # A file may carry the settings of a training run; a prompt is neither cut nor filled up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._before, self._after = list(before), list(after)
        self.vocab_size = tokenizer.get_vocab_size()

    def encode(self, text, add_special):
        ids = self._tokenizer.encode(text, add_special_tokens=add_special).ids
        return self._before + ids + self._after if add_special else ids

    def decode(self, ids, skip_special):
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special)

    def id_of(self, token):
        return self._tokenizer.token_to_id(token)


def tokenizer_from_folder(folder, eos_token_ids=()):
    """Tokenizer of `folder`; `eos_token_ids` of the model's config come before the tokenizer's own.

    Raises FileNotFoundError when the directory has no vocabulary, ValueError when it cannot be
    read.
    """
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    backend = _backend(folder, settings)
    special = _special_tokens(folder, settings)
    eos = backend.id_of(special["eos_token"]) if "eos_token" in special else None
    return Tokenizer(
        backend,
        chat_template=_chat_template(folder, settings),
        special_tokens=special,
        bos_token_id=backend.id_of(special["bos_token"]) if "bos_token" in special else None,
        eos_token_ids=tuple(eos_token_ids) or (() if eos is None else (eos,)),
    )


def _backend(folder, settings):
    fast, pieces = folder / "tokenizer.json", folder / "tokenizer.model"
    if fast.is_file():
        try:
            return FastBackend(tokenizers.Tokenizer.from_file(str(fast)))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{fast} is not a tokenizer: {one_line(error)}") from None
    if pieces.is_file():
        try:
            backend = SentencePieceBackend(pieces.read_bytes())
        except RuntimeError as error:
            raise ValueError(f"{pieces} is not a SentencePiece model: {one_line(error)}") from None
        # transformers adds bos and no eos to these unless told otherwise.
        if flag(settings, "add_bos_token", True) and backend.bos_id >= 0:
            backend.before = [backend.bos_id]
        if flag(settings, "add_eos_token") and backend.eos_id >= 0:
            backend.after = [backend.eos_id]
        return backend
    raise FileNotFoundError(f"{folder} has neither tokenizer.json nor tokenizer.model")


def _special_tokens(folder, settings):
    """name -> text of the special tokens that the directory names."""
    path = folder / "special_tokens_map.json"
    named = (read_json(path) if path.is_file() else {}) | settings
    found = {name: named.get(name) for name in SPECIAL}
    texts = {n: t.get("content") if isinstance(t, dict) else t for n, t in found.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _chat_template(folder, settings):
    """chat_template.jinja, or the text (or the one named "default") in tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    given = settings.get("chat_template")
    if given is None or isinstance(given, str):
        return given
    if not isinstance(given, list) or not all(map(_is_named_template, given)):
        raise ValueError(
            f"tokenizer_config.json: chat_template is {shown(given)}; it must be text, or a list "
            "of objects with a name and a template"
        )
    return next((entry["template"] for entry in given if entry["name"] == "default"), None)


def _is_named_template(entry):
    return isinstance(entry, dict) and all(
        isinstance(entry.get(key), str) for key in ("name", "template")
    )
