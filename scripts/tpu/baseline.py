"""Figures held to those on record: docs/benchmarks/tpu/<generation>.json."""

from pathlib import Path

from scripts.tpu import chips, document
from scripts.tpu.ways import OURS

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks" / "tpu"
SLACK = 1.05
OTHER_COMPILER = 1.25  # a compiler that is not the recorded one may do this much worse
FIGURES = ("cycles", "kernel_bundles", "around_cycles", "bundles_512", "spills", "vmem_bytes")


def path_of(topology: str) -> Path:
    return FOLDER / f"{chips.generation(topology)}.json"


def recorded(found: dict, case: str, implementation: str = OURS) -> dict:
    """The result of a case in a document.

    Raises:
      ValueError: it has none.
    """
    for entry in found["cases"]:
        for row in entry["results"]:
            if entry["name"] == case and row["implementation"] == implementation:
                return row
    raise ValueError(f"{found['topology']}: nothing on record for {implementation}, {case}")


def worse(now: dict, before: dict, same_compiler: bool) -> list[str]:
    """What of FIGURES got worse by more than the slack, in words; empty if nothing did."""
    slack = SLACK if same_compiler else OTHER_COMPILER
    found = []
    for name in FIGURES:
        old, new = before[name], now[name]
        if old is not None and (new is None or new > old * slack):
            found.append(f"{name} {new}, on record {old}")
    return found


def same_compiler(found: dict) -> bool:
    """Whether the document was made with the versions that are installed."""
    return found["versions"] == document.begin(found["topology"])["versions"]
