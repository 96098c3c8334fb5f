"""SentencePiece vocabularies: a tokenizer.model file, or the same content out of GGUF metadata."""

import re
import struct

import sentencepiece

# Kinds of pieces, numbered alike in SentencePiece models and in GGUF's tokenizer.ggml.token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class SentencePieceBackend:
    """A SentencePiece model. Its processor never parses control pieces (<s>, </s>, ...) out of a
    text, so that is done here; each stretch of text between them is encoded on its own."""

    def __init__(self, model, *, before=(), after=()):
        """model: bytes of a serialised ModelProto. before, after: ids to put around a text.

        Raises RuntimeError if the bytes are no model.
        """
        self._pieces = pieces = sentencepiece.SentencePieceProcessor()
        pieces.LoadFromSerializedProto(model)
        self.vocab_size = pieces.get_piece_size()
        ids = [i for i in range(self.vocab_size) if pieces.is_control(i)]
        self._control = {pieces.id_to_piece(i): i for i in ids}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if ids else None
        self.before, self.after = list(before), list(after)
        self.bos_id, self.eos_id = pieces.bos_id(), pieces.eos_id()  # -1: there is none

    def encode(self, text, add_special):
        ids = []
        for part in self._split.split(text) if self._split else [text]:
            if part in self._control:
                ids.append(self._control[part])
            elif part:
                ids += self._pieces.encode(part)
        return self.before + ids + self.after if add_special else ids

    def decode(self, ids, skip_special):
        known = [i for i in ids if 0 <= i < self.vocab_size]
        if skip_special:
            return self._pieces.decode([i for i in known if not self._pieces.is_control(i)])
        out, run = [], []
        for i in known:
            if self._pieces.is_control(i):
                out += [self._pieces.decode(run), self._pieces.id_to_piece(i)]
                run = []
            else:
                run.append(i)
        return "".join([*out, self._pieces.decode(run)])

    def id_of(self, token):
        found = self._pieces.piece_to_id(token)
        return found if self._pieces.id_to_piece(found) == token else None


def model_proto(tokens, scores, kinds, *, add_space_prefix, ids):
    """Bytes of a SentencePiece BPE ModelProto with byte fallback, from the lists of a GGUF file.

    ids: {"unk": int, "bos": int, "eos": int, "pad": int}, -1 for one that does not exist. Written
    by hand because the generated protobuf classes would need the protobuf package for these few
    fields.
    """
    pieces = [
        _bytes(1, _bytes(1, text.encode()) + _float(2, score) + _int(3, kind))
        for text, score, kind in zip(tokens, scores, kinds, strict=True)
    ]
    bpe, byte_fallback = _int(3, 2), _int(35, 1)
    numbers = b"".join(
        _int(field, ids.get(name, -1))
        for field, name in ((40, "unk"), (41, "bos"), (42, "eos"), (43, "pad"))
    )
    trainer = _bytes(2, bpe + byte_fallback + numbers)
    # Fields 3, 4, 5: add a space before the text, keep runs of spaces, write spaces as U+2581.
    normalizer = _bytes(
        3, _bytes(1, b"identity") + _int(3, int(add_space_prefix)) + _int(4, 0) + _int(5, 1)
    )
    return b"".join(pieces) + trainer + normalizer


def _varint(value):
    value &= 2**64 - 1  # negative numbers are written as 64-bit two's complement
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _int(field, value):
    return _varint(field << 3) + _varint(value)


def _float(field, value):
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _bytes(field, value):
    return _varint(field << 3 | 2) + _varint(len(value)) + value
