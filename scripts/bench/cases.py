"""What is computed: the shape of one benchmark case, and the text that names it."""

import dataclasses
import itertools
import re

from scripts.bench.targets import Target

KINDS = ("full", "prefill", "decode", "mixed")
SYNTAX = """\
KIND:FIELD,FIELD,... with KIND full (no mask), prefill, decode or mixed (causal), and the fields
  B16       sequences (default 1)
  S8192     keys of each          T2  queries of each (default: decode 1, else S)
  L64*1/500+2*300/2300            instead of B, S and T: 64 times 1 query over 500 keys, and so on
  H32/8     query heads / kv heads; H16 is H16/16
  D128      head dim
  P16       page size; without it keys and values are contiguous
  W1024     sliding window: a query sees the last 1024 keys up to its own"""
MOST_SEQS = 1 << 16
MOST_KEYS = (1 << 31) - 1  # an int32 counts them
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
        least = {"heads": 1, "kv_heads": 1, "head_dim": 8}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least {lowest}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads}: must be a multiple of {self.kv_heads} kv heads")
        if self.head_dim % 8 or self.head_dim > 256:
            raise ValueError(f"head_dim={self.head_dim}: must be a multiple of 8 from 8 to 256")
        if self.page_size not in (None, *(2**i for i in range(9))):
            raise ValueError(f"page_size={self.page_size}: must be a power of two up to 256")
        if sum(self.k_lens) > MOST_KEYS:
            raise ValueError(f"{sum(self.k_lens)} keys in all: must be at most {MOST_KEYS}")
        for q, k in zip(self.q_lens, self.k_lens, strict=True):
            if not 1 <= q <= k:
                raise ValueError(f"{q} queries over {k} keys: must be at least 1, and no more")
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
        heads = f"{self.heads}/{self.kv_heads}" if self.group > 1 else f"{self.heads}"
        fields = [*self._lengths, f"H{heads}", f"D{self.head_dim}"]
        fields += [f"P{self.page_size}"] if self.page_size else []
        fields += [f"W{self.window}"] if self.window else []
        return f"{self._kind}:{','.join(fields)}"

    @property
    def _kind(self) -> str:
        if not self.causal:
            return "full"
        if self.uniform is None:
            return "mixed"
        return "prefill" if self.q_lens[0] == self.k_lens[0] else "decode"

    @property
    def _lengths(self) -> list[str]:
        if self.uniform is None:
            runs = itertools.groupby(zip(self.q_lens, self.k_lens, strict=True))
            counted = [(len(list(same)), q, k) for (q, k), same in runs]
            return ["L" + "+".join(f"{n}*{q}/{k}" if n > 1 else f"{q}/{k}" for n, q, k in counted)]
        b, t, s = self.uniform
        usual = {"decode": 1}.get(self._kind, s)
        return [f"B{b}", f"S{s}"] + ([f"T{t}"] if t != usual else [])

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
    kind, _, rest = text.partition(":")
    if kind not in KINDS or not rest:
        raise ValueError(f"{text!r}: must be KIND:FIELD,FIELD,... with KIND {', '.join(KINDS)}")
    fields = {}
    for field in rest.split(","):
        match = re.fullmatch(
            r"(?:([BSTDPW])([0-9]+)|(H)([0-9]+(?:/[0-9]+)?)|(L)([0-9*/+]+))", field
        )
        if match is None:
            raise ValueError(f"{text!r}: {field!r} is no field such as B16, S8192, H32/8 or D128")
        letter, value = [part for part in match.groups() if part is not None]
        if letter in fields:
            raise ValueError(f"{text!r}: {letter} is given twice")
        fields[letter] = value
    if missing := {"H", "D"} - fields.keys():
        raise ValueError(f"{text!r}: {', '.join(sorted(missing))} is missing")
    heads, _, kv_heads = fields["H"].partition("/")
    number = lambda letter: int(fields[letter]) if letter in fields else None  # noqa: E731
    try:
        lengths = _lengths(kind, fields)
        return Case(
            text,
            *lengths,
            int(heads),
            int(kv_heads or heads),
            int(fields["D"]),
            page_size=number("P"),
            causal=kind != "full",
            window=number("W"),
        )
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error


def _lengths(kind: str, fields: dict[str, str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(q_lens, k_lens) of the fields L, or B, S and T."""
    if "L" in fields:
        if {"B", "S", "T"} & fields.keys():
            raise ValueError("L takes the place of B, S and T")
        pairs = [pair for run in fields["L"].split("+") for pair in _run(run)]
        return tuple(q for q, _ in pairs), tuple(k for _, k in pairs)
    if "S" not in fields:
        raise ValueError("S (or L) is missing")
    batch, keys = int(fields.get("B", 1)), int(fields["S"])
    if not 1 <= batch <= MOST_SEQS:
        raise ValueError(f"B must be from 1 to {MOST_SEQS}")
    queries = int(fields.get("T", 1 if kind == "decode" else keys))
    return (queries,) * batch, (keys,) * batch


def _run(run: str) -> list[tuple[int, int]]:
    match = re.fullmatch(r"(?:([0-9]+)\*)?([0-9]+)/([0-9]+)", run)
    if match is None:
        raise ValueError(f"{run!r} must be such as 1/500 or 64*1/500 (queries/keys)")
    count, queries, keys = match.groups()
    if int(count or 1) > MOST_SEQS:
        raise ValueError(f"{run!r}: must be at most {MOST_SEQS} sequences")
    return [(int(queries), int(keys))] * int(count or 1)
