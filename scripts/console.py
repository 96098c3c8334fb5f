"""How a program ends and what it says on stderr: one line, the right exit code, no traceback."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

BAD_INPUT = 2
FAILED = 1


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def __init__(self, **options):
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} (--help lists the options)\n")


def say(message: str) -> None:
    """One line on stderr; stdout is for what was asked for."""
    print(message, file=sys.stderr, flush=True)


def run(prog: str, main: Callable[[], int]) -> NoReturn:
    """Run `main` and exit with what it returns, or after one line with the code of what went wrong.

    ValueError and OSError are bad input: 2. Memory and the device running out, and logits that are
    not finite: 1. Ctrl-C: 130. A reader that has closed the pipe: 141, and nothing is said. Any
    other exception is a bug and keeps its traceback.
    """
    try:
        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _fail(prog, "interrupted", 128 + signal.SIGINT)
    except BrokenPipeError:
        # Python flushes stdout again as it exits; there must be somebody to take it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    except (ValueError, OSError) as error:
        code = _fail(prog, _describe(error), BAD_INPUT)
    except (MemoryError, FloatingPointError) as error:
        code = _fail(prog, str(error) or "out of memory", FAILED)
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        code = _fail(prog, f"out of memory: {error}", FAILED)
    sys.exit(code)


def _fail(prog: str, message: str, code: int) -> int:
    line = "; ".join(part.strip() for part in message.splitlines() if part.strip())
    say(f"{prog}: error: {line}" if code != 128 + signal.SIGINT else f"{prog}: {line}")
    return code


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__
