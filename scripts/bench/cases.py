"""What is computed: the shape of one benchmark case, and the text that names it."""

import dataclasses
import itertools
import re

from scripts import case_text
from scripts.bench.targets import Target
from scripts.case_text import MOST_SEQS

KINDS = ("full", "prefill", "decode", "mixed")
SYNTAX = case_text.syntax(
    "full (no mask), prefill, decode or mixed (causal)",
    "  W1024     sliding window: a query sees the last 1024 keys up to its own",
    "  L64*1/500+2*300/2300",
    "            instead of B, S and T: 64 times 1 query over 500 keys, and so on",
)
FEWEST_SMALL, SMALLER = 24, 64
MOST_SMALL_SEQS = (2, 3)  # of a miniature: so many first and last ones


@dataclasses.dataclass(frozen=True)
class Case:
    """Attention of packed queries, bf16; sequence n has ``q_lens[n]`` queries, the last of its
    ``k_lens[n]`` keys.

    ``page_size`` None: contiguous keys, for which all sequences are alike. ``peers``: whether
    other implementations are timed too.
    """

    name: str
    q_lens: tuple[int, ...]
    k_lens: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int | None = None
    causal: bool = True
    window: int | None = None
    targets: tuple[Target, ...] = ()
    peers: bool = True

    def __post_init__(self):
        if not self.q_lens:
            raise ValueError("there must be at least 1 sequence")
        case_text.check_heads(self.heads, self.kv_heads)
        case_text.check_head_dim("head_dim", self.head_dim)
        case_text.check_page_size(self.page_size)
        case_text.check_lengths(zip(self.q_lens, self.k_lens, strict=True), sum(self.k_lens))
        if self.window is not None and (self.window < 1 or not self.causal):
            raise ValueError(f"window={self.window}: must be at least 1, and of a causal case")
        if self.page_size is None and self.uniform is None:
            raise ValueError("sequences of different lengths need pages: add a field such as P16")

    @property
    def uniform(self) -> tuple[int, int, int] | None:
        """(B, T, S) if all sequences are alike."""
        if len(set(zip(self.q_lens, self.k_lens, strict=True))) > 1:
            return None
        return len(self.q_lens), self.q_lens[0], self.k_lens[0]

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def text(self) -> str:
        """What ``parse`` reads as this case."""
        return case_text.spell(
            self._kind,
            [
                *self._lengths,
                case_text.spell_heads(self.heads, self.kv_heads),
                f"D{self.head_dim}",
                f"P{self.page_size}" if self.page_size else None,
                f"W{self.window}" if self.window else None,
            ],
        )

    @property
    def _kind(self) -> str:
        if self.causal and self.uniform is None:
            return "mixed"
        return case_text.kind_of(self.causal, self.q_lens[0], self.k_lens[0])

    @property
    def _lengths(self) -> list[str]:
        if self.uniform is None:
            runs = itertools.groupby(zip(self.q_lens, self.k_lens, strict=True))
            counted = [(len(list(same)), q, k) for (q, k), same in runs]
            return ["L" + "+".join(f"{n}*{q}/{k}" if n > 1 else f"{q}/{k}" for n, q, k in counted)]
        return case_text.spell_batch(self._kind, *self.uniform)

    def small(self) -> "Case":
        """A miniature with the same heads a group, head dim, page size and kind of lengths."""
        first, last = MOST_SMALL_SEQS
        keep = [*range(len(self.q_lens))]
        keep = keep if len(keep) <= first + last else keep[:first] + keep[-last:]
        kv_heads = min(self.kv_heads, 2)
        return dataclasses.replace(
            self,
            q_lens=tuple(_shorter(self.q_lens[n]) for n in keep),
            k_lens=tuple(_shorter(self.k_lens[n]) for n in keep),
            heads=kv_heads * self.group,
            kv_heads=kv_heads,
            window=self.window and max(8, self.window // SMALLER),
        )


def _shorter(length: int) -> int:
    """Shorter, in the same order as the lengths were, and as odd or even."""
    if length <= FEWEST_SMALL:
        return length
    short = max(FEWEST_SMALL, length // SMALLER)
    return short + (short + length) % 2


def parse(text: str) -> Case:
    """The case that ``text`` names, in the syntax of SYNTAX.

    Raises:
      ValueError: a field is missing, unknown, given twice, or breaks a rule of Case.
    """
    try:
        fields = case_text.read(text, KINDS, "BSTLHDPW", "HD")
        return Case(
            text,
            *_lengths(fields),
            *fields.heads,
            fields.number("D"),
            page_size=fields.number("P"),
            causal=fields.kind != "full",
            window=fields.number("W"),
        )
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error


def _lengths(fields: case_text.Fields) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(q_lens, k_lens) of the fields L, or B, S and T."""
    if "L" in fields.values:
        if {"B", "S", "T"} & fields.values.keys():
            raise ValueError("L takes the place of B, S and T")
        pairs = [pair for run in fields.values["L"].split("+") for pair in _run(run)]
        return tuple(q for q, _ in pairs), tuple(k for _, k in pairs)
    if "S" not in fields.values:
        raise ValueError("S (or L) is missing")
    seqs, queries, keys = fields.batch
    return (queries,) * seqs, (keys,) * seqs


def _run(run: str) -> list[tuple[int, int]]:
    match = re.fullmatch(r"(?:([0-9]+)\*)?([0-9]+)/([0-9]+)", run)
    if match is None:
        raise ValueError(f"{run!r} must be such as 1/500 or 64*1/500 (queries/keys)")
    count, queries, keys = match.groups()
    if int(count or 1) > MOST_SEQS:
        raise ValueError(f"{run!r}: must be at most {MOST_SEQS} sequences")
    return [(int(queries), int(keys))] * int(count or 1)
