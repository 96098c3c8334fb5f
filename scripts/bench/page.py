"""docs/benchmarks.md, made from the JSON of runs."""

from pathlib import Path

from scripts.bench import table

INTRODUCTION = """\
# Benchmarks

Made from the JSON files that it links to, by

```sh
{command}
```

A time is the median, over several rounds, of the device time of one call, launches left out:
[scripts/timing.py](../scripts/timing.py) chains calls. Before it is timed, every implementation is
checked against the oracle in the same run, and one that is off is not timed. FLOPs and bytes count
what the mask keeps, and are spelled in [scripts/bench/costs.py](../scripts/bench/costs.py).
*Roofline* is the share of the bound that the bandwidth and the matrix product measured in the same
run set.
*Ours is* compares our time with that row's. A peer's row is its fastest setting; the JSON has all.
"""
COLUMNS = {
    "case": "---",
    "implementation": "---",
    "ms": "---:",
    "rate": "---:",
    "roofline": "---:",
    "ours is": "---:",
}
LONGEST_TEXT = 60
FOLDER = "benchmarks"  # beside the page: the JSON files and the figures


def page(documents: dict[Path, dict]) -> str:
    """The page. ``documents``: JSON file -> what it holds."""
    files = " ".join(f"docs/{FOLDER}/{path.name}" for path in documents)
    command = f"python -m scripts.benchmark_attention --report {files} --plot docs/{FOLDER}"
    parts = [INTRODUCTION.format(command=f"{command} > docs/benchmarks.md")]
    parts += [_run(path, document) for path, document in documents.items()]
    return "\n".join(parts)


def figure_name(stem: str, suite: str) -> str:
    """The file name of the figure of a suite of the run in ``stem``.json."""
    return f"{stem}-{suite}.svg"


def _run(path: Path, document: dict) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in document["versions"].items())
    small = "**Miniatures, which say nothing about speed.** " if document["small"] else ""
    lines = [
        f"## {document['device']}",
        "",
        f"{small}Run on {document['date']} at commit `{document['commit'] or 'unknown'}` "
        f"([JSON]({FOLDER}/{path.name})). {versions}; our kernels by "
        f"{document['compiler'] or 'the compiler that the library chose'}.",
        "",
        f"In this run, {table.ceilings(document)}.",
        "",
    ]
    cases = {case["name"]: case for case in document["cases"]}
    for suite, names in document["suites"].items():
        shown = [cases[each] for each in names if each in cases]
        if not shown:
            continue
        figure = figure_name(path.stem, suite)
        lines += [f"### {suite}", "", f"![{suite}: share of the roofline]({FOLDER}/{figure})", ""]
        lines += _targets(shown)
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "|".join(COLUMNS.values()) + "|"]
        lines += [row for case in shown for row in _rows(case)]
        lines.append("")
    return "\n".join(lines)


def _targets(cases: list[dict]) -> list[str]:
    rows = [
        _row([case["name"], table.verdict(target)]) for case in cases for target in case["targets"]
    ]
    return ["| case | target |", "|---|---|", *rows, ""] if rows else []


def _rows(case: dict) -> list[str]:
    rows = [cells for _, *cells, _ in table.rows_of(case) if any(cells)]
    text = case["text"] if len(case["text"]) <= LONGEST_TEXT else "lengths in the JSON"
    names = [f"{case['name']} (`{text}`)"] + [""] * (len(rows) - 1)
    return [_row([name, *cells]) for name, cells in zip(names, rows, strict=True)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
