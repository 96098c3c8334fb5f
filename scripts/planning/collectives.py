"""What a compiled program moves between devices."""

import dataclasses
import math
import re
from collections import Counter

from scripts.planning.hlo import Program

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_LIST = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]")


@dataclasses.dataclass(frozen=True, order=True)
class Collective:
    """`count` equal ones; `bytes` is of the result of one on one device, `devices` of a group.

    `always`: False for those in a branch of a conditional, which not every step takes.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    devices: int
    bytes: int
    always: bool
    count: int

    @property
    def sent(self) -> float:
        """Bytes that each device sends for one of them, over a ring."""
        others = (self.devices - 1) / self.devices
        return {
            "all-reduce": 2 * others * self.bytes,
            "all-gather": others * self.bytes,
            "reduce-scatter": (self.devices - 1) * self.bytes,
            "all-to-all": others * self.bytes,
            "collective-permute": float(self.bytes),
        }[self.kind]


def collectives(program: Program, devices: int) -> list[Collective]:
    """Those of the program, the largest first."""
    found = Counter()
    steady = _steady(program)
    for name, instructions in program.computations.items():
        for one in instructions:
            kind = one.opcode.removesuffix("-start")
            if kind not in KINDS or one.opcode.endswith("-done"):
                continue
            # A start's result is a tuple with the operand too.
            results = one.results[len(one.results) // 2 :] if kind != one.opcode else one.results
            group = group_size(one.rest, devices)
            size = sum(x.bytes for x in results)
            found[kind, results[0].dtype, results[0].shape, group, size, name in steady] += 1
    every = [Collective(*key, count) for key, count in found.items() if key[3] > 1]
    return sorted(every, key=lambda x: (-x.always, -x.count * x.sent, x))


def group_size(text: str, devices: int) -> int:
    """How many devices take part in one, from an instruction's attributes."""
    if found := _MESH.search(text):
        sizes = {name: int(n) for name, n in re.findall(r"'([\w.]+)'=(\d+)", found[1])}
        parts = re.findall(r"'([\w.]+)'(?::\(\d+\)(\d+))?", found[2])
        return math.prod(int(part) if part else sizes[name] for name, part in parts)
    if found := _LIST.search(text):
        return len(found[1].split(","))
    if found := _IOTA.search(text):
        return int(found[2])
    return devices


def _steady(program: Program) -> set[str]:
    """The computations that run in every step: all that are reached past no conditional."""
    seen, waiting = set(), [program.entry]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in program.computations:
            continue
        seen.add(name)
        for one in program.computations[name]:
            if one.opcode != "conditional":
                waiting += _CALLED.findall(one.rest)
    return seen
