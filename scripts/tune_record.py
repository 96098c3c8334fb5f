"""The file of tuned tiles of one device: what was timed, with which versions, and when."""

import contextlib
import datetime
import json
import os
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxattn.problem import Tiles
from jaxattn.tuning import FORMAT, parse, read, spell
from scripts.forms import EACH, FLAG, NULL, POSITIVE, TEXT, check
from scripts.tune_candidates import compiler_in_use
from scripts.tune_cases import Case

MICROSECONDS = 1e6
LONGEST_REASON = 160
CASE = {
    "versions": {EACH: TEXT | NULL},
    "date": TEXT,
    "times": {EACH: POSITIVE},
    "failures": {EACH: TEXT},
    "finished": FLAG,
}


class Record:
    """What is known of a device, and its file.

    The file is JSON: ``device``, and by the name of a case its ``shape``, the ``versions`` and
    ``date`` of its measurements, the ``best`` tiles, and of every candidate its microseconds a call
    in ``times`` or, in ``failures``, why it has none. ``finished`` is false where time ran out.
    """

    def __init__(self, path: Path, device: str):
        """Of a file that may exist; a ValueError if it is damaged or another device's."""
        self.path = path
        self._data = {"format": FORMAT, "device": device, "cases": {}}
        self._begun: dict[str, dict[str, Any]] = {}  # new in this run, or done anew
        if path.exists():
            self._load(path, device)
        self._saved = self._text()

    def _load(self, path: Path, device: str) -> None:
        text = path.read_bytes()
        read(text, str(path))
        data = json.loads(text)
        if data.get("device") != device:
            raise ValueError(f"{path}: is of {data.get('device')!r}, this device is {device!r}")
        try:
            check(data["cases"], {EACH: CASE}, "cases", "cases")
            for case in data["cases"].values():
                for tiles in (*case["times"], *case["failures"]):
                    parse(tiles)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        cases = {name: case for name, case in data["cases"].items() if case["date"]}
        self._data = data | {"cases": cases}

    def names(self) -> list[str]:
        return list(self._data["cases"])

    def case(self, case: Case) -> "CaseRecord":
        """What is known of the case with the versions in use. Its first measurement drops those of
        other versions."""
        known = self._begun.get(case.name) or self._data["cases"].get(case.name)
        now = versions()
        if known is None or known["versions"] != now:
            known = self._begun[case.name] = {
                "shape": vars(case.shape), "versions": now, "date": "", "best": None,
                "finished": False, "times": {}, "failures": {},
            }  # fmt: skip
        return CaseRecord(known)

    def recorded(self, name: str) -> "CaseRecord":
        """What is known of one of `names`, by whichever versions."""
        return CaseRecord(self._measured()[name])

    def _measured(self) -> dict[str, dict[str, Any]]:
        return self._data["cases"] | {n: case for n, case in self._begun.items() if case["date"]}

    def _text(self) -> str:
        return json.dumps(self._data | {"cases": self._measured()}, indent=0) + "\n"

    def write(self) -> None:
        """Replace the file by one that is whole at any moment, once there is something new."""
        text = self._text()
        if text == self._saved:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.chmod(name, 0o644)  # mkstemp lets no other user read
            os.replace(name, self.path)
            self._saved = text
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise


def device_of(path: Path) -> str:
    """The device that the file is of; a ValueError if it is no such file."""
    text = path.read_bytes()
    read(text, str(path))
    device = json.loads(text).get("device")
    if not isinstance(device, str):
        raise ValueError(f"{path}: not a file of tuned tiles: device is {device!r}")
    return device


class CaseRecord:
    """Times and failures of one case, of which every candidate has at most one."""

    def __init__(self, data: dict[str, Any]):
        self._data = data

    @property
    def compiler(self) -> str | None:
        """What compiled kernels where nothing else was said."""
        return self._data["versions"].get("compiler")

    @property
    def finished(self) -> bool:
        return self._data["finished"]

    @finished.setter
    def finished(self, value: bool) -> None:
        self._data["finished"] = value

    def knows(self, tiles: Tiles) -> bool:
        return spell(tiles) in self._data["times"] or spell(tiles) in self._data["failures"]

    def seconds(self, tiles: Tiles) -> float | None:
        """The time of a call, if it was measured."""
        time = self._data["times"].get(spell(tiles))
        return None if time is None else time / MICROSECONDS

    def reason(self, tiles: Tiles) -> str | None:
        """Why there is no time, if it was tried in vain."""
        return self._data["failures"].get(spell(tiles))

    def fastest(self, count: int) -> list[Tiles]:
        times = self._data["times"]
        return [parse(text) for text in sorted(times, key=times.get)[:count]]

    def add(self, tiles: Tiles, seconds: float) -> None:
        self._data["times"][spell(tiles)] = round(seconds * MICROSECONDS, 2)
        self._data["best"] = spell(self.fastest(1)[0])
        self._stamp()

    def fail(self, tiles: Tiles, reason: str) -> None:
        self._data["failures"][spell(tiles)] = reason[:LONGEST_REASON]
        self._stamp()

    def _stamp(self) -> None:
        self._data["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()


def versions() -> dict[str, str | None]:
    """Of what compiles the kernels, and which compiler does: Triton's version is the official
    package's, XLA has its own inside."""
    found: dict[str, str | None] = {"compiler": compiler_in_use()}
    for name in ("jax", "jaxlib", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
