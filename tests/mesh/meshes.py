"""Meshes of eight devices, and arrays on them."""

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

SHAPES = [(1, 8), (2, 4), (4, 2), (8, 1)]
MODES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def mesh(shape, mode="auto"):
    return jax.make_mesh(shape, ("data", "model"), axis_types=(MODES[mode],) * 2)


def put(mesh, x, *spec):
    """``x`` on the mesh; an axis that its mesh axis does not divide is whole."""
    fits = (
        a if a and n % mesh.shape[a] == 0 else None for a, n in zip(spec, x.shape, strict=False)
    )
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*fits)))
