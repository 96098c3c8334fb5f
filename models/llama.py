"""Decoders of the Llama kind: Llama 2 to 3.3, Mistral, SmolLM2, Qwen2, Qwen2.5 and Qwen3.

One model for all: the families differ in a few switches of their Config. The layers are a list, not
a
scan over stacked weights: a CPU would copy every layer's slice of a stack in each step.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.layers import MLP, Attention, RMSNorm, linear
from models.rope import rope_table


class Layer(nnx.Module):
    """Pre-norm attention and feed-forward, each added to its input."""

    def __init__(self, config, window, *, rngs, dtype, implementation=None):
        norm = (config.hidden_size, config.rms_norm_eps, dtype)
        self.attention_norm = RMSNorm(*norm)
        self.attention = Attention(
            config, window, rngs=rngs, dtype=dtype, implementation=implementation
        )
        self.mlp_norm = RMSNorm(*norm)
        self.mlp = MLP(config, rngs=rngs, dtype=dtype)

    def __call__(self, x, rope, batch, cache):
        attended, cache = self.attention(self.attention_norm(x), rope, batch, cache)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), cache


class Llama(nnx.Module):
    """Token ids to next-token logits, reading and extending one PagedKV a layer.

    dtype: of weights and activations. Norms, RoPE and logits are computed in f32 whatever it is.
    implementation: which attention target runs, as in `jaxattn.paged_attention`.
    """

    def __init__(self, config, *, rngs, dtype=jnp.float32, implementation=None):
        self.config = config
        shape = (config.vocab_size, config.hidden_size)
        init = nnx.initializers.normal(0.02)
        self.embed = nnx.Param(init(rngs.params(), shape, dtype))
        self.layers = nnx.List(
            Layer(config, window, rngs=rngs, dtype=dtype, implementation=implementation)
            for window in config.windows
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        tied = config.tie_embeddings
        self.head = None if tied else nnx.Param(init(rngs.params(), shape, dtype))

    def __call__(self, batch, caches):
        """A jaxattn.Batch and one cache a layer -> logits f32 [N, vocab] of each sequence's last
        token (a padding sequence gets some token's), and the caches with the batch's tokens
        appended."""
        x, caches = self.hidden(batch, caches)
        last = jnp.maximum(batch.cu_q_lens[1:] - 1, 0)
        return self.logits(x[last]), caches

    def hidden(self, batch, caches):
        """Final normed hidden states [T, E] of every row, and the caches."""
        if len(caches) != len(self.layers):
            raise ValueError(f"{len(caches)} caches were given for {len(self.layers)} layers")
        x = jnp.take(self.embed[...], batch.tokens, axis=0, mode="clip")
        rope = rope_table(batch.positions, self.config.rope, self.config.head_dim)
        written = []
        for layer, cache in zip(self.layers, caches, strict=True):
            x, cache = layer(x, rope, batch, cache)
            written.append(cache)
        return self.norm(x), tuple(written)

    def logits(self, x):
        """f32 [T, vocab] of hidden states [T, E]."""
        head = self.embed if self.head is None else self.head
        return linear(x, head[...], dtype=jnp.float32)


def abstract(config, dtype=jnp.float32, implementation=None):
    """(graphdef, state) of the model with ShapeDtypeStructs for weights: nothing is allocated."""

    def build():
        return Llama(config, rngs=nnx.Rngs(0), dtype=dtype, implementation=implementation)

    return nnx.split(nnx.eval_shape(build))


def make_step(graphdef, state):
    """The pure function step(params, batch, caches) -> (logits, caches) and nothing hidden.

    params is the flat list of the state's leaves: calling a jitted function with a flat list costs
    a fraction of a millisecond less per step than with the nested state, and fifty times less than
    nnx.jit. The model is put together while tracing only.
    """
    treedef = jax.tree.structure(state)

    def step(params, batch, caches):
        model = nnx.merge(graphdef, jax.tree.unflatten(treedef, params))
        return model(batch, caches)

    return step
