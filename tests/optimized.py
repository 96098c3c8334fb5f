"""What XLA makes of a program: its operations by name, each a launch or a copy."""

import collections
import re

import jax

# Instructions that launch no work of their own.
FREE = {
    "bitcast", "call", "constant", "custom-call", "get-tuple-element", "iota", "parameter", "tuple",
}  # fmt: skip
FUSED = re.compile(r"^%?(fused|wrapped|parallel|region|add|max|min)")


def work(fn, *args) -> collections.Counter:
    """How many operations of each kind the compiled ``fn(*args)`` runs, kernel calls aside."""
    text = jax.jit(fn).lower(*args).compile().as_text()
    found = collections.Counter()
    inside = ""
    for line in text.splitlines():
        if re.match(r"^(ENTRY )?%?[\w.\-]+ .*\{$", line):  # a computation begins
            inside = line.removeprefix("ENTRY ")
        operation = re.search(r"= .*?[\]\})] ([a-z][a-z\-]*)\(", line)
        if operation and operation[1] not in FREE and not FUSED.match(inside):
            found[operation[1]] += 1
    return found
