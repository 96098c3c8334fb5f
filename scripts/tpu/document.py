"""The document of a run: what it holds, and how it is read.

{"schema", "topology", "versions": {package: version}, "cases": [{"name", "text",
  "results": [{"implementation", "error" or null, ...figures (scripts/tpu/figures.py)}]}]}
"""

import importlib.metadata
import json
from pathlib import Path

SCHEMA = 1
PACKAGES = ("jax", "libtpu")
KEYS = {"topology", "versions", "cases"}


def begin(topology: str) -> dict:
    """A document without results yet."""
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"schema": SCHEMA, "topology": topology, "versions": versions, "cases": []}


def text_of(document: dict) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> dict:
    """The document in a file.

    Raises:
      OSError: the file cannot be read. ValueError: it is not such a document.
    """
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no JSON: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or KEYS - found.keys():
        raise ValueError(f"{path}: must be the JSON of benchmark_tpu with schema {SCHEMA}")
    return found
