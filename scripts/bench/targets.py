"""What a case is to reach, as data, and whether a finished run reached it."""

import dataclasses

OURS = "jaxattn"
KINDS = ("peer", "read", "time", "rate")


@dataclasses.dataclass(frozen=True)
class Target:
    """A ratio that is to be at least ``least``.

    kind:
      "peer": time of the fastest of the implementations ``against``, over ours.
      "read": our bytes per second over the read bandwidth measured in the run.
      "time": our time for the case named ``against[0]``, over that for this case.
      "rate": our FLOP/s or bytes/s here, over those for the case named ``against[0]``.
    """

    kind: str
    least: float
    against: tuple[str, ...] = ()

    def describe(self) -> str:
        several = "the faster of " if len(self.against) > 1 else ""
        other = several + ", ".join(self.against)
        match self.kind:
            case "peer":
                return f">= {self.least:g} x {other}"
            case "read":
                return f">= {self.least:.0%} of the read bandwidth"
            case "time":
                return f"<= {1 / self.least:.3g} x the time of {other}"
            case "rate":
                return f">= {self.least:.0%} of the rate of {other}"
        raise ValueError(f"kind={self.kind!r}: must be one of {', '.join(KINDS)}")


def judge(target: dict, case: dict, cases: dict[str, dict], roofline: dict) -> float | None:
    """The ratio that ``target`` (a Target as a dict) speaks of; None where something is missing.

    case: this case's results, cases: those of all cases by name (scripts/bench/results.py).
    """
    mine = seconds(case, OURS)
    if mine is None:
        return None
    if target["kind"] == "peer":
        theirs = [seconds(case, name) for name in target["against"]]
        theirs = [time for time in theirs if time is not None]
        return min(theirs) / mine if theirs else None
    if target["kind"] == "read":
        return case["bytes"] / mine / roofline["read_bytes_per_second"]
    other = cases.get(target["against"][0])
    time = other and seconds(other, OURS)
    if not time:
        return None
    if target["kind"] == "time":
        return time / mine
    return (work(case) / mine) / (work(other, like=case) / time)


def work(case: dict, like: dict | None = None) -> float:
    """FLOPs of a case that arithmetic limits, else bytes; counted as for ``like`` if given."""
    return case["flops" if (like or case)["limit"] == "compute" else "bytes"]


def seconds(case: dict, implementation: str) -> float | None:
    """The median of the fastest variant of ``implementation``; None if it has none."""
    row = best(case, implementation)
    return row and row["seconds"]


def best(case: dict, implementation: str) -> dict | None:
    """The fastest variant of ``implementation`` that passed the check."""
    timed = [
        row
        for row in case["results"]
        if row["implementation"] == implementation and row["error"] is None
    ]
    return min(timed, key=lambda row: row["seconds"], default=None)
