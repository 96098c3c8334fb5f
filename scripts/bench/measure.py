"""One case, all its implementations: compiled, checked against the oracle, then timed."""

import concurrent.futures
import dataclasses
import gc
import sys
from collections.abc import Callable
from typing import Any

from scripts.bench import costs, oracle, ours
from scripts.bench.arrays import make
from scripts.bench.cases import Case
from scripts.bench.peers import PEERS, Unsuited
from scripts.bench.roofline import Roofline
from scripts.bench.targets import OURS
from scripts.bench.ways import JaxWay, TorchWay, rows_of
from scripts.console import one_line
from scripts.timing import ROUNDS, UNROLLED, Chain, time_torch, wall_time

EXPECTED_SHARE = 0.5  # of the roofline; only sizes the chain that is timed


@dataclasses.dataclass(frozen=True)
class Options:
    """peers: names of those to time. small: miniatures, shortest chains. wall: ours per call too.

    jobs: cases compiled at once.
    """

    peers: tuple[str, ...] = ()
    rounds: int = ROUNDS
    small: bool = False
    wall: bool = False
    compiler: str | None = None
    jobs: int = 1


@dataclasses.dataclass(frozen=True)
class Programs:
    """What a case needs, being compiled: its arrays, and (operands, Chain) of ways by index."""

    arrays: concurrent.futures.Future
    ways: dict[int, concurrent.futures.Future]


def ways_of(case: Case, options: Options, say: Callable) -> list[JaxWay | TorchWay]:
    """Ours first, then those of the peers; ``say`` hears why one is left out."""
    found: list[JaxWay | TorchWay] = [ours.way(case, options.compiler)]
    for name in options.peers if case.peers else ():
        try:
            found += PEERS[name].ways(case)
        except Unsuited as reason:
            say(f"{case.name}: {name} left out: {reason}")
    return found


def compile_all(work: list[tuple[Case, list]], roofline: Roofline, options: Options) -> list:
    """Compile for all (case, ways), ``options.jobs`` programs at once: their Programs."""
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    try:
        programs = [
            Programs(
                pool.submit(_compile_arrays, case),
                {
                    index: pool.submit(_compile_way, case, way, roofline, options)
                    for index, way in enumerate(ways)
                    if isinstance(way, JaxWay)
                },
            )
            for case, ways in work
        ]
        pool.shutdown(wait=True)
    except BaseException:  # Ctrl-C waits for what is being compiled, not for the rest
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    return programs


def _compile_arrays(case: Case) -> Callable:
    import jax

    oracle.warm(case)
    return jax.jit(lambda: make(case)).lower().compile()


def _compile_way(case: Case, way: JaxWay, roofline: Roofline, options: Options) -> tuple:
    import jax

    arrays = jax.eval_shape(lambda: make(case))
    operands = jax.jit(way.operands).lower(arrays).compile()
    limit, _ = costs.bound(case, roofline.flops_per_second, roofline.read_bytes_per_second)
    most = 2 if options.small else UNROLLED
    shapes = jax.eval_shape(way.operands, arrays)
    return operands, Chain(way.call, *shapes, guess=limit / EXPECTED_SHARE, most=most)


def run_case(
    case: Case,
    ways: list,
    programs: Programs,
    roofline: Roofline,
    options: Options,
    say: Callable,
) -> dict:
    """The results of a case, as scripts/bench/results.py keeps them. Errors become rows."""
    import jax

    limit, which = costs.bound(case, roofline.flops_per_second, roofline.read_bytes_per_second)
    found: dict[str, Any] = {
        "name": case.name,
        "text": case.text,
        "flops": costs.flops(case),
        "bytes": costs.moved_bytes(case),
        "limit": which,
        "roofline_seconds": limit,
        "targets": [dataclasses.asdict(target) for target in case.targets],
        "results": [],
    }
    try:
        arrays = jax.block_until_ready(programs.arrays.result()())
        checks = oracle.expected(case, arrays)
    except Exception as error:  # memory, most likely; the other cases go on
        found["results"] = [_row(ways[0]) | {"error": _short(error)}]
        say(f"{case.name}: {_short(error)}")
        return found
    for index, way in enumerate(ways):
        row = _row(way)
        try:
            row |= _measure(case, way, programs.ways.get(index), arrays, checks, options)
        except Exception as error:  # a row of its own; a peer may refuse or break in any way
            row["error"] = _short(error)
        _free()
        found["results"].append(row)
        say(f"{case.name}: {_said(row)}")
    return found


def renamed(found: dict, case: Case) -> dict:
    """The results of a case of the same shape, under the name and with the targets of ``case``."""
    targets = [dataclasses.asdict(target) for target in case.targets]
    return found | {"name": case.name, "targets": targets}


def _row(way: JaxWay | TorchWay) -> dict:
    return {
        "implementation": way.implementation,
        "variant": way.variant,
        "error": None,
        "off": None,
        "seconds": None,
        "calls": None,
        "rounds": [],
    }


def _said(row: dict) -> str:
    name = " ".join(filter(None, (row["implementation"], row["variant"])))
    if row["error"]:
        return f"{name}: {row['error']}"
    wall = f", {row['wall_seconds'] * 1e3:.4f} ms launched alone" if "wall_seconds" in row else ""
    return f"{name}: {row['seconds'] * 1e3:.4f} ms{wall}"


def _measure(case, way, program, arrays, checks, options: Options) -> dict:
    wall = None
    if isinstance(way, JaxWay):
        make_operands, chain = program.result()
        operands = make_operands(arrays)
        chain = chain.on(*operands)
        out = way.packed(chain.first())
        timed = chain.time
        if options.wall and way.implementation == OURS:
            wall = lambda: wall_time(way.call, *operands, rounds=options.rounds).median  # noqa: E731
    else:
        call = way.prepare(arrays)
        out = way.packed(call())
        timed = lambda rounds: time_torch(call, rounds)  # noqa: E731
    off = oracle.error_of(rows_of(out, case.heads), checks)
    if off > oracle.TOLERANCE:
        # Wrong results are not worth timing.
        return {"off": off, "error": f"wrong: off by {off:.2g} of the reference's norm"}
    timing = timed(options.rounds)
    measured = {
        "off": off,
        "seconds": timing.median,
        "calls": timing.calls,
        "rounds": list(timing.rounds),
    }
    return measured if wall is None else measured | {"wall_seconds": wall()}


def _free() -> None:
    """Give back what the last way allocated: JAX and PyTorch share the memory."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def _short(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")[:300]
