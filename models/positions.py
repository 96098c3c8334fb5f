"""Positions of a patch grid of any size from the learnt one, as torch's `interpolate` has them.

Bicubic interpolation is linear in the grid, so a size is two small matrices, made in NumPy.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def resize_grid(grid, height, width, antialias):
    """grid [h, w, E] -> f32 [height, width, E], bicubic, corners of the outer cells aligned."""
    if grid.shape[:2] == (height, width):
        return grid.astype(jnp.float32)
    rows = bicubic_matrix(grid.shape[0], height, antialias)
    columns = bicubic_matrix(grid.shape[1], width, antialias)
    return jnp.einsum(
        "yh,xw,hwe->yxe",
        rows,
        columns,
        grid.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )


@functools.cache
def bicubic_matrix(size, wanted, antialias):
    """f32 [wanted, size]: the weights of `size` samples in each of `wanted` of them.

    torch has two bicubic filters. The plain one (a = -0.75) takes four samples around the point and
    repeats those at the border. The antialiased one (a = -0.5, Pillow's) widens with the step when
    it shrinks, and leaves out what is beyond the border.
    """
    step = size / wanted
    matrix = np.zeros((wanted, size))
    for i in range(wanted):
        if antialias:
            centre, wide = step * (i + 0.5), max(step, 1.0)
            first = max(int(centre - 2 * wide + 0.5), 0)
            taken = np.arange(first, min(int(centre + 2 * wide + 0.5), size))
            weights = _cubic((taken - centre + 0.5) / wide, -0.5)
            matrix[i, taken] = weights / weights.sum()
        else:
            centre = step * (i + 0.5) - 0.5
            taken = int(np.floor(centre)) + np.arange(-1, 3)
            weights = _cubic(taken - centre, -0.75)
            np.add.at(matrix[i], taken.clip(0, size - 1), weights)
    return matrix.astype(np.float32)


def _cubic(x, a):
    """Keys' cubic convolution kernel of parameter `a`."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
