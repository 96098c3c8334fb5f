"""How programs end: what is a bug, and what is one line."""

import io
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from scripts import console


def fail(error):
    def main():
        raise error

    return main


def test_bugs_keep_their_traceback_and_exhausted_memory_does_not(capsys):
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


class Swallower:
    """Gets a Ctrl-C where Python can raise nothing: as its last reference goes."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_a_swallowed_ctrl_c_still_ends_the_program(capsys):
    def main():
        swallower = Swallower()
        del swallower
        for _ in range(1000):
            time.sleep(0.01)
        return 0

    handler = signal.getsignal(signal.SIGINT)
    start = time.monotonic()
    with pytest.raises(SystemExit) as exit_:
        console.run("generate", main)
    assert time.monotonic() - start < 8
    assert exit_.value.code == 130
    assert capsys.readouterr().err == "generate: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_ctrl_c_that_comes_out_as_another_error(capsys):
    def main():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy failed to import") from None

    with pytest.raises(SystemExit) as exit_:
        console.run("generate", main)
    assert exit_.value.code == 130
    assert capsys.readouterr().err == "generate: interrupted\n"


def test_long_and_broken_messages_are_one_short_line(capsys):
    with pytest.raises(SystemExit):
        console.Parser(prog="generate").parse_args(["--x\ny", "9" * 5000, "end"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("generate: error: unrecognized arguments: --x; y 999")
    assert line.endswith("999 end (--help lists the options)")
    assert len(line) < 600
    assert console.one_line("a\n\n  b ") == "a; b"
    assert len(console.one_line("a" * 501)) == console.LONGEST_LINE
    assert console.one_line("a" * 500) == "a" * 500


def test_no_stderr_does_not_mean_stdout(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    console.say("lost")
    assert capsys.readouterr().out == ""


def test_stdout_is_utf8_whatever_the_locale(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))

    def main():
        sys.stdout.write("☃\ud800\n")
        return 0

    with pytest.raises(SystemExit):
        console.run("generate", main)
    assert raw.getvalue().decode("utf-8") == "☃?\n"


@pytest.mark.parametrize(
    ("redirection", "code", "out", "err"),
    [
        ("", 0, "text\n", "progress\n"),
        ("2>&-", 0, "text\n", ""),
        ("2>/dev/full", 0, "text\n", ""),
        (">&-", 2, "", "p: error: stdout is closed, so the output has nowhere to go\n"),
        (">/dev/full", 2, "", "progress\np: error: No space left on device\n"),
    ],
)
def test_streams_that_take_nothing(redirection, code, out, err):
    if "full" in redirection and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full on this system")
    program = textwrap.dedent("""
        from scripts import console
        def main():
            console.say("progress")
            print("text")
            return 0
        console.run("p", main)
    """)
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {redirection}', sys.executable, program],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, out)
    assert done.stderr == err
