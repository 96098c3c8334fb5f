"""The document of a run: what it holds, and how it is written and read.

{"schema", "date" (UTC), "device", "platform", "versions", "commit", "small",
 "compiler": of our kernels, null if the library chose it,
 "roofline": {"read_bytes_per_second", "copy_bytes_per_second", "flops_per_second"},
 "suites": {suite: [case names]},
 "cases": [{"name", "text", "flops", "bytes", "limit", "roofline_seconds",
   "targets": [{"kind", "least", "against", "text", "got"}],
   "results": [{"implementation", "variant", "error", "off", "seconds", "calls", "rounds"}]}]}

Times are seconds per call: ``seconds`` is the median of ``rounds``. ``off`` is the largest distance
from the oracle over a row's norm. A row with ``error`` has no time. ``wall_seconds``, on request,
is one call's from Python to its result.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from scripts.bench.targets import KINDS, Target, judge
from scripts.forms import EACH, FLAG, NULL, NUMBER, POSITIVE, TEXT, check, load, one_of

SCHEMA = 1
# Of what a reader takes from the document.
ROW = {
    "implementation": TEXT,
    "variant": TEXT,
    "error": TEXT | NULL,
    "off": NUMBER | NULL,
    "seconds": POSITIVE | NULL,
    "rounds": [POSITIVE],
}
CASE = {
    "name": TEXT,
    "text": TEXT,
    "flops": POSITIVE,
    "bytes": POSITIVE,
    "limit": one_of("compute", "memory"),
    "roofline_seconds": POSITIVE,
    "targets": [
        {
            "kind": one_of(*KINDS),
            "least": POSITIVE,
            "against": [TEXT],
            "text": TEXT,
            "got": POSITIVE | NULL,
        }
    ],
    "results": [ROW],
}
FORM = {
    "date": TEXT,
    "device": TEXT,
    "versions": {EACH: TEXT},
    "commit": TEXT | NULL,
    "small": FLAG,
    "compiler": TEXT | NULL,
    "roofline": dict.fromkeys(
        ("read_bytes_per_second", "copy_bytes_per_second", "flops_per_second"), POSITIVE
    ),
    "suites": {EACH: [TEXT]},
    "cases": [CASE],
}
PACKAGES = (
    "jax",
    "jaxlib",
    "jaxattn",
    "jax-triton",
    "triton",
    "torch",
    "tokamax",
    "flash-attn3-jax",
)


def begin(
    roofline: dict, suites: dict[str, list[str]], options: dict[str, Any], commit: str | None
) -> dict:
    """A document without results yet; ``commit`` is for where git does not tell."""
    import jax

    device = jax.devices()[0]
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device.device_kind,
        "platform": device.platform,
        "versions": _versions(),
        "commit": _commit() or commit,
        **options,
        "roofline": roofline,
        "suites": suites,
        "cases": [],
    }


def judged(document: dict) -> dict:
    """The document with what every target got so far."""
    cases = {case["name"]: case for case in document["cases"]}
    for case in cases.values():
        for target in case["targets"]:
            known = Target(target["kind"], target["least"], tuple(target["against"]))
            target["text"] = known.describe()
            target["got"] = judge(target, case, cases, document["roofline"])
    return document


def write(document: dict, path: Path) -> None:
    """Write the document so that a reader finds it whole, or as it was before."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text_of(document), encoding="utf-8")
    os.replace(new, path)


def text_of(document: dict) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> dict:
    """The document in a file.

    Raises:
      OSError: the file cannot be read. ValueError: it is not such a document.
    """
    text = path.read_bytes()
    try:
        document = load(text)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"must be a benchmark's JSON with schema {SCHEMA}")
        check(document, FORM, "this benchmark's JSON")
        for index, case in enumerate(document["cases"]):
            _check_rows(case["results"], f"cases[{index}].results")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return document


def _check_rows(rows: list[dict], place: str) -> None:
    if not rows:
        raise ValueError(f"{place} is []: must have a row at least")
    for index, row in enumerate(rows):
        if row["error"] is None and row["seconds"] is None:
            raise ValueError(f"{place}[{index}].seconds is null: must be a number without an error")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The checkout's commit, "+" after it if files differ from it; None outside of git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        # Changed lines and new files count; which files git does not ignore it knows itself.
        commit = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changes = subprocess.run(
            [*git, "status", "--porcelain"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + "+" * bool(changes.strip())
