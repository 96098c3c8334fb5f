"""Spilled registers of compiled kernels against the numbers recorded in golden/."""

import json
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
OTHER_COMPILER = 1.25  # a compiler that is not the recorded one may do this much worse


class Spills:
    """Checks numbers against the record, or records them."""

    def __init__(self, recording: bool):
        self.recording, self.found = recording, {}

    def check(self, target, compiler, chip, name, found: dict):
        """Fails when a number in `found` is larger than the one on record."""
        self.found.setdefault(target, {"compiler": compiler}).setdefault(chip, {})[name] = found
        if self.recording:
            return
        record = json.loads((GOLDEN / f"spills_{target}.json").read_text())
        slack = 1 if record["compiler"] == compiler else OTHER_COMPILER
        allowed = record[chip][name]
        for what, n in found.items():
            assert n <= allowed[what] * slack, (
                f"{chip}, {name}: {what} {n}, recorded {allowed[what]} with {record['compiler']}"
            )

    def write(self):
        """The record of every target that was compiled."""
        for target, found in self.found.items():
            path = GOLDEN / f"spills_{target}.json"
            path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
