"""Find the fastest tile sizes of attention on this device: `python -m scripts.tune --help`."""

import argparse
import dataclasses
import json
import os
import time
from importlib import resources
from pathlib import Path

from scripts import console
from scripts.case_options import add_case_options, matching, no_match
from scripts.console import say

PROG = "tune"
DESCRIPTION = """\
Time the kernels of attention with many tile sizes on this device, each checked against the
reference first, and write what was found to the package's file for the device, from which every
later call takes its tiles.

A case is one launch of sequences that are all alike:
"""
AFTER = """

The file is written after every case and when time or patience ends; a later run goes on where it
stopped, and starts a case anew when jax, jaxlib, triton or the compiler (JAXATTN_COMPILER) are
others.

stdout: a line a case (with --json an object): its name, the best tiles and their microseconds. With
--check-formula: what the formula would take too, its time over the best one's, and SLOW beyond 1.1.

exit code: 0, or 2 bad input, 1 out of memory, a device that stopped working or a formula that is
SLOW, 130 Ctrl-C."""

SLOW = 1.1  # times the best


def parse(argv: list[str] | None) -> argparse.Namespace:
    from scripts.tune_cases import SYNTAX

    parser = console.Parser(prog=PROG, description=DESCRIPTION + SYNTAX + AFTER)
    add_case_options(parser, "this case instead")
    parser.add_argument("--small", action="store_true", help="cases that take seconds on a CPU")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help="stop when they are over; default: never"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="default: the device's file in the jaxattn package"
    )
    parser.add_argument(
        "--check-formula",
        action="store_true",
        help="tune nothing: compare the formula with what the file has, timing what it lacks; "
        "without a GPU --output names the file, and what it lacks counts as slow",
    )
    parser.add_argument(
        "--implementation",
        choices=("triton", "xla"),
        default="triton",
        help="xla has block sizes only, which no file gives it: a trial of this program, with "
        "--output (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        default=min(8, os.cpu_count() or 1),
        help="candidates that are compiled at once (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a case")
    args = parser.parse_args(argv)
    if args.small and args.shapes:
        parser.error("--small and --shapes both name the cases")
    if args.budget is not None and not args.budget > 0:
        parser.error(f"--budget={args.budget:g}: must be above 0")
    if args.threads < 1:
        parser.error(f"--threads={args.threads}: must be at least 1")
    if args.implementation == "xla" and args.output is None:
        parser.error("--implementation xla needs --output")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    cases = chosen(args)
    if args.list:
        print("\n".join(case.name for case in cases))
        return 0
    from scripts.tune_record import Record, device_of

    if args.check_formula and args.output is not None and not has_gpu():
        device = device_of(Path(args.output))  # what is recorded needs no device
    else:
        device = the_device(args.implementation)
    record = Record(output(args, device), device)
    return (check_formula if args.check_formula else tune)(args, cases, device, record)


def chosen(args: argparse.Namespace) -> list:
    """The cases that the options name; ValueError if there is none."""
    from scripts import tune_cases

    names = args.shapes or (tune_cases.SMALL_NAMES if args.small else tune_cases.NAMES)
    cases = [tune_cases.parse(name) for name in names]
    cases = matching(cases, args)
    if not cases:
        raise no_match(args)
    return list(dict.fromkeys(cases))


def has_gpu() -> bool:
    import jax

    return jax.default_backend() == "gpu"


def the_device(implementation: str) -> str:
    """The name of the device to tune for; ValueError if it cannot run the implementation."""
    import jax

    if implementation == "triton" and not has_gpu():
        raise ValueError(
            f"tuning needs a GPU, JAX has {jax.default_backend()!r} "
            "(--implementation xla --small tries the program without one)"
        )
    return jax.devices()[0].device_kind


def output(args: argparse.Namespace, device: str) -> Path:
    from jaxattn.tuning import slug

    if args.output is not None:
        path = Path(args.output)
        if path.is_dir():
            raise ValueError(f"--output {path}: is a folder, must be a file")
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.absolute().parent, os.W_OK):
            raise ValueError(f"--output {path}: its folder cannot be written to")
        return path
    return Path(str(resources.files("jaxattn"))) / "tuned" / f"{slug(device)}.json"


def tune(args: argparse.Namespace, cases: list, device: str, record) -> int:
    """Tune the cases one after the other, and print each as it is done."""
    from scripts import tune_search

    progress = Progress(cases, device, args)
    bench = tune_search.Bench(
        device, args.implementation, progress.deadline, args.threads, progress.told
    )
    for index, case in enumerate(cases):
        known = record.case(case)
        progress.index = index
        try:
            tune_search.tune(bench, case, known)
        except (tune_search.OutOfTime, tune_search.DeviceLost) as reason:
            return stopped(reason, index, cases)
        finally:
            record.write()
        print_case(args, case, known)
    say(f"{PROG}: wrote {record.path}")
    return 0


def stopped(reason: Exception, index: int, cases: list) -> int:
    """Say why nothing is timed from the case on, and return the exit code."""
    from scripts import tune_search

    if isinstance(reason, tune_search.OutOfTime):
        say(f"{PROG}: stopped by --budget in case {index + 1} of {len(cases)}")
        return 0
    # Its candidate is recorded, and so not tried again.
    say(f"{PROG}: error: run this again to go on: {console.one_line(str(reason))}")
    return console.FAILED


def print_case(args: argparse.Namespace, case, known) -> None:
    from jaxattn.tuning import spell

    best = known.fastest(1)
    tiles = spell(best[0]) if best else None
    micros = known.seconds(best[0]) * 1e6 if best else None
    if args.json:
        print(json.dumps({"case": case.name, "best": tiles, "us": micros}), flush=True)
        return
    found = f"{tiles:<20} {micros:10.2f} us" if best else "no candidate works"
    print(f"{case.name:<52} {found}", flush=True)


class Progress:
    """Says on stderr, once a second at most, how far the search is."""

    def __init__(self, cases: list, device: str, args: argparse.Namespace):
        from scripts.tune_candidates import candidates

        self.index = 0
        self.start = time.monotonic()
        self.deadline = self.start + (args.budget or float("inf"))
        self._counts = [len(candidates(c.shape, device, args.implementation)) for c in cases]
        self._timed = 0
        self._last = self.start

    def told(self, case, tiles, record, done: int, count: int) -> None:
        """A candidate is done with: `done` of the case's `count`."""
        from jaxattn.tuning import spell

        self._timed += 1
        now = time.monotonic()
        if reason := record.reason(tiles):
            say(f"{PROG}: {case.name}: {spell(tiles)} failed: {console.one_line(reason)}")
        if now - self._last < 1 and done < count:
            return
        self._last = now
        fastest = record.fastest(1)
        best = (
            f"best {record.seconds(fastest[0]) * 1e6:.1f} us ({spell(fastest[0])})"
            if fastest
            else "none works yet"
        )
        left = count - done + sum(self._counts[self.index + 1 :])
        seconds = left * (now - self.start) / self._timed
        say(
            f"{PROG}: case {self.index + 1} of {len(self._counts)}, {case.name}: candidate {done} "
            f"of {count}, {best}; about {max(0, min(seconds, self.deadline - now)):.0f} s left"
        )


def check_formula(args: argparse.Namespace, cases: list, device: str, record) -> int:
    """Compare the formula with the best tiles of the recorded cases, timing it where it must."""
    import jax

    from jaxattn.tuning import formula, spell
    from scripts import tune_search

    names = set(record.names())
    cases = [case for case in cases if case.name in names]
    if not cases:
        raise ValueError(f"{record.path}: has none of these cases yet")
    progress = Progress(cases, device, args)
    bench = tune_search.Bench(
        device, args.implementation, progress.deadline, args.threads, progress.told
    )
    slow, local = 0, jax.devices()[0].device_kind
    for index, case in enumerate(cases):
        known, tiles = record.recorded(case.name), formula(case.shape, device)
        tiles = dataclasses.replace(tiles, compiler=tiles.compiler or known.compiler)
        if not known.knows(tiles) and device == local:
            say(f"{PROG}: {case.name}: timing {spell(tiles)}")
            try:
                tune_search.measure(bench, case, record.case(case), tiles)
            except (tune_search.OutOfTime, tune_search.DeviceLost) as reason:
                return stopped(reason, index, cases) or (console.FAILED if slow else 0)
            finally:
                record.write()
            known = record.recorded(case.name)
        slow += _print_comparison(args, case, known, tiles)
    say(f"{PROG}: {slow} of {len(cases)} are slower than {SLOW:g} times the best")
    return console.FAILED if slow else 0


def _print_comparison(args: argparse.Namespace, case, known, tiles) -> bool:
    """Print a case's line; whether the formula is slow there."""
    from jaxattn.tuning import spell

    seconds, best = known.seconds(tiles), known.fastest(1)
    ratio = seconds / known.seconds(best[0]) if seconds is not None else None
    slow = ratio is None or ratio > SLOW
    if args.json:
        line = {
            "case": case.name,
            "formula": spell(tiles),
            "best": spell(best[0]) if best else None,
            "ratio": ratio,
            "slow": slow,
        }
        print(json.dumps(line), flush=True)
        return slow
    against = f"{spell(best[0]):<20}" if best else "nothing works"
    told = f"{ratio:5.2f}" if ratio is not None else known.reason(tiles) or "not timed"
    print(
        f"{case.name:<52} {spell(tiles):<20} {against} {told}{' SLOW' if slow else ''}", flush=True
    )
    return slow


if __name__ == "__main__":
    console.run(PROG, main)
