"""Pre-norm blocks over packed sequences: what the vision and the text towers have in common.

Letters: N sequences, T tokens of all of them, E hidden size, F feed-forward size, H heads, D head
dimension. Weights keep the checkpoints' [out, in] order, as in layers.py.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxattn import Causal, Full, attention, varlen_attention
from models.layers import linear


@dataclass(frozen=True)
class Packing:
    """How many rows each sequence has, known when a program is traced."""

    lengths: tuple[int, ...]

    @property
    def total(self):
        return sum(self.lengths)

    @property
    def starts(self):
        """i32 [N + 1]: where each sequence begins, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)

    @property
    def uniform(self):
        return len(set(self.lengths)) == 1

    def attend(self, q, k, v, queries=None, **options):
        """Attention of each sequence's q [T, H, D] over its own k and v [T, H, D] -> [T, H, D].

        queries: the Packing of q's rows where they are others than the keys'.
        """
        queries = queries or self
        if queries.uniform and self.uniform:
            n = len(self.lengths)
            q, k, v = (x.reshape(n, -1, *x.shape[1:]) for x in (q, k, v))
            out = attention(q, k, v, **options)
            return out.reshape(-1, *out.shape[2:])
        return varlen_attention(q, k, v, queries.starts, self.starts, **options)


def param(rngs, shape, dtype, scale=0.02):
    return nnx.Param(nnx.initializers.normal(scale)(rngs.params(), shape, dtype))


def zeros(shape, dtype):
    return nnx.Param(jnp.zeros(shape, dtype))


def activate(x, name):
    """x through the activation `name` of an EncoderConfig."""
    if name == "quick_gelu":
        return x * jax.nn.sigmoid(1.702 * x)
    return jax.nn.gelu(x, approximate=name == "gelu_tanh")


class LayerNorm(nnx.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis, computed in f32."""

    def __init__(self, size, eps, dtype):
        self.weight = nnx.Param(jnp.ones((size,), dtype))
        self.bias = zeros((size,), dtype)
        self.eps = eps

    def __call__(self, x):
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        normed = centred * jax.lax.rsqrt(variance + self.eps)
        return (normed * self.weight[...] + self.bias[...]).astype(x.dtype)


class Linear(nnx.Module):
    """x [T, in] -> [T, *out] through weight [*out, in], with a bias [*out] or without."""

    def __init__(self, out, size, *, rngs, dtype, bias=True):
        self.weight = param(rngs, (*out, size), dtype)
        self.bias = zeros(out, dtype) if bias else None

    def __call__(self, x):
        return linear(x, self.weight[...], None if self.bias is None else self.bias[...])


class SelfAttention(nnx.Module):
    """Multi-head attention within each sequence; q, k and v are one matrix [3, H, D, E]."""

    def __init__(self, config, *, rngs, dtype, implementation=None):
        c = config
        shape = (3, c.num_heads, c.head_dim)
        self.qkv = Linear(shape, c.hidden_size, rngs=rngs, dtype=dtype, bias=c.qkv_bias)
        self.out = Linear((c.hidden_size,), c.hidden_size, rngs=rngs, dtype=dtype)
        self.mask = Causal() if c.causal else Full()
        self.implementation = implementation

    def __call__(self, x, packing):
        qkv = self.qkv(x)  # [T, 3, H, D]
        attended = packing.attend(
            qkv[:, 0], qkv[:, 1], qkv[:, 2], mask=self.mask, implementation=self.implementation
        )
        return self.out(attended.reshape(x.shape))


class FeedForward(nnx.Module):
    """down(activation(up(x))), or down(silu(up[0](x)) * up[1](x)) where it is gated."""

    def __init__(self, config, *, rngs, dtype):
        c = config
        shape = (2, c.intermediate_size) if c.gated else (c.intermediate_size,)
        self.up = Linear(shape, c.hidden_size, rngs=rngs, dtype=dtype)
        self.down = Linear((c.hidden_size,), c.intermediate_size, rngs=rngs, dtype=dtype)
        self.activation = None if c.gated else c.activation

    def __call__(self, x):
        up = self.up(x)
        if self.activation is None:
            return self.down(jax.nn.silu(up[:, 0]) * up[:, 1])
        return self.down(activate(up, self.activation))


class Block(nnx.Module):
    """Attention and feed-forward, each on the normed input and added to it, maybe scaled."""

    def __init__(self, config, *, rngs, dtype, implementation=None):
        c = config
        self.norm1 = LayerNorm(c.hidden_size, c.norm_eps, dtype)
        self.attention = SelfAttention(c, rngs=rngs, dtype=dtype, implementation=implementation)
        self.norm2 = LayerNorm(c.hidden_size, c.norm_eps, dtype)
        self.mlp = FeedForward(c, rngs=rngs, dtype=dtype)
        ones = jnp.ones((c.hidden_size,), dtype)
        self.scale1 = nnx.Param(ones) if c.layer_scale else None
        self.scale2 = nnx.Param(ones) if c.layer_scale else None

    def __call__(self, x, packing):
        x = x + _scaled(self.attention(self.norm1(x), packing), self.scale1)
        return x + _scaled(self.mlp(self.norm2(x)), self.scale2)


class Encoder(nnx.Module):
    """The blocks in turn: x [T, E] -> every block's output, a tuple of [T, E]."""

    def __init__(self, config, *, rngs, dtype, implementation=None):
        self.layers = nnx.List(
            Block(config, rngs=rngs, dtype=dtype, implementation=implementation)
            for _ in range(config.num_layers)
        )

    def __call__(self, x, packing):
        outputs = []
        for layer in self.layers:
            x = layer(x, packing)
            outputs.append(x)
        return tuple(outputs)


def _scaled(x, scale):
    return x if scale is None else x * scale[...]
