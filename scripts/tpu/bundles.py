"""What the compiler's dump of one kernel says: bundles, loops, slots used, copies.

A bundle is one cycle's instructions if nothing stalls. The dump has a line per bundle, with a ``>``
for every loop that it is in, and a table that counts for each the slots that it uses.
"""

import dataclasses
import re
from pathlib import Path

SLOTS = (
    *("MATMUL", "MATPUSH", "XLU", "VALU", "VPOP", "EUP"),
    *("VLOAD", "FILL", "VSTORE", "SPILL", "SALU"),
)
UTILIZATION = "-final_hlo-static-per-bundle-utilization.txt"
BUNDLES = "-final_bundles.txt"
ANALYSIS = "schedule-analysis"
GRANULE = 32  # bytes; what the dump counts copies in
_LINE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(?P<mark>[A-Z]{2})?\s*:\s*(?P<depth>[> ]*)\{")
_COPY = re.compile(r"= dma\.(?P<way>\w+)\b.*?size_in_granules=\*/(?P<size>%?\w+)")
_COMMENT = re.compile(r"/\*(?!size_in_granules=)[^*]*\*/")


@dataclasses.dataclass
class Block:
    """Straight code between two places where a condition skips some. used: slots by kind."""

    bundles: int = 0
    used: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(SLOTS, 0))


@dataclasses.dataclass
class Loop:
    """A stretch of code that repeats, without the loops inside it; the root is what does not.

    copies: (direction, bytes or None if a register holds the size).
    """

    depth: int = 0
    blocks: list[Block] = dataclasses.field(default_factory=lambda: [Block()])
    copies: list[tuple[str, int | None]] = dataclasses.field(default_factory=list)
    inner: list["Loop"] = dataclasses.field(default_factory=list)

    @property
    def bundles(self) -> int:
        return sum(block.bundles for block in self.blocks)

    @property
    def used(self) -> dict[str, int]:
        """Slots used by kind."""
        return {slot: sum(block.used[slot] for block in self.blocks) for slot in SLOTS}

    @property
    def bodies(self) -> list[Block]:
        """The blocks that multiply: alternatives, such as a tile with and without a mask."""
        most = max(block.used["MATMUL"] for block in self.blocks)
        return [block for block in self.blocks if most and block.used["MATMUL"] > most / 2]

    def turn(self) -> "Loop":
        """One turn: the loop with the shortest of its bodies, without the loops inside it."""
        bodies = self.bodies
        shortest = min(bodies, key=lambda block: block.bundles, default=None)
        rest = [block for block in self.blocks if not any(block is body for body in bodies)]
        return Loop(self.depth, [*rest, *([shortest] if shortest else [])], self.copies)

    def walk(self):
        """This loop and those inside it, in the order of the code."""
        yield self
        for loop in self.inner:
            yield from loop.walk()


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One kernel's code. capacity: slots of each kind that a bundle has."""

    name: str
    root: Loop
    capacity: dict[str, int]

    @property
    def bundles(self) -> int:
        return sum(loop.bundles for loop in self.root.walk())

    def used(self, slot: str) -> int:
        """Slots of one kind that the whole code uses."""
        return sum(loop.used[slot] for loop in self.root.walk())

    @property
    def hottest(self) -> Loop:
        """The loop with the most matrix products: of attention, the one over full key tiles.

        Of loops with about as many, the one with the fewest bundles: it has no mask.
        """
        loops = list(self.root.walk())
        most = max(loop.used["MATMUL"] for loop in loops)
        rival = [loop for loop in loops if loop.used["MATMUL"] >= 0.9 * most]
        return min(rival, key=lambda loop: (-loop.depth, loop.bundles))

    def utilization(self, loop: Loop) -> dict[str, float]:
        """Of each kind of slot, the share that the loop's bundles use."""
        return {
            slot: loop.used[slot] / max(loop.bundles * self.capacity[slot], 1) for slot in SLOTS
        }


def kernels(folder: Path, pattern: str) -> list[Kernel]:
    """The kernels dumped into ``folder`` whose names contain ``pattern``, by name.

    Raises:
      ValueError: a dump is not as this version of the compiler writes it.
    """
    found = {}
    for path in sorted(folder.glob(f"*{pattern}*{UTILIZATION}")):
        # 1796097645037426779-jaxattn_forward.1-01-final_hlo-static-per-bundle-utilization.txt
        stem = path.name.removesuffix(UTILIZATION)
        name = stem.split("-", 1)[1].rsplit("-", 1)[0]
        code = [
            each
            for each in folder.glob(f"*-{name}-*{BUNDLES}")
            if ANALYSIS not in each.name and each.name.split("-", 1)[0] == stem.split("-", 1)[0]
        ]
        if len(code) != 1:
            raise ValueError(f"{path.name}: {len(code)} dumps of its bundles, must be 1")
        found[name] = parse(name, code[0].read_text(), path.read_text())
    return list(found.values())


def parse(name: str, code: str, utilization: str) -> Kernel:
    """The kernel of the text of its two dumps.

    Raises:
      ValueError: they do not fit together.
    """
    capacity, rows = _table(name, utilization)
    root, row = Loop(), 0
    stack = [root]
    for line in code.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        depth = match["depth"].count(">")
        if match["mark"] in ("LB", "LH") or depth >= len(stack):
            stack = stack[:depth]
            stack[-1].inner.append(Loop(depth))
            stack.append(stack[-1].inner[-1])
        loop = stack[depth]
        if row == len(rows):
            raise ValueError(f"{name}: more bundles than the {len(rows)} rows of its table")
        if match["mark"] in ("PB", "PF"):
            loop.blocks.append(Block())
        block = loop.blocks[-1]
        block.bundles += 1
        for slot, count in zip(SLOTS, rows[row], strict=True):
            block.used[slot] += count
        loop.copies += _copies(line)
        row += 1
    if not row or len(rows) - row > 1:
        raise ValueError(f"{name}: {row} bundles but {len(rows)} rows in its table")
    return Kernel(name, root, capacity)


def _table(name: str, text: str) -> tuple[dict[str, int], list[list[int]]]:
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        head = next(i for i, line in enumerate(lines) if line.startswith("MATMUL"))
        first = next(i for i, line in enumerate(lines) if line.startswith("== UTIL")) + 1
    except StopIteration:
        raise ValueError(f"{name}: no table of slots in its dump") from None
    titles = [title.strip().rpartition(":")[2] for title in lines[head].split(",")]
    if tuple(titles) != SLOTS:
        raise ValueError(f"{name}: the table has {', '.join(titles)}: must be {', '.join(SLOTS)}")
    capacity = dict(zip(SLOTS, map(int, lines[head + 1].split()), strict=True))
    return capacity, [list(map(int, line.split())) for line in lines[first:]]


def _copies(line: str) -> list[tuple[str, int | None]]:
    if "dma." not in line:
        return []
    found = [_COPY.search(part) for part in _COMMENT.sub("", line).split(";;")]
    return [
        (match["way"], GRANULE * int(match["size"]) if match["size"].isdigit() else None)
        for match in found
        if match is not None
    ]
