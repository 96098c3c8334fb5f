"""Processes that compile for us: started once, and again after one that the compiler took along."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Worker:
    """A compiler process for one topology (scripts/tpu/compiler.py); closes as a context ends."""

    def __init__(self, topology: str):
        self.topology = topology
        self._process: subprocess.Popen | None = None
        self._profile = True

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._stop()

    def figures(self, case: str, way: str) -> dict:
        """The figures of one case, or {"error"}.

        The compiler ends its process where it cannot estimate cycles (tpu7x, some peers): then
        once more without the estimate.
        """
        for profile in (True, False):
            answer = self._ask(profile, {"case": case, "way": way})
            if answer is not None:
                return answer
        return {"error": "the compiler ended its process"}

    def _ask(self, profile: bool, job: dict) -> dict | None:
        if self._process is None or self._profile != profile:
            self._stop()
            self._start(profile)
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        self._stop()
        return None

    def _start(self, profile: bool) -> None:
        command = [sys.executable, "-m", "scripts.tpu.compiler", self.topology]
        self._profile = profile
        self._process = subprocess.Popen(
            command + ["--no-profile"] * (not profile),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.terminate()
        self._process.wait()
        self._process = None
