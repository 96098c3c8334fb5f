"""The parts of a decoder layer, on packed tokens.

Letters: T tokens, E hidden size, F feed-forward size, H query heads, K key/value heads, G = H / K,
D head dimension. Weights keep the checkpoints' [out, in] order: on a CPU that is as fast for one
token and a quarter faster for eight than [in, out], and no loader has to transpose.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxattn import Causal, Window, paged_attention
from models.rope import rotate


def linear(x, weight, bias=None, dtype=None):
    """x [T, in] through weight [*out, in] (+ bias [*out]) -> [T, *out], in `dtype` or else x's.

    The product has two plain axes on each side: with more, XLA on a CPU makes a transposed copy of
    the weight in every step. A float32 model multiplies in float32 everywhere: the default of TPUs
    and GPUs would round its operands first. On a mesh the axes stay apart, since one that is split
    over devices cannot be joined to others without moving the weight.
    """
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    rows = x.shape[0]
    if rows == 1 and x.dtype == jnp.bfloat16:
        # XLA on a CPU turns a bf16 matrix times a vector into f32, all of the matrix, in every
        # step. Two rows it multiplies as they are, in a twentieth of the time.
        x = jnp.pad(x, ((0, 1), (0, 0)))
    on_mesh = jax.sharding.get_abstract_mesh().size > 1
    matrix = weight if on_mesh else weight.reshape(-1, weight.shape[-1])
    out = jnp.einsum("ti,...i->t...", x, matrix, precision=precision, preferred_element_type=dtype)
    out = out[:rows].reshape(rows, *weight.shape[:-1])
    return out if bias is None else out + bias


def _matrix(rngs, shape, dtype):
    return nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), shape, dtype))


def _bias(wanted, shape, dtype):
    return nnx.Param(jnp.zeros(shape, dtype)) if wanted else None


class RMSNorm(nnx.Module):
    """x / rms(x) * weight over the last axis, computed in f32."""

    def __init__(self, size, eps, dtype):
        self.weight = nnx.Param(jnp.ones((size,), dtype))
        self.eps = eps

    def __call__(self, x):
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * scale).astype(x.dtype) * self.weight[...]


class Attention(nnx.Module):
    """Grouped-query self-attention through the paged cache.

    q, k and v come from one matrix `qkv` [K, G + 2, D, E]: per key/value head its G query heads,
    then the key, then the value. One product instead of three makes a decode step on a CPU a fifth
    faster, and a split over K is a split of the heads.
    """

    def __init__(self, config, window, *, rngs, dtype, implementation=None):
        c = config
        self.qkv = _matrix(
            rngs, (c.num_kv_heads, c.group_size + 2, c.head_dim, c.hidden_size), dtype
        )
        self.qkv_bias = _bias(c.qkv_bias, (c.num_kv_heads, c.group_size + 2, c.head_dim), dtype)
        self.out = _matrix(rngs, (c.hidden_size, c.num_heads * c.head_dim), dtype)
        self.out_bias = _bias(c.out_bias, (c.hidden_size,), dtype)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps, dtype) if c.qk_norm else None
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps, dtype) if c.qk_norm else None
        self.mask = Causal() if window is None else Causal() & Window(window - 1, 0)
        self.implementation = implementation

    def __call__(self, x, rope, batch, cache):
        """x [T, E], rope: cos and sin [T, D/2], one layer's cache -> [T, E], the cache with T
        more."""
        qkv = linear(x, self.qkv[...], _value(self.qkv_bias))  # te,kgde->tkgd
        q, k, v = qkv[:, :, :-2], qkv[:, :, -2], qkv[:, :, -1]
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, rope), rotate(k, rope)
        cache = cache.append(k.astype(cache.dtype), v.astype(cache.dtype), batch.slots)
        q = q.reshape(q.shape[0], -1, q.shape[-1]).astype(cache.dtype)  # [T, H, D]
        attended = paged_attention(
            q,
            cache,
            batch.block_tables,
            batch.seq_lens,
            batch.cu_q_lens,
            mask=self.mask,
            implementation=self.implementation,
        )
        attended = attended.reshape(x.shape[0], -1).astype(x.dtype)  # [T, H * D]
        return linear(attended, self.out[...], _value(self.out_bias)), cache


class MLP(nnx.Module):
    """down(silu(gate(x)) * up(x)); gate and up are one matrix `gate_up` [2, F, E]."""

    def __init__(self, config, *, rngs, dtype):
        c = config
        self.gate_up = _matrix(rngs, (2, c.intermediate_size, c.hidden_size), dtype)
        self.gate_up_bias = _bias(c.mlp_bias, (2, c.intermediate_size), dtype)
        self.down = _matrix(rngs, (c.hidden_size, c.intermediate_size), dtype)
        self.down_bias = _bias(c.mlp_bias, (c.hidden_size,), dtype)

    def __call__(self, x):
        both = linear(x, self.gate_up[...], _value(self.gate_up_bias))  # te,cfe->tcf
        hidden = jax.nn.silu(both[:, 0]) * both[:, 1]
        return linear(hidden, self.down[...], _value(self.down_bias))


def _value(param):
    return None if param is None else param[...]
