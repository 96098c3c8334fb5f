"""The search over the candidates of one case: check each, time it roughly, then the best again."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from jaxattn.problem import Tiles
from scripts import tune_cases
from scripts.timing import Chain
from scripts.tune_candidates import candidates, variants
from scripts.tune_cases import Case
from scripts.tune_record import CaseRecord

ROUGH_ROUNDS, LONG_ROUNDS = 3, 15
FINALISTS = 3
# Norm of a row's error over the row's norm: the rounding of the output and of the weights.
TOLERANCE = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}


class OutOfTime(Exception):
    """The budget is spent."""


class DeviceLost(Exception):
    """A candidate has left the device in a state in which nothing runs."""


@dataclasses.dataclass
class Bench:
    """Where and how candidates run.

    ``deadline`` is a time.monotonic() after which nothing new is begun; ``threads`` compile at
    once; ``told(case, tiles, record, done, count)`` hears of each candidate that is done with.
    """

    device: str
    implementation: str
    deadline: float
    threads: int
    told: Callable[[Case, Tiles, CaseRecord, int, int], None]

    def check_time(self) -> None:
        if time.monotonic() >= self.deadline:
            raise OutOfTime


class Trial:
    """The arrays of a case and their right result; made when first needed."""

    def __init__(self, bench: Bench, case: Case):
        self.bench, self.case = bench, case
        self._arrays: tuple[Any, ...] = ()
        self._want = None
        self.guess: float | None = None  # seconds of a call

    def prepare(self) -> None:
        if not self._arrays:
            self._arrays = tune_cases.operands(self.case)
            self._want = tune_cases.right(self.case, self._arrays)

    def compile(self, tiles: Tiles) -> Chain:
        call = tune_cases.call(self.case, implementation=self.bench.implementation, tiles=tiles)
        return Chain(call, *self._arrays, guess=self.guess)

    def error(self, chain: Chain) -> float:
        """The largest error of a row, relative to the row; NaN where there is a NaN."""
        return float(_worst_row(chain.first(), self._want))


def tune(bench: Bench, case: Case, record: CaseRecord) -> None:
    """Add to the record what it lacks.

    Raises:
      OutOfTime: the deadline has passed; the record holds what was measured before.
    """
    trial, chains = Trial(bench, case), {}
    first = candidates(case.shape, bench.device, bench.implementation)
    _rough(trial, record, first, chains)
    more = [
        other
        for tiles in record.fastest(FINALISTS)
        for other in variants(case.shape, bench.device, tiles)
    ]
    _rough(trial, record, list(dict.fromkeys(more)), chains, len(first))
    if not record.finished:
        _again(trial, record, chains)
    record.finished = True


def measure(bench: Bench, case: Case, record: CaseRecord, tiles: Tiles) -> None:
    """Check and time one candidate well."""
    trial = Trial(bench, case)
    trial.prepare()
    _try(trial, record, tiles, lambda: trial.compile(tiles), LONG_ROUNDS)


def _rough(trial: Trial, record: CaseRecord, tiles: list[Tiles], chains: dict, before=0) -> None:
    """Check and time those that the record does not know, compiling some ahead."""
    count = before + len(tiles)
    unknown = [one for one in tiles if not record.knows(one)]
    if not unknown:
        return
    trial.bench.check_time()
    trial.prepare()
    with contextlib.closing(_compiled_ahead(trial, unknown)) as ahead:
        for one, compiled in ahead:
            chain = _try(trial, record, one, compiled, ROUGH_ROUNDS)
            if chain is not None:
                chains[one] = chain
                for slow in set(chains) - set(record.fastest(FINALISTS)):
                    del chains[slow]  # and the device memory of its program
            done = before + sum(record.knows(each) for each in tiles)
            trial.bench.told(trial.case, one, record, done, count)


def _compiled_ahead(trial: Trial, tiles: list[Tiles]) -> Iterator[tuple[Tiles, Callable]]:
    """Each candidate with what gives its chain or raises why there is none."""
    # The first says how long a call takes, which the others need to know. Nothing compiles while
    # a candidate is timed: its launches would wait for the compiler.
    ahead = tiles[1:] if trial.bench.implementation == "triton" else []
    for one in tiles[: len(tiles) - len(ahead)]:
        yield one, functools.partial(trial.compile, one)
    pool = concurrent.futures.ThreadPoolExecutor(trial.bench.threads)
    try:
        for batch in itertools.batched(ahead, 2 * trial.bench.threads):
            futures = [pool.submit(trial.compile, one) for one in batch]
            concurrent.futures.wait(futures)
            for one, future in zip(batch, futures, strict=True):
                yield one, future.result
    finally:
        pool.shutdown(cancel_futures=True)


def _try(trial: Trial, record: CaseRecord, tiles: Tiles, compiled: Callable, rounds: int):
    """The checked and timed chain of a candidate, or None after recording why there is none."""
    trial.bench.check_time()
    try:
        chain = compiled()
        error, most = trial.error(chain), TOLERANCE[trial.case.dtype]
        if not error <= most:
            record.fail(tiles, f"wrong: a row is off by {error:.2g} of its norm, of {most:g}")
            return None
        seconds = chain.time(rounds).median
    except Exception as failure:  # whatever compiling or running may raise
        record.fail(tiles, f"{type(failure).__name__}: {' '.join(str(failure).split())}")
        _check_device(failure)
        return None
    record.add(tiles, seconds)
    trial.guess = min(seconds, trial.guess or seconds)
    return chain


def _again(trial: Trial, record: CaseRecord, chains: dict[Tiles, Chain]) -> None:
    """Time the best for longer: rough times are too close to tell them apart."""
    timed: set[Tiles] = set()
    while todo := [one for one in record.fastest(1 if timed else FINALISTS) if one not in timed]:
        for tiles in todo:
            trial.bench.check_time()
            trial.prepare()
            chain = chains.get(tiles) or trial.compile(tiles)
            record.add(tiles, chain.time(LONG_ROUNDS).median)
            timed.add(tiles)


def _check_device(failure: Exception) -> None:
    """DeviceLost if the device no longer works: all that follows would seem to fail."""
    import jax
    import jax.numpy as jnp

    try:
        jax.block_until_ready(jnp.zeros(8) + 1)
    except Exception as error:
        raise DeviceLost(f"nothing runs on the device any more after: {failure}") from error


def _worst_row(got: Any, want: Any) -> Any:
    import jax.numpy as jnp

    got, want = got.astype(jnp.float32), want.astype(jnp.float32)
    norm = jnp.linalg.norm(want, axis=-1)
    # A row that happens to be nearly 0 is held to a tenth of a usual one.
    usual = jnp.sqrt(jnp.mean(norm * norm))
    return jnp.max(jnp.linalg.norm(got - want, axis=-1) / jnp.maximum(norm, usual / 10))
