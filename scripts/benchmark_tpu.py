"""What attention costs on a TPU by the compiler's own schedule, without a TPU: `... --help`."""

import argparse
import importlib.util
import os
import time
from pathlib import Path

from scripts import console
from scripts.console import say
from scripts.tpu import chips, document, suites

PROG = "benchmark_tpu"
PEER_NAMES = ("flash_attention", "splash", "ragged_paged_attention")
DESCRIPTION = f"""\
Compile jaxattn's attention and the kernels that ship with JAX for a TPU, on a machine without one,
and print what the compiler's static schedule says: cycles, bundles, slots, spills, memory.

docs/tpu.md says how to read the figures and what they cannot tell. stdout gets one table (or, with
--json, the JSON); progress goes to stderr. Needs libtpu (pip install libtpu, on Linux).

suites: {", ".join(suites.NAMES)}, all
topologies: {", ".join(chips.NAMES)}

exit code: 0; 1 if one of our own kernels did not compile; 2 bad input."""


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    if args.report:
        return _report(args)
    cases = suites.suite(args.suite)
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError("libtpu is not installed: pip install libtpu (Linux, x86-64)")
    start = time.monotonic()
    found = document.begin(args.topology)
    for case in _results(args.topology, cases, _peers(args.peers)):
        found["cases"].append(case)
    say(f"{PROG}: took {time.monotonic() - start:.0f} s")
    return _show(args, found)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = console.Parser(prog=PROG, description=DESCRIPTION)
    parser.add_argument("--topology", metavar="NAME", help="one of the topologies above")
    parser.add_argument("--suite", default="all", metavar="NAME", help="a suite (default: all)")
    parser.add_argument(
        "--peers",
        default="all",
        metavar="NAMES",
        help=f"all, none, or some of {','.join(PEER_NAMES)} (default: all)",
    )
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE|-", help="write the figures there, or print"
    )
    parser.add_argument(
        "--report",
        nargs="+",
        metavar="FILE.json",
        help="compile nothing: print the tables of docs/tpu.md for these results",
    )
    args = parser.parse_args(argv)
    if args.report:
        if args.topology or args.json:
            raise ValueError("--report compiles nothing: it goes with no other option")
        return args
    if args.topology is None:
        raise ValueError(f"--topology is missing: must be one of {', '.join(chips.NAMES)}")
    chips.check(args.topology)
    suites.suite(args.suite)
    _peers(args.peers)
    _check_file(args.json)
    return args


def _check_file(name: str | None) -> None:
    if name in (None, "-"):
        return
    path = Path(name).absolute()
    if path.is_dir():
        raise ValueError(f"--json {name}: is a folder, must be a file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ValueError(f"--json {name}: must be in a folder that can be written to")


def _peers(text: str) -> tuple[str, ...]:
    names = {"all": PEER_NAMES, "none": ()}.get(text, tuple(dict.fromkeys(text.split(","))))
    for name in names:
        if name not in PEER_NAMES:
            raise ValueError(f"--peers {name!r}: must be all, none or of {', '.join(PEER_NAMES)}")
    return names


def _results(topology: str, cases: list, peers: tuple[str, ...]):
    """The results of case after case, each as scripts/tpu/document.py has it."""
    from scripts.tpu import ways
    from scripts.tpu.workers import Worker

    with Worker(topology) as worker:
        for case in cases:
            results = []
            for name in ways.names(case):
                if name != ways.OURS and name not in peers:
                    continue
                say(f"{PROG}: {case.name}: {name}")
                figures = worker.figures(case.name, name)
                if "error" in figures:
                    say(f"{PROG}: {case.name}: {name}: {console.one_line(figures['error'])}")
                results.append({"implementation": name, "error": None} | figures)
            yield {"name": case.name, "text": case.text, "results": results}


def _show(args: argparse.Namespace, found: dict) -> int:
    from scripts.tpu import table
    from scripts.tpu.ways import OURS

    if args.json == "-":
        print(document.text_of(found), end="")
    else:
        if args.json:
            Path(args.json).write_text(document.text_of(found))
        print(table.plain(found), end="")
    rows = [row for case in found["cases"] for row in case["results"]]
    failed = any(row["error"] for row in rows if row["implementation"] == OURS)
    return console.FAILED if failed else 0


def _report(args: argparse.Namespace) -> int:
    from scripts.tpu import page

    print(page.tables({Path(name): document.read(Path(name)) for name in args.report}), end="")
    return 0


if __name__ == "__main__":
    console.run(PROG, main)
