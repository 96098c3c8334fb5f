"""A small Pallas kernel for the tests of the GPU compilers."""

import jax
from jax.experimental import pallas as pl

from jaxattn.triton_compiler import compiler_params

SHAPE = (4, 2, 8, 16)


def scaled_sum(x, y, *, aliases, compiler="triton"):
    """`x + 2 y` of `SHAPE` on a grid of three axes; `aliases` as of `pl.pallas_call`."""

    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + 2 * y_ref[...]

    block = pl.BlockSpec((1, 1, 4, 16), lambda i, j, k: (i, j, k, 0))
    return pl.pallas_call(
        kernel,
        grid=(4, 2, 2),
        in_specs=[block, block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases=aliases,
        compiler_params=compiler_params(compiler, num_warps=2, num_stages=1),
        name="scaled_sum",
    )(x, y)
