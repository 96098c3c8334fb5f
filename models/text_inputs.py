"""Texts as the text towers of CLIP and SigLIP take them: token ids, ended and filled up."""

import re
import string

import numpy as np
import sentencepiece

from models.safetensors_files import read_json
from models.tokenizer_hf import tokenizer_from_folder
from models.wording import one_line

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def tokenizer_of_pair(folder, config):
    """texts -> i32 [B, max_length] for the PairConfig `config`, by the vocabulary in `folder`.

    Longer texts lose their end, never the end token. The vocabulary is tokenizer.json, or SigLIP's
    spiece.model. Returns None when the directory has neither: features of images need none.
    """
    pieces = folder / "spiece.model"
    if (folder / "tokenizer.json").is_file():
        encode, end, filler = _fast(folder, config)
    elif config.family == "siglip" and pieces.is_file():
        encode, end, filler = _pieces(pieces)
    else:
        return None
    length = config.text.max_length

    def tokenize(texts):
        ids = np.full((len(texts), length), filler, np.int32)
        for row, text in zip(ids, texts, strict=True):
            found = encode(text)
            if len(found) > length:
                found = [*found[: length - 1], end]
            row[: len(found)] = found
        return ids

    return tokenize


def _fast(folder, config):
    """(text -> ids with the special ones, id of the end, id of the filler) of a tokenizer.json."""
    tokenizer = tokenizer_from_folder(folder)
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    pool = config.text.pool_id
    end = tokenizer.eos_token_ids[0] if tokenizer.eos_token_ids else None
    end = pool if isinstance(pool, int) else end
    if end is None:
        raise ValueError(f"{path} names no eos_token; it must, to end a text")
    if config.family == "clip":
        # What follows the end is not seen: it may be anything that is not taken for the end.
        return tokenizer.encode, end, end
    pad = settings.get("pad_token")
    pad = pad.get("content") if isinstance(pad, dict) else pad
    known = tokenizer.encode(pad, add_special=False) if isinstance(pad, str) else []
    filler = known[0] if len(known) == 1 else end

    def encode(text):
        ids = tokenizer.encode(text.lower())  # SigLIP and SigLIP 2 were trained without capitals
        return ids if ids[-1:] == [end] else [*ids, end]

    return encode, end, filler


def _pieces(path):
    """As _fast, of SigLIP's SentencePiece model, which saw texts without punctuation."""
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(path.read_bytes())
    except RuntimeError as error:
        raise ValueError(f"{path} is not a SentencePiece model: {one_line(error)}") from None
    end = model.eos_id()

    def encode(text):
        plain = re.sub(r"\s+", " ", text.lower().translate(_PUNCTUATION)).strip()
        return [*model.encode(plain), end]

    return encode, end, end
