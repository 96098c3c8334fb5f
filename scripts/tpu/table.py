"""A document as rows of text, for the terminal and for the page."""

from scripts.tpu.ways import OURS

HEADER = (
    *("case", "implementation", "cycles", "kernel", "around", "bundles/512²", "MXU", "push"),
    *("VALU", "EUP", "XLU", "load", "store", "spills", "VMEM", "copies", "bound", "ours is"),
)
UNKNOWN = "?"
SLOTS = ("MATMUL", "MATPUSH", "VALU", "EUP", "XLU", "VLOAD", "VSTORE")


def plain(document: dict) -> str:
    """The table as aligned text."""
    rows = [HEADER, *(row for case in document["cases"] for row in rows_of(case))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([title(document), *lines]) + "\n"


def title(document: dict) -> str:
    """One line: what was compiled for, by which versions."""
    versions = ", ".join(
        f"{package} {version}" for package, version in document["versions"].items()
    )
    return f"{document['topology']}, one TensorCore, by the compiler's static schedule; {versions}"


def rows_of(case: dict) -> list[tuple[str, ...]]:
    """Rows of HEADER's columns, ours first; what nobody knows is a question mark."""
    ours = next((row for row in case["results"] if row["implementation"] == OURS), None)
    rows = []
    for row in case["results"]:
        name = case["name"] if not rows else ""
        if row["error"] is not None:
            rows.append((name, row["implementation"], f"failed: {row['error'][:60]}"))
        else:
            rows.append((name, row["implementation"], *_numbers(row), _ratio(row, ours)))
    return [(*row, *[""] * (len(HEADER) - len(row))) for row in rows]


def ratio(row: dict, ours: dict | None) -> tuple[float, str] | None:
    """Ours over that row, and of what: cycles, or bundles a tile where cycles are unknown."""
    if ours is None or row is ours or ours["error"] is not None or row["error"] is not None:
        return None
    for what, name in (("cycles", "cycles"), ("bundles_512", "bundles")):
        if ours[what] is not None and row[what] is not None:
            return ours[what] / row[what], name
    return None


def _ratio(row: dict, ours: dict | None) -> str:
    found = ratio(row, ours)
    return "" if found is None else f"{found[0]:.2f} x its {found[1]}"


def _numbers(row: dict) -> list[str]:
    kernel, sign = row["kernel_cycles"], ""
    if kernel is None:
        kernel, sign = row["kernel_bundles"], "~"
    return [
        _count(row["cycles"], sign),
        _count(kernel, sign),
        _count(row["around_cycles"]),
        _count(round(row["bundles_512"])),
        *[f"{row['slots'][slot]:.0%}" for slot in SLOTS],
        f"{row['tile_spills']}/{row['spills']}",
        f"{row['vmem_bytes'] / 2**20:.1f} MiB",
        _copies(row["copies"]),
        row["bound"],
    ]


def _count(number: int | None, sign: str = "") -> str:
    return UNKNOWN if number is None else f"{sign}{number:,}"


def _copies(copies: list) -> str:
    """Sizes of the copies from HBM that the kernel starts itself."""
    sizes = sorted(size for way, size in copies if way == "hbm_to_vmem" and size)
    return "/".join(_size(size) for size in sizes)


def _size(size: int) -> str:
    return f"{size >> 10} KiB" if size >= 1024 else f"{size} B"
