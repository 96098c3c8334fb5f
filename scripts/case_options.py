"""The options that name cases: of every program that has some by name, and more by their text."""

import argparse
import fnmatch
from typing import Any


def add_case_options(group: Any, shapes: str) -> None:
    """Add --only and --shapes; ``shapes`` is what the latter does."""
    group.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help='the cases whose names match, such as "decode*"; repeatable',
    )
    group.add_argument(
        "--shapes", action="append", default=[], metavar="CASE", help=f"{shapes}; repeatable"
    )
    group.add_argument("--list", action="store_true", help="print the cases and stop")


def matching(cases: list, args: argparse.Namespace) -> list:
    """Those of the cases that --only leaves."""
    if not args.only:
        return cases
    return [c for c in cases if any(fnmatch.fnmatchcase(c.name, p) for p in args.only)]


def no_match(args: argparse.Namespace) -> ValueError:
    """The error where --only leaves nothing."""
    return ValueError(f"--only {', '.join(args.only)}: no case matches (--list prints them)")
