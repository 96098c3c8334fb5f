"""The text of a compiled TPU program: instructions, the buffers they touch, and where those are."""

import dataclasses
import math
import re

_TYPE = re.compile(r"(pred|bf16|[suf]\d+|c64|token)\[([\d,]*)\](\{[^}]*\})?")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\([^{]*\) -> [^{]*)?\{")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_SPACE = re.compile(r"S\((\d+)\)")
_WIDTH = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array; `hbm` is False for one in vector, scalar or another memory of the core."""

    dtype: str
    shape: tuple[int, ...]
    hbm: bool

    @property
    def bytes(self) -> int:
        bits = 8 if self.dtype == "pred" else int((_WIDTH.search(self.dtype) or ["0"])[0])
        return math.prod(self.shape) * bits // 8


@dataclasses.dataclass(frozen=True)
class Instruction:
    """`results` are the arrays of its type; `operands` names of instructions; `rest` what follows
    them in the text."""

    name: str
    opcode: str
    results: tuple[Buffer, ...]
    operands: tuple[str, ...]
    rest: str


@dataclasses.dataclass(frozen=True)
class Program:
    """The computations by name, in the order of the text, and the name of the one that runs."""

    computations: dict[str, list[Instruction]]
    entry: str


def parse(text: str) -> Program:
    computations, entry, current = {}, "", None
    for line in text.splitlines():
        started = _COMPUTATION.match(line)
        if started:
            current = computations.setdefault(started[2], [])
            entry = started[2] if started[1] else entry
            continue
        found = _INSTRUCTION.match(line)
        if found and current is not None:
            current.append(_instruction(*found.groups()))
    return Program(computations, entry)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    opcode = _OPCODE.match(text, end)
    close = _closing(text, opcode.end() - 1)
    inside = text[opcode.end() : close - 1]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside)) if "%" in inside else (inside,)
    return Instruction(name, opcode[1], buffers(text[:end]), operands, text[close:])


def buffers(text: str) -> tuple[Buffer, ...]:
    """The arrays of a type, a tuple's flattened."""
    found = []
    for dtype, sizes, layout in _TYPE.findall(text):
        shape = tuple(int(n) for n in sizes.split(",") if n)
        space = _SPACE.search(layout or "")
        found.append(Buffer(dtype, shape, space is None and dtype != "token"))
    return tuple(found)


def _closing(text: str, at: int) -> int:
    """The place after the parenthesis that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    raise ValueError(f"no closing parenthesis in {text[:80]!r}")
