"""One case, all its implementations: compiled, checked against the oracle, then timed."""

import concurrent.futures
import dataclasses
import gc
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


Program = tuple[JaxWay, concurrent.futures.Future]


def ways_of(case: Case, options: Options, say: Callable) -> list[JaxWay | TorchWay]:
    """Ours first, then those of the peers; ``say`` hears why one is left out."""
    found: list[JaxWay | TorchWay] = [ours.way(case, options.compiler)]
    for name in options.peers if case.peers else ():
        try:
            found += PEERS[name].ways(case)
        except Unsuited as reason:
            say(f"{case.name}: {name} left out: {reason}")
    return found


def compile_all(
    cases: list[tuple[Case, list]], roofline: Roofline, options: Options
) -> tuple[concurrent.futures.Executor, dict]:
    """Start compiling every JAX way: (the executor, futures of Chains by (case name, index))."""
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    futures = {}
    for case, ways in cases:
        for index, way in enumerate(ways):
            if isinstance(way, JaxWay):
                job = pool.submit(compile_one, case, way, roofline, options)
                futures[case.name, index] = job
    return pool, futures


def compile_one(case: Case, way: JaxWay, roofline: Roofline, options: Options) -> Chain:
    import jax

    shapes = jax.eval_shape(lambda: way.operands(make(case)))
    limit, _ = costs.bound(case, roofline.flops_per_second, roofline.read_bytes_per_second)
    most = 2 if options.small else UNROLLED
    return Chain(way.call, *shapes, guess=limit / EXPECTED_SHARE, most=most)


def run_case(
    case: Case, ways: list, compiled: dict, roofline: Roofline, options: Options, say: Callable
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
        arrays = jax.block_until_ready(jax.jit(lambda: make(case))())
        checks = oracle.expected(case, arrays)
    except Exception as error:  # memory, most likely; the other cases go on
        found["results"] = [_row(ways[0]) | {"error": _short(error)}]
        say(f"{case.name}: {_short(error)}")
        return found
    for index, way in enumerate(ways):
        row = _row(way)
        try:
            row |= _measure(case, way, compiled.get((case.name, index)), arrays, checks, options)
        except Exception as error:  # a row of its own; a peer may refuse or break in any way
            row["error"] = _short(error)
        gc.collect()
        found["results"].append(row)
        time = row["error"] or f"{row['seconds'] * 1e3:.4f} ms"
        say(f"{case.name}: {row['implementation']} {row['variant']}: {time}")
    return found


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


def _measure(case, way, compiled, arrays, checks, options: Options) -> dict:
    wall = None
    if isinstance(way, JaxWay):
        operands = way.operands(arrays)
        chain = compiled.result().on(*operands)
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


def _short(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")[:300]
