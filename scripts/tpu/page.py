"""The tables of docs/tpu.md, made from the JSON of runs."""

from pathlib import Path

from scripts.tpu import table


def tables(documents: dict[Path, dict]) -> str:
    """A section for each document. ``documents``: JSON file -> what it holds."""
    return "\n".join(_section(path, found) for path, found in documents.items())


def _section(path: Path, found: dict) -> str:
    lines = [f"### {found['topology']}", ""]
    lines += [f"{table.title(found)} ([JSON](benchmarks/tpu/{path.name})).", ""]
    lines += [_row(table.HEADER), "|" + "---|" * len(table.HEADER)]
    lines += [_row(row) for case in found["cases"] for row in table.rows_of(case)]
    return "\n".join([*lines, ""])


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
