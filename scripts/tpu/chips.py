"""TPU generations: topology names that the compiler takes, and what one TensorCore can do."""

import dataclasses

# The figures are one core's: a larger slice of the same generation would give the same.
NAMES = (
    "v4:2x2x1",
    "v5e:1x1",
    "v5e:2x2",
    "v5p:1x1x1",
    "v5p:2x2x1",
    "v6e:1x1",
    "v6e:2x2",
    "tpu7x:2x2x1",
)
SMALLEST = {"v4": "v4:2x2x1", "v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1"} | {
    "tpu7x": "tpu7x:2x2x1"
}


@dataclasses.dataclass(frozen=True)
class Chip:
    """One TensorCore. ``hbm``: bytes per second (the chip's, over its cores). ``clock``: Hz.

    Google publishes bandwidths and peak FLOP/s. The clock follows from those, four matrix units of
    ``mxu`` x ``mxu`` a core and one multiply-add per cell and cycle; it only turns bandwidth into
    bytes per cycle here.
    """

    hbm: float
    clock: float
    mxu: int

    @property
    def bytes_per_cycle(self) -> float:
        return self.hbm / self.clock


CHIPS = {
    "v4": Chip(1228e9 / 2, 1.05e9, 128),
    "v5e": Chip(819e9, 1.5e9, 128),
    "v5p": Chip(2765e9 / 2, 1.75e9, 128),
    "v6e": Chip(1640e9, 1.75e9, 256),
    "tpu7x": Chip(7380e9 / 2, 2.2e9, 256),
}


def check(topology: str) -> str:
    """The topology's name as given.

    Raises:
      ValueError: it is none that the compiler takes here.
    """
    if topology not in NAMES:
        raise ValueError(f"--topology {topology!r}: must be one of {', '.join(NAMES)}")
    return topology


def generation(topology: str) -> str:
    return topology.partition(":")[0]
