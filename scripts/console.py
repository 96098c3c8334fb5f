"""How a program ends and what it says on stderr: one line, the right exit code, no traceback."""

import _thread
import argparse
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn, TextIO

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 128 + signal.SIGINT
_silent, _abrupt = threading.Event(), threading.Event()
_name = "python"  # until `run` knows better
# A line longer than this is cut in its middle: its ends say what is wrong and what the rule is.
LONGEST_LINE = 500


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def __init__(self, **options):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def error(self, message: str) -> NoReturn:
        line = one_line(message)
        self.exit(BAD_INPUT, f"{self.prog}: error: {line} (--help lists the options)\n")


def say(message: str) -> None:
    """One line on stderr, if there is somebody to take it; stdout is for what was asked for."""
    if not _silent.is_set():
        _write(message)


def only_errors() -> None:
    """Say nothing from now on but what went wrong."""
    _silent.set()


def end_at_once() -> None:
    """Leave out what Python and its packages do at exit, should the program end with an error."""
    _abrupt.set()


def fail(message: str) -> None:
    """An error on stderr, in the program's name."""
    _write(f"{_name}: error: {one_line(message)}")


def _write(message: str) -> None:
    if sys.stderr is None:  # print would take stdout instead
        return
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        _to_nowhere(sys.stderr)


def one_line(message: str) -> str:
    """The lines of `message` as one of at most LONGEST_LINE characters."""
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    if len(line) <= LONGEST_LINE:
        return line
    half = LONGEST_LINE // 2
    return f"{line[:half]}…{line[1 - half :]}"


def run(prog: str, main: Callable[[], int]) -> NoReturn:
    """Run `main` and exit with what it returns, or after one line with the code of what went wrong.

    ValueError and OSError are bad input: 2. Memory and the device running out, and logits that are
    not finite: 1. Ctrl-C: 130. A reader that has closed the pipe: 141, and nothing is said. Any
    other exception is a bug and keeps its traceback.
    """
    global _name
    _name = prog
    _take_closed_streams()
    if sys.stdout is None:
        sys.exit(_fail(prog, "stdout is closed, so the output has nowhere to go", BAD_INPUT))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    with _interrupts() as seen:
        try:
            code = main()
            sys.stdout.flush()
        except BrokenPipeError:
            code = 128 + signal.SIGPIPE
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:
            code = INTERRUPTED if seen.is_set() else _code_after(prog, error)
        if seen.is_set() or code == INTERRUPTED:
            say(f"{prog}: interrupted")
            code = INTERRUPTED
    # Python flushes stdout again as it exits; there must be somebody to take it.
    if code in (INTERRUPTED, 128 + signal.SIGPIPE):
        _to_nowhere(sys.stdout)
    try:
        sys.stdout.flush()
    except OSError:
        _to_nowhere(sys.stdout)
    if code and _abrupt.is_set():
        os._exit(code)
    sys.exit(code)


def _code_after(prog: str, error: Exception) -> int:
    """Say what went wrong and return its exit code. An error that is a bug is raised again."""
    match error:
        case ValueError() | OSError():
            return _fail(prog, _describe(error), BAD_INPUT)
        case MemoryError() | FloatingPointError():
            return _fail(prog, str(error) or "out of memory", FAILED)
        case RuntimeError() if "RESOURCE_EXHAUSTED" in str(error):
            return _fail(prog, f"out of memory: {error}", FAILED)
    raise error


def _fail(prog: str, message: str, code: int) -> int:
    _write(f"{prog}: error: {one_line(message)}")
    return code


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Make sure that Ctrl-C ends what runs inside; the event tells whether there was one.

    A KeyboardInterrupt that is raised inside a callback of C code (JAX has one in the garbage
    collector) goes to sys.unraisablehook and the program runs on: it is then sent again a little
    later. One that is raised while a module is imported may come out as another exception.
    """
    seen = threading.Event()
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook

    def interrupt(number, frame):
        seen.set()
        raise KeyboardInterrupt

    def resend(unraisable):
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        timer = threading.Timer(0.01, _thread.interrupt_main)
        timer.daemon = True
        timer.start()

    if handler is signal.SIG_IGN:  # as in a shell's background job
        yield seen
        return
    sys.unraisablehook = resend
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = hook


def _take_closed_streams() -> None:
    """Occupy the numbers of closed standard streams, which the next opened file would get."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


def _to_nowhere(stream: TextIO) -> None:
    """Send what the stream still holds, and all that comes, to /dev/null."""
    with contextlib.suppress(OSError):  # of a stream without a file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
