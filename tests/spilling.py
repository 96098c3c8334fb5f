"""Spilled registers of compiled kernels against the numbers recorded in golden/."""

import fcntl
import json
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
OTHER_COMPILER = 1.25  # a compiler that is not the recorded one may do this much worse


class Spills:
    """Checks numbers against the record, or records them."""

    def __init__(self, recording: bool):
        self.recording = recording

    def check(self, target, compiler, chip, name, found: dict, figures: dict | None = None):
        """Fails when a number in `found` is larger than the one on record.

        `figures` are recorded with it and may change.
        """
        path = GOLDEN / f"spills_{target}.json"
        if self.recording:
            return _write(path, compiler, chip, name, found | (figures or {}))
        record = json.loads(path.read_text())
        slack = 1 if record["compiler"] == compiler else OTHER_COMPILER
        allowed = record.get(chip, {}).get(name)
        assert allowed, f"{chip}, {name}: nothing on record yet; --record-spills writes it"
        for what, n in found.items():
            assert n <= allowed[what] * slack, (
                f"{chip}, {name}: {what} {n}, recorded {allowed[what]} with {record['compiler']}"
            )


def _write(path, compiler, chip, name, found):
    """Puts one entry into the record, and leaves the others as they are."""
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another test process may be at the same
        file.seek(0)
        record = json.loads(file.read() or "{}")
        record["compiler"] = compiler
        record.setdefault(chip, {})[name] = found
        file.truncate(0)
        file.write(json.dumps(record, indent=1, sort_keys=True) + "\n")
