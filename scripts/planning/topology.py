"""A slice of TPU chips by its name, "v5e:2x4", and its devices for compiling."""

import dataclasses
import itertools
import os
import re
from typing import Any

from scripts.planning.tpus import TPUS, Tpu

NAME = re.compile(r"([a-z0-9]+):(\d+(?:x\d+)+)")
LISTED = 64  # chips of the largest slice that an error lists


@dataclasses.dataclass(frozen=True)
class Topology:
    """`shape`: chips along each axis."""

    name: str
    tpu: Tpu
    shape: tuple[int, ...]

    @property
    def devices(self) -> int:
        count = self.tpu.per_chip
        for size in self.shape:
            count *= size
        return count

    @property
    def ici(self) -> float:
        """Bytes a second that one device can send over all links it has at least.

        A chip at a corner has one link along each axis, two where the axis is a ring. The devices
        of a chip share its links.
        """
        rings = [size % self.tpu.wraps == 0 for size in self.shape]
        if self.tpu.axes == 3:  # made of cubes, which are joined into rings along all axes or none
            rings = [all(rings)] * 3
        sizes = zip(self.shape, rings, strict=True)
        links = sum(2 if ring else 1 for size, ring in sizes if size > 1)
        return self.tpu.link * links / self.tpu.per_chip

    def describe(self) -> list[Any]:
        """JAX's devices of the slice. Nothing can run on them; programs compile for them.

        RuntimeError if libtpu is not installed.
        """
        from jax.experimental import topologies

        return topologies.get_topology_desc(self.name, platform="tpu").devices


def parse(name: str) -> Topology:
    """The Topology called `name`. ValueError lists the valid ones."""
    found = NAME.fullmatch(name)
    tpu = TPUS.get(found[1]) if found else None
    if tpu is not None:
        shape = tuple(int(size) for size in found[2].split("x"))
        if shape in _shapes(tpu, most=10**6):
            return Topology(name, tpu, shape)
    valid = "; ".join(_listed(generation) for generation in ([found[1]] if tpu else TPUS))
    raise ValueError(f"--topology {name!r} is no slice of TPU chips; valid are {valid}")


def _listed(generation: str) -> str:
    names = ["x".join(map(str, shape)) for shape in _shapes(TPUS[generation], LISTED)]
    largest = "x".join(map(str, TPUS[generation].most))
    return f"{generation}:{', '.join(names)} … {largest}"


def _shapes(tpu: Tpu, most: int) -> list[tuple[int, ...]]:
    """The slices of Google Cloud of up to `most` chips.

    In two dimensions 1x1, 2x2, 2x4 and then powers of two that are equal or where one is twice the
    other; in three 1x1x1, 2x2x1, 2x2x2, 2x2x4, 2x4x4 and then multiples of 4, none falling.
    """
    if tpu.axes == 2:
        sizes = (1, 2, 4, 8, 16)
        pairs = itertools.product(sizes, sizes)
        found = [(a, b) for a, b in pairs if (a > 1 and b in (a, 2 * a)) or a == b == 1]
    else:
        sizes = range(4, max(tpu.most) + 1, 4)
        found = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)]
        found += itertools.combinations_with_replacement(sizes, 3)
    fits = lambda s: all(a <= b for a, b in zip(s, tpu.most, strict=True))  # noqa: E731
    chips = lambda s: s[0] * s[1] * (s[2] if len(s) > 2 else 1)  # noqa: E731
    return sorted((s for s in found if fits(s) and chips(s) <= most), key=chips)


def without_hardware() -> None:
    """Set JAX and libtpu up, before either is loaded, to compile only."""
    os.environ.update(
        JAX_PLATFORMS="cpu",  # for JAX itself; the topology is asked for by name
        TPU_SKIP_MDS_QUERY="1",  # else libtpu waits for a server that only TPU machines have
        TPU_WORKER_HOSTNAMES="localhost",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # else a second process finds it locked
    )
    # libtpu takes its own device from here and says so on stderr if it is missing; any will do.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v6e-1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
