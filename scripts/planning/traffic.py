"""What a compiled program reads from HBM and writes to it, buffer by buffer.

Every instruction reads its operands and writes its results, where those are in HBM: the compiler
has said which are, and what it fetches ahead into vector memory counts once, as it is fetched. The
keys and values that the attention kernel reads depend on the step's lengths and are not in here.
"""

import dataclasses
import re
from collections import Counter

from scripts.planning.hlo import Instruction, Program

WEIGHTS, CACHE, REST = "weights", "cache", "rest"  # fields of Traffic
KERNEL = 'custom_call_target="tpu_custom_call"'
PREFETCH = "cross_program_prefetch_index"
# They name buffers and move nothing.
NAMING = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "conditional")
_ARGUMENT = re.compile(r'op_name="(params|caches|packed)')
_CALLS = re.compile(r"calls=%?([\w.\-]+)")


@dataclasses.dataclass
class Traffic:
    """Bytes of one step on one device."""

    weights: int = 0
    cache: int = 0  # written; see the module
    rest: int = 0  # activations, inputs, and copies of anything


def traffic(program: Program) -> Traffic:
    total = Traffic()
    instructions = {one.name: one for one in program.computations[program.entry]}
    origin: dict[str, str] = {}
    caches: set[tuple[str, int]] = set()  # what a whole cache looks like, however it is laid out
    starts = Counter(x.operands for x in instructions.values() if x.opcode == "copy-start")
    for one in instructions.values():
        origin[one.name] = _origin(one, origin, caches)
        if PREFETCH in one.rest and starts[one.operands] > 1:
            continue  # the step before has fetched it, as this one does for the next
        if origin[one.name] == CACHE and one.opcode == "parameter":
            caches |= {(x.dtype, x.bytes) for x in one.results}
        if one.opcode not in NAMING and not one.opcode.endswith("-done"):
            _count(one, instructions, origin, program, total)
    return total


def _origin(one: Instruction, origin: dict[str, str], caches) -> str:
    """Whose buffer the instruction's result is."""
    if one.opcode == "parameter":
        found = _ARGUMENT.search(one.rest)
        return {"params": WEIGHTS, "caches": CACHE}.get(found[1] if found else "", REST)
    if one.opcode in ("bitcast", "get-tuple-element"):
        return origin.get(one.operands[0], REST)
    if any((x.dtype, x.bytes) in caches for x in one.results):
        return CACHE
    return REST


def _count(one, instructions, origin, program, total):
    inside = _CALLS.search(one.rest)
    body = program.computations.get(inside[1], []) if inside else []
    opcodes = {one.opcode, *(x.opcode for x in body)}
    read = [instructions[name] for name in one.operands if name in instructions]
    read = [other for other in read if not other.opcode.endswith("-start")]  # no buffer, a token
    results = _results(one)
    if opcodes & {"scatter", "dynamic-update-slice"} and origin[one.name] == CACHE:
        # In place: the cache comes first, and of the rest the largest is what is written.
        read = read[1:]
        total.cache += max(sum(x.bytes for x in other.results) for other in read)
    else:
        _add(total, origin[one.name], sum(x.bytes for x in results if x.hbm))
    partial = opcodes & {"slice", "slice-start", "dynamic-slice", "gather"}
    partial = partial or (one.opcode.endswith("-update") and "gather" in one.name)
    for operand in read:
        if KERNEL in one.rest and origin[operand.name] == CACHE:
            continue
        size = sum(x.bytes for x in operand.results if x.hbm)
        if partial:  # it takes no more than it makes
            size = min(size, sum(x.bytes for x in results))
        _add(total, origin[operand.name], size)


def _add(total: Traffic, kind: str, size: int):
    setattr(total, kind, getattr(total, kind) + size)


def _results(one: Instruction):
    """What an instruction writes. The type of a start also has its operand and a flag, that of what
    is handed to a SparseCore (its "-update") its operands first and working space last."""
    if one.opcode == "custom-call-start":
        return ()
    if one.opcode.endswith("-update"):
        given = len(one.operands) - 1
        return one.results[given : given + 1]
    if one.opcode == "slice-start":
        return one.results[1:2]
    if one.opcode == "copy-start":
        return one.results[:1]
    if one.opcode.endswith("-start"):
        return one.results[len(one.results) // 2 :]
    return one.results
