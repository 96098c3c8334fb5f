"""Cycles by the compiler's own estimate: a file for each operation of the compiled program."""

import re
from pathlib import Path

_NAME = re.compile(r'hlo_op_name: "([^"]+)"')
_CYCLES = re.compile(r"estimated_cycles: (\d+)")
_ALIKE = re.compile(r"num_equivalent_hlos: (\d+)")


def cycles(folder: Path) -> dict[str, int]:
    """Operation -> estimated cycles of it and of all that are equal to it.

    Raises:
      ValueError: a file is not as this version of the compiler writes it.
    """
    found = {}
    for path in sorted(folder.glob("*static_llo_profile.textproto")):
        for entry in path.read_text().split("hlo_op_estimate")[1:]:
            name, each, alike = (p.search(entry) for p in (_NAME, _CYCLES, _ALIKE))
            if name is None or each is None:
                raise ValueError(f"{path.name}: no name or no estimated cycles in it")
            found[name[1]] = int(each[1]) * (int(alike[1]) if alike else 1)
    return found
