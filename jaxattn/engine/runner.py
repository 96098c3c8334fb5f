"""The runner: compiles a step for each bucket, ahead, and runs steps in them. It owns the cache."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxattn.engine.buckets import Bucket, smallest_holding
from jaxattn.engine.devices import Devices
from jaxattn.engine.inputs import StepInputs, packed_size, unpack
from jaxattn.engine.sampling import sample
from jaxattn.engine.scheduler import Chunk
from jaxattn.paging import PagedKV

# (params, batch, caches) -> (logits f32[N, V], caches), pure; see jaxattn.batch.Batch.
Step = Callable[[Any, Any, tuple[PagedKV, ...]], tuple[jax.Array, tuple[PagedKV, ...]]]


def program(step: Step, bucket: Bucket, width: int) -> Callable:
    """What one bucket computes: (params, packed i32[packed_size], caches) -> (ids i32[N], caches).

    width: the most pages a sequence can have. Jit it with the caches donated.
    """

    def run(params, packed, caches):
        batch, rows = unpack(packed, bucket, width)
        logits, caches = step(params, batch, caches)
        if not jax.sharding.get_abstract_mesh().empty:
            # Replicas sample in different ways, so none may wait for another: no device needs what
            # another has of the vocabulary.
            logits = jax.lax.with_sharding_constraint(logits, PartitionSpec())
        # The length is the place of the token to come.
        return sample(logits, rows, batch.seq_lens), caches

    return run


class Runner:
    """Runs chunks through `step` and samples, one compiled program a bucket.

    It never compiles while it runs: a step that fits no compiled bucket raises RuntimeError.
    """

    def __init__(
        self,
        step: Step,
        params: Any,
        caches: tuple[PagedKV, ...],
        table_width: int,
        devices: Devices | None = None,
    ):
        """caches: one PagedKV a layer, which the runner donates and replaces at every step.

        table_width: the most pages a sequence can have. devices: where params and caches lie.
        """
        self._step = step
        self._params = params
        self._caches = caches
        self._width = table_width
        self._devices = devices or Devices()
        self._page_size = caches[0].page_size
        self._programs: dict[Bucket, tuple[Callable, list[StepInputs]]] = {}

    @property
    def buckets(self) -> list[Bucket]:
        return sorted(self._programs)

    def compile(self, bucket: Bucket) -> float:
        """Compile one bucket unless it is; returns the seconds it took."""
        if bucket in self._programs:
            return 0.0
        start = time.perf_counter()
        run = program(self._step, bucket, self._width)
        size = packed_size(bucket, self._width)
        compiled = self._devices.compile(run, self._params, size, self._caches)
        inputs = [
            StepInputs(bucket, self._width, self._page_size) for _ in range(self._devices.replicas)
        ]
        self._programs[bucket] = (compiled, inputs)
        return time.perf_counter() - start

    def run(self, chunks: list[list[Chunk]]) -> list[list[int]]:
        """Store the chunks' keys and values and sample after each: for each replica, an id a chunk.

        The id of a chunk that ends before its sequence does means nothing. An id of -1 means that
        the logits were not finite. RuntimeError if no compiled bucket holds the step, or if the
        processes of a mesh disagree about it.
        """
        tokens = max(sum(chunk.length for chunk in one) for one in chunks)
        seqs = max(map(len, chunks))
        bucket = smallest_holding(self._programs, tokens, seqs)
        if bucket is None:
            raise RuntimeError(
                f"a step of {tokens} tokens of {seqs} sequences fits no compiled bucket: "
                f"{', '.join(f'{t}x{n}' for t, n in self.buckets) or 'none is compiled'}"
            )
        program, inputs = self._programs[bucket]
        for one, of_replica in zip(inputs, chunks, strict=True):
            one.fill(of_replica)
        packed = [one.packed for one in inputs]
        # Waiting for the ids here also makes it safe to write into `inputs` again.
        ids, agreed, self._caches = program(self._params, packed, self._caches)
        rows = np.asarray(ids).reshape(len(chunks), -1)
        if not agreed:
            raise RuntimeError("the processes were given different requests or options")
        return [row[: len(one)].tolist() for row, one in zip(rows, chunks, strict=True)]
