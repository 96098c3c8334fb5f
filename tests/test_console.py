"""How programs end: what is a bug, and what is one line."""

import pytest

from scripts import console


def test_bugs_keep_their_traceback_and_exhausted_memory_does_not(capsys):
    def fail(error):
        def main():
            raise error

        return main

    with pytest.raises(RuntimeError, match="a bug"):
        console.run("generate", fail(RuntimeError("a bug")))
    for error, message in (
        (RuntimeError("RESOURCE_EXHAUSTED: out of HBM\nmore"), "out of memory: RESOURCE_EXHAUSTED"),
        (MemoryError(), "out of memory"),
        (FloatingPointError("logits are not finite"), "logits are not finite"),
    ):
        with pytest.raises(SystemExit) as exit_:
            console.run("generate", fail(error))
        out, err = capsys.readouterr()
        assert (exit_.value.code, out) == (1, "")
        (line,) = err.splitlines()
        assert line.startswith(f"generate: error: {message}")
