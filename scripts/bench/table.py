"""Results as rows of text, for the terminal and for the page."""

from scripts.bench.targets import OURS, best, work

HEADER = ("case", "implementation", "ms", "rate", "roofline", "ours is", "target")
UNITS = {"compute": (1e12, "TFLOP/s"), "memory": (1e9, "GB/s")}


def plain(document: dict) -> str:
    """The table as aligned text: per case ours, the fastest variant of each peer, the targets."""
    rows = [HEADER, *(row for case in document["cases"] for row in rows_of(case))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([ceilings(document), *lines]) + "\n"


def ceilings(document: dict) -> str:
    """One line: the device and what it did at best in the run."""
    roofline = document["roofline"]
    return (
        f"{document['device']}: reads {roofline['read_bytes_per_second'] / 1e9:.0f} GB/s, "
        f"copies {roofline['copy_bytes_per_second'] / 1e9:.0f} GB/s (read and written), "
        f"multiplies {roofline['flops_per_second'] / 1e12:.3g} TFLOP/s"
    )


def rows_of(case: dict) -> list[tuple[str, ...]]:
    """Rows of HEADER's columns. The targets stand in the rows of ours and below."""
    names = list(dict.fromkeys(row["implementation"] for row in case["results"]))
    rows = []
    for name in names:
        row = best(case, name)
        if row is None:
            failed = next(row for row in case["results"] if row["implementation"] == name)
            rows.append(["", name, "failed", failed["error"][:60], "", "", ""])
        else:
            rows.append(["", _label(row), *_numbers(case, row), ""])
    said = [verdict(target) for target in case["targets"]]
    rows += [["", "", "", "", "", "", ""] for _ in range(len(said) - len(rows))]
    for row, text in zip(rows, said, strict=False):
        row[-1] = text
    rows[0][0] = case["name"]
    return [tuple(row) for row in rows]


def verdict(target: dict) -> str:
    """What a target asks for and what it got: reached, not reached, or not measured."""
    if target["got"] is None:
        return f"{target['text']}: not measured"
    reached = "reached" if target["got"] >= target["least"] else "NOT reached"
    got = target["got"]
    match target["kind"]:
        case "time":
            shown = f"{1 / got:.3g} x"
        case "peer":
            shown = f"{got:.3g} x"
        case _:
            shown = f"{got:.0%}"
    return f"{target['text']}: {reached} ({shown})"


def rate(case: dict, seconds: float) -> str:
    """FLOP/s where arithmetic limits the case, else bytes/s, with the unit."""
    scale, unit = UNITS[case["limit"]]
    return f"{work(case) / seconds / scale:.4g} {unit}"


def _label(row: dict) -> str:
    return (
        f"{row['implementation']} ({row['variant']})" if row["variant"] else row["implementation"]
    )


def _numbers(case: dict, row: dict) -> list[str]:
    ours = best(case, OURS)
    times = ""
    if ours is not None and row["implementation"] != OURS:
        times = f"{row['seconds'] / ours['seconds']:.2f} x as fast"
    return [
        f"{row['seconds'] * 1e3:.4g}",
        rate(case, row["seconds"]),
        f"{case['roofline_seconds'] / row['seconds']:.0%}",
        times,
    ]
