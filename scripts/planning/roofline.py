"""The least time of a step: by its arithmetic, by what it moves over HBM, and over ICI."""

import dataclasses

from scripts.planning import load
from scripts.planning.sizes import Sizes
from scripts.planning.steps import Compiled
from scripts.planning.topology import Topology
from scripts.planning.tpus import PASSES


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Of one step on one device. Bytes: weights, cache and rest over HBM; sent over ICI.

    tokens_per_second: of all replicas; of a step with decodes, tokens generated or read.
    """

    rows: int
    flops: float
    weights: int
    cache: int
    rest: int
    ici: float
    compute_seconds: float
    hbm_seconds: float
    ici_seconds: float
    tokens_per_second: float

    @property
    def hbm(self) -> int:
        return self.weights + self.cache + self.rest

    @property
    def seconds(self) -> float:
        return max(self.compute_seconds, self.hbm_seconds, self.ici_seconds)

    @property
    def bound(self) -> str:
        times = {
            "compute": self.compute_seconds,
            "HBM": self.hbm_seconds,
            "ICI": self.ici_seconds,
        }
        return max(times, key=times.get)


def roofline(compiled: Compiled, sizes: Sizes, topology: Topology, context: int) -> Roofline:
    """`context`: tokens that each decoding sequence holds."""
    work, tpu = load.load(compiled.step, sizes, context), topology.tpu
    flops = compiled.flops + load.attention_flops(work, sizes)
    moved = compiled.traffic
    cache = moved.cache + load.cache_bytes(work, sizes)
    ici = sum(one.sent * one.count for one in compiled.collectives if one.always)
    compute = flops * PASSES[sizes.dtype] * tpu.per_chip / tpu.flops
    hbm = (moved.weights + cache + moved.rest) * tpu.per_chip / tpu.bandwidth
    wire = ici / topology.ici if ici else 0.0
    rate = work.tokens * sizes.data / max(compute, hbm, wire)
    return Roofline(
        work.tokens, flops, moved.weights, cache, moved.rest, ici, compute, hbm, wire, rate
    )
