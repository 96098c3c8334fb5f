"""Time attention against its peers, after checking each against the oracle: `... --help`."""

import argparse
import dataclasses
import os
import time
from pathlib import Path

from scripts import console
from scripts.bench.cases import SYNTAX, Case, parse
from scripts.bench.suites import NAMES, suite
from scripts.case_options import add_case_options, matching, no_match
from scripts.console import say

PROG = "benchmark_attention"
PEER_NAMES = ("xla", "cudnn", "tokamax", "fa3", "jax-mha", "torch-sdpa", "vllm")
DESCRIPTION = f"""\
Time jaxattn's attention in bf16 against other implementations, on the device JAX runs on.

Everything is checked against the reference implementation first; what is off is not timed. stdout
gets one table (or, with --json -, the JSON); progress goes to stderr. Nothing here needs a peer:
those that are not installed are left out, with the reason on stderr.

suites: {", ".join(NAMES)}, all

--shapes takes
{SYNTAX}

exit code: 0; 1 if one of our own results is wrong or failed; 2 bad input."""
OWN = "own shapes"
MOST_JOBS = 8


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    if args.report:
        return _report(args)
    suites = _suites(args)
    if args.list:
        _list(suites)
        return 0
    return _run(args, suites)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(prog=PROG, description=DESCRIPTION)
    what = parser.add_argument_group("what is timed")
    what.add_argument("suites", nargs="*", metavar="SUITE", help="one or more of the suites above")
    add_case_options(what, "a case of your own, beside those of suites")
    what.add_argument(
        "--peers",
        default="all",
        metavar="NAMES",
        help=f"all, none, or some of {','.join(PEER_NAMES)} (default: all that are installed)",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--rounds", type=int, metavar="N", help="rounds a median is taken of (default: 7)"
    )
    how.add_argument(
        "--small", action="store_true", help="miniatures of the cases, to try the program out"
    )
    how.add_argument(
        "--wall", action="store_true", help="also time ours per call, launching included"
    )
    how.add_argument(
        "--compiler",
        choices=("xla", "triton"),
        help="of our kernels on GPU (default: the library's own)",
    )
    how.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"programs compiled at once (default: as many as cores, up to {MOST_JOBS})",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE|-", help="write results there, after every case")
    output.add_argument(
        "--commit", metavar="ID", help="what to record where the files are no git checkout"
    )
    output.add_argument("--plot", metavar="DIR", help="draw a figure for each suite there")
    output.add_argument(
        "--report",
        nargs="+",
        metavar="FILE.json",
        help="run nothing: print docs/benchmarks.md for these results (and --plot them)",
    )
    args = parser.parse_args(argv)
    _check(args)
    return args


def _check(args: argparse.Namespace) -> None:
    for name in ("rounds", "jobs"):
        number = getattr(args, name)
        if number is not None and number < 1:
            raise ValueError(f"--{name} must be at least 1, got {number}")
    _peer_names(args.peers)
    if args.report and (args.suites or args.shapes or args.list or args.json):
        raise ValueError("--report runs nothing: it goes with --plot only")
    if not (args.report or args.suites or args.shapes or args.list):
        raise ValueError(f"name a suite ({', '.join(NAMES)}, all) or give --shapes")
    if args.plot:
        from scripts.bench import figures

        if reason := figures.absent():
            raise ValueError(f"--plot: {reason}")


def _suites(args: argparse.Namespace) -> dict[str, list[Case]]:
    """Suite name -> cases; a case that two suites have is in both."""
    names = args.suites or ([] if args.shapes else ["all"])
    names = list(dict.fromkeys(each for name in names for each in _parts(name)))
    chosen = {name: suite(name) for name in names}
    if args.only:
        left = {name: matching(cases, args) for name, cases in chosen.items()}
        chosen = {name: cases for name, cases in left.items() if cases}
        if not chosen and not args.shapes:
            raise no_match(args)
    if args.shapes:
        chosen[OWN] = [parse(text) for text in dict.fromkeys(args.shapes)]
    if args.small:
        chosen = {name: [case.small() for case in cases] for name, cases in chosen.items()}
    return chosen


def _parts(name: str) -> list[str]:
    if name == "all":
        return list(NAMES)
    suite(name)
    return [name]


def _list(suites: dict[str, list[Case]]) -> None:
    for name, cases in suites.items():
        print(f"{name}:")
        for case in cases:
            print(f"  {case.name}: {case.text}")
            for target in case.targets:
                print(f"      {target.describe()}")


def _run(args: argparse.Namespace, suites: dict[str, list[Case]]) -> int:
    # One GPU holds JAX and PyTorch: neither may take all of its memory. Set before JAX starts.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from jaxattn.checks import ENVIRONMENT
    from scripts.bench import results, roofline

    path = None if args.json in (None, "-") else Path(args.json)
    if path is not None and not path.absolute().parent.is_dir():
        raise ValueError(f"--json {args.json}: there is no such folder")
    if path is not None and path.is_dir():
        raise ValueError(f"--json {args.json}: is a folder, must be a file")
    if path is not None and not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"--json {args.json}: its folder cannot be written to")
    start = time.monotonic()
    options = _options(args)
    say(f"{PROG}: measuring what the device does at best")
    ceilings = roofline.measure(args.small)
    document = results.begin(
        dataclasses.asdict(ceilings),
        {name: [case.name for case in cases] for name, cases in suites.items()},
        {"small": args.small, "compiler": args.compiler or os.environ.get(ENVIRONMENT)},
        args.commit,
    )
    order = [case.name for cases in suites.values() for case in cases]
    for found in _results(suites, ceilings, options):
        document["cases"] = sorted(
            [*document["cases"], found], key=lambda case: order.index(case["name"])
        )
        results.judged(document)
        if path is not None:
            results.write(document, path)
    say(f"{PROG}: took {time.monotonic() - start:.0f} s")
    return _show(args, document)


def _options(args: argparse.Namespace):
    from scripts.bench.measure import Options
    from scripts.timing import ROUNDS

    return Options(
        peers=_peers(args.peers),
        rounds=args.rounds or ROUNDS,
        small=args.small,
        wall=args.wall,
        compiler=args.compiler,
        jobs=args.jobs or min(MOST_JOBS, os.cpu_count() or 1),
    )


def _peer_names(text: str) -> tuple[str, ...]:
    """The names that --peers has; ValueError for one that is no peer's."""
    names = {"all": PEER_NAMES, "none": ()}.get(text, tuple(dict.fromkeys(text.split(","))))
    for name in names:
        if name not in PEER_NAMES:
            raise ValueError(f"--peers {name!r}: must be all, none or of {', '.join(PEER_NAMES)}")
    return names


def _peers(text: str) -> tuple[str, ...]:
    """The names of the peers asked for that can be used here; stderr gets the reason for others."""
    names = _peer_names(text)
    if not names:
        return ()
    from scripts.bench.peers import PEERS

    reasons = {name: PEERS[name].absent() for name in names}
    for name, reason in reasons.items():
        if reason is not None:
            say(f"{PROG}: {name} skipped: {console.one_line(reason)}")
    return tuple(name for name, reason in reasons.items() if reason is None)


def _results(suites: dict[str, list[Case]], ceilings, options):
    """Compile suite by suite, then check and time, so that nothing compiles while clocks run.

    A case of two suites is timed once; so are two cases of the same shape without peers.
    """
    from scripts.bench import measure

    done: dict = {}
    for name, cases in suites.items():
        start = time.monotonic()
        new = {}
        for case in cases:
            if (case.text, case.peers) not in done:
                new.setdefault((case.text, case.peers), case)
        work = [(case, measure.ways_of(case, options, _say_case)) for case in new.values()]
        say(f"{PROG}: {name}: compiling for {len(work)} cases")
        compiled = measure.compile_all(work, ceilings, options)
        say(f"{PROG}: {name}: compiled in {time.monotonic() - start:.0f} s")
        for (case, ways), programs in zip(work, compiled, strict=True):
            found = measure.run_case(case, ways, programs, ceilings, options, _say_case)
            done[case.text, case.peers] = found
            yield found
        for case in cases:
            if new.get((case.text, case.peers)) is not case:
                same = done[case.text, case.peers]
                if same["name"] != case.name:
                    yield measure.renamed(same, case)


def _say_case(message: str) -> None:
    say(f"{PROG}: {message}")


def _show(args: argparse.Namespace, document: dict) -> int:
    from scripts.bench import results, table
    from scripts.bench.targets import OURS

    if args.json == "-":
        print(results.text_of(document), end="")
    else:
        print(table.plain(document), end="")
    if args.plot:
        stem = Path(args.json).stem if args.json not in (None, "-") else PROG
        _plot(document, stem, Path(args.plot))
    ours = [
        row
        for case in document["cases"]
        for row in case["results"]
        if row["implementation"] == OURS
    ]
    return console.FAILED if any(row["error"] for row in ours) else 0


def _report(args: argparse.Namespace) -> int:
    from scripts.bench import page, results

    documents = {Path(name): results.read(Path(name)) for name in args.report}
    if args.plot:
        for path, document in documents.items():
            _plot(document, path.stem, Path(args.plot))
    print(page.page(documents), end="")
    return 0


def _plot(document: dict, stem: str, folder: Path) -> None:
    from scripts.bench import figures

    for path in figures.draw(document, stem, folder):
        say(f"{PROG}: wrote {path}")


if __name__ == "__main__":
    console.run(PROG, main)
