"""The text of a case, such as decode:B16,S8192,H32/8,D128,P16, and what its sizes may be."""

import dataclasses
import re
from collections.abc import Iterable

MOST_SEQS = 1 << 16
MOST_KEYS = (1 << 31) - 1  # an int32 counts them
VALUES = {"H": r"[0-9]+(?:/[0-9]+)?", "L": r"[0-9*/+]+"}  # of the other letters: a number


def syntax(kinds: str, *more: str) -> str:
    """What help says of the text; ``more`` are lines of fields that not every program has."""
    return "\n".join(
        [
            f"KIND:FIELD,FIELD,... with KIND {kinds}, and the fields",
            "  B16       sequences (default 1)",
            "  S8192     keys of each",
            "  T2        queries of each, the last of its keys (default: decode 1, else S)",
            "  H32/8     query heads / kv heads; H16 is H16/16",
            "  D128      head dim",
            "  P16       page size; without it keys and values are contiguous",
            *more,
        ]
    )


@dataclasses.dataclass(frozen=True)
class Fields:
    """A text taken apart: its kind, and what stands after each letter."""

    kind: str
    values: dict[str, str]

    def number(self, letter: str, usual: int | None = None) -> int | None:
        return int(self.values[letter]) if letter in self.values else usual

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads, kv heads."""
        heads, _, kv_heads = self.values["H"].partition("/")
        return int(heads), int(kv_heads or heads)

    @property
    def batch(self) -> tuple[int, int, int]:
        """(B, T, S) of sequences that are all alike."""
        seqs, keys = self.number("B", 1), self.number("S")
        if not 1 <= seqs <= MOST_SEQS:
            raise ValueError(f"B must be from 1 to {MOST_SEQS}")
        return seqs, self.number("T", _usual_queries(self.kind, keys)), keys


def read(text: str, kinds: tuple[str, ...], letters: str, needed: str) -> Fields:
    """The fields of a text; ``letters`` are those that it may have, ``needed`` those it must.

    Raises:
      ValueError: the kind is none of ``kinds``; a field is missing, unknown or given twice.
    """
    kind, _, rest = text.partition(":")
    if kind not in kinds or not rest:
        raise ValueError(f"must be KIND:FIELD,FIELD,... with KIND {', '.join(kinds)}")
    values: dict[str, str] = {}
    for field in rest.split(","):
        letter, value = field[:1], field[1:]
        form = VALUES.get(letter, r"[0-9]+")
        if not letter or letter not in letters or not re.fullmatch(form, value):
            raise ValueError(f"{field!r} is no field such as B16, S8192, H32/8 or D128")
        if letter in values:
            raise ValueError(f"{letter} is given twice")
        values[letter] = value
    if missing := [letter for letter in needed if letter not in values]:
        raise ValueError(f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing")
    return Fields(kind, values)


def kind_of(causal: bool, queries: int, keys: int) -> str:
    """The kind of sequences that are all alike."""
    if not causal:
        return "full"
    return "prefill" if queries == keys else "decode"


def spell_batch(kind: str, seqs: int, queries: int, keys: int) -> list[str]:
    """The fields that :attr:`Fields.batch` reads."""
    fields = [f"B{seqs}", f"S{keys}"]
    return fields if queries == _usual_queries(kind, keys) else [*fields, f"T{queries}"]


def spell_heads(heads: int, kv_heads: int) -> str:
    return f"H{heads}" if heads == kv_heads else f"H{heads}/{kv_heads}"


def spell(kind: str, fields: Iterable[str | None]) -> str:
    """The text of these fields; None is left out."""
    return f"{kind}:{','.join(field for field in fields if field)}"


def _usual_queries(kind: str, keys: int) -> int:
    return 1 if kind == "decode" else keys


def check_heads(heads: int, kv_heads: int) -> None:
    for name, number in (("heads", heads), ("kv_heads", kv_heads)):
        if number < 1:
            raise ValueError(f"{name}={number}: must be at least 1")
    if heads % kv_heads:
        raise ValueError(f"heads={heads}: must be a multiple of {kv_heads} kv heads")


def check_head_dim(name: str, size: int) -> None:
    if size % 8 or not 8 <= size <= 256:
        raise ValueError(f"{name}={size}: must be a multiple of 8 from 8 to 256")


def check_page_size(size: int | None) -> None:
    if size not in (None, *(2**i for i in range(9))):
        raise ValueError(f"page_size={size}: must be a power of two up to 256")


def check_lengths(pairs: Iterable[tuple[int, int]], keys_in_all: int) -> None:
    """``pairs``: queries and keys of the sequences."""
    if keys_in_all > MOST_KEYS:
        raise ValueError(f"{keys_in_all} keys in all: must be at most {MOST_KEYS}")
    for queries, keys in pairs:
        if not 1 <= queries <= keys:
            raise ValueError(f"{queries} queries over {keys} keys: must be at least 1, and no more")
