"""The figures of one compiled program, as plain numbers.

{"kernels": [names], "bundles": of all their code, "tile_bundles": of one turn of the hottest loop,
 "tile": [query rows, keys] of that turn, "bundles_512": the same for a tile of 512 x 512,
 "slots": {kind: share used in that loop}, "tile_spills", "tile_fills", "spills", "fills": slots
 used by spilled registers there and in all code, "vmem_bytes", "copies": [[direction, bytes or
 null]] of the whole code, "kernel_cycles", "kernel_bundles", "around_cycles", "cycles", "bound",
 "hbm_cycles", "copied_bytes"}

``kernel_cycles`` is the compiler's estimate, null where it does not know how often loops run or
made none. ``kernel_bundles``: what a launch executes, null where nobody knows. ``cycles`` is either
of the two, the estimate first, and ``around_cycles``: that of all operations XLA put around the
kernels, layout copies above all. ``hbm_cycles``: what the bytes that the case must move take at the
chip's bandwidth.
"""

import re
from pathlib import Path

from scripts.bench import costs
from scripts.bench.cases import Case
from scripts.tpu import bundles, chips, profile
from scripts.tpu.ways import Way

UNIT = 512 * 512
BOUNDS = {
    "MXU": ("MATMUL", "MATPUSH"),
    "VALU": ("VALU",),
    "EUP": ("EUP",),
    "XLU": ("XLU",),
    "load": ("VLOAD",),
    "store": ("VSTORE",),
    "pop": ("VPOP",),
}
SHOWN = ("MATMUL", "MATPUSH", "VALU", "EUP", "XLU", "VLOAD", "VSTORE", "VPOP", "SALU")
_VMEM = re.compile(r'"memory_space":"1","offset":"\d+","size":"(\d+)"')


def of(case: Case, way: Way, program, folder: Path, topology: str) -> dict:
    """The figures of ``program``, whose dumps are in ``folder``."""
    kernels = bundles.kernels(folder / "dump", way.kernel)
    if not kernels:
        raise ValueError(f"no kernel named {way.kernel} in what was compiled")
    kernel = max(kernels, key=lambda kernel: kernel.hottest.used["MATMUL"])
    loop = kernel.hottest.turn()
    rows, keys = way.tile
    found = {
        "kernels": [each.name for each in kernels],
        "bundles": sum(each.bundles for each in kernels),
        "tile": [rows, keys],
        "tile_bundles": loop.bundles,
        "bundles_512": round(loop.bundles * UNIT / (rows * keys), 1),
        "slots": {s: round(n, 4) for s, n in kernel.utilization(loop).items() if s in SHOWN},
        "tile_spills": loop.used["SPILL"],
        "tile_fills": loop.used["FILL"],
        "spills": sum(each.used("SPILL") for each in kernels),
        "fills": sum(each.used("FILL") for each in kernels),
        "vmem_bytes": _vmem(program.as_text(), kernels),
        "copies": sorted(
            {copy for each in kernels for part in each.root.walk() for copy in part.copies},
            key=str,
        ),
    }
    found |= _cycles(way, kernels, profile.cycles(folder / "profile"))
    chip = chips.CHIPS[chips.generation(topology)]
    found["hbm_cycles"] = round(costs.moved_bytes(case) / chip.bytes_per_cycle)
    found["bound"] = _bound(found)
    return found


def _cycles(way: Way, kernels: list[bundles.Kernel], estimates: dict[str, int]) -> dict:
    inside = [estimates.get(kernel.name) for kernel in kernels]
    known = way.static and bool(estimates) and None not in inside
    kernel_cycles = sum(inside) if known else None
    executed = [way.trips.executed(kernel) if way.trips else None for kernel in kernels]
    kernel_bundles = None if None in executed or len(executed) != 1 else executed[0]
    names = {kernel.name for kernel in kernels}
    around = sum(n for name, n in estimates.items() if name not in names) if estimates else None
    spent = kernel_bundles if kernel_cycles is None else kernel_cycles
    return {
        "kernel_cycles": kernel_cycles,
        "kernel_bundles": kernel_bundles,
        "around_cycles": around,
        "cycles": None if spent is None or around is None else spent + around,
    }


def _bound(found: dict) -> str:
    """What the hottest loop uses most, or HBM where its bytes take longer than the cycles."""
    if found["cycles"] is not None and found["hbm_cycles"] > found["cycles"]:
        return "HBM"
    slots = found["slots"]
    return max(BOUNDS, key=lambda unit: max(slots[slot] for slot in BOUNDS[unit]))


def _vmem(hlo: str, kernels: list[bundles.Kernel]) -> int:
    """Bytes of vector memory that the kernels' buffers and spilled registers take, the largest."""
    sizes = [0]
    for line in hlo.splitlines():
        if any(f"%{kernel.name} = " in line for kernel in kernels):
            sizes += map(int, _VMEM.findall(line))
    return max(sizes)
