"""Images and texts in one space: CLIP and SigLIP (and SigLIP 2 of fixed size, the same model)."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.encoder import Encoder, LayerNorm, Linear, Packing, param, zeros
from models.vision import VisionTower


class TextTower(nnx.Module):
    """Token ids to one vector a text, [B, head_size]."""

    def __init__(self, config, *, rngs, dtype=jnp.float32, implementation=None):
        c, size = config, config.encoder.hidden_size
        self.config = c
        self.embed = param(rngs, (c.vocab_size, size), dtype)
        self.positions = param(rngs, (c.max_length, size), dtype)
        self.encoder = Encoder(c.encoder, rngs=rngs, dtype=dtype, implementation=implementation)
        self.norm = LayerNorm(size, c.encoder.norm_eps, dtype)
        self.head = Linear((c.head_size,), size, rngs=rngs, dtype=dtype, bias=c.head_bias)

    def __call__(self, ids):
        """ids i32 [B, L], or a sequence of [L] of any lengths -> (vectors, all hidden states).

        Hidden states are [T, E] with the texts' tokens one after another: the embeddings, every
        layer's, and the normed last. CLIP's texts may be padded or not. SigLIP's have to be filled
        up to max_length, as it was trained: every token sees the padding, and the last one is what
        is pooled. Raises ValueError for a text that is empty or longer than max_length.
        """
        texts = [jnp.asarray(text) for text in ids]
        packing = Packing(tuple(len(text) for text in texts))
        for i, length in enumerate(packing.lengths):
            if not 1 <= length <= self.config.max_length:
                raise ValueError(
                    f"text {i} has {length} tokens; it must have from 1 to {self.config.max_length}"
                )
        positions = jnp.concatenate([self.positions[:length] for length in packing.lengths])
        x = jnp.take(self.embed[...], jnp.concatenate(texts), axis=0, mode="clip") + positions
        hidden = (x, *self.encoder(x, packing))
        last = self.norm(hidden[-1])
        rows = [start + self._pooled(text) for start, text in zip(packing.starts, texts)]  # noqa: B905 - there is one more start than texts
        return self.head(last[jnp.stack(rows)]), (*hidden, last)

    def _pooled(self, text):
        """Which token of `text` stands for it."""
        pool = self.config.pool_id
        if pool == "last":
            return jnp.asarray(text.shape[0] - 1)
        return jnp.argmax(text if pool is None else text == pool)


class Pair(nnx.Module):
    """A vision and a text tower whose features are compared by their directions."""

    def __init__(self, config, *, rngs, dtype=jnp.float32, implementation=None):
        c = config
        options = {"rngs": rngs, "dtype": dtype, "implementation": implementation}
        self.config = c
        self.vision = VisionTower(c.vision, **options)
        self.text = TextTower(c.text, **options)
        size = (c.text.head_size,), c.vision.encoder.hidden_size
        # SigLIP's pooled image is in the space already.
        clip = c.family == "clip"
        self.projection = Linear(*size, rngs=rngs, dtype=dtype, bias=False) if clip else None
        self.logit_scale = zeros((1,), dtype)
        self.logit_bias = zeros((1,), dtype) if c.sigmoid else None

    def get_image_features(self, images):
        """[B, features] of images as VisionTower takes them; not normalised."""
        return self.project(self.vision(images).pooled)

    def project(self, pooled):
        """[B, features] of a VisionOutput's pooled vectors."""
        return pooled if self.projection is None else self.projection(pooled)

    def get_text_features(self, ids):
        """[B, features] of token ids as TextTower takes them; not normalised."""
        return self.text(ids)[0]

    def logits(self, image_features, text_features):
        """f32 [images, texts]: cosines, scaled (and shifted, in SigLIP) as was learnt."""
        images, texts = _unit(image_features), _unit(text_features)
        cosines = jnp.einsum("if,tf->it", images, texts, precision=jax.lax.Precision.HIGHEST)
        logits = cosines * jnp.exp(self.logit_scale[...].astype(jnp.float32))
        bias = self.logit_bias
        return logits if bias is None else logits + bias[...].astype(jnp.float32)

    def scores(self, logits):
        """f32 [images, texts] from 0 to 1: a softmax over the texts, or each text by itself."""
        return jax.nn.sigmoid(logits) if self.config.sigmoid else jax.nn.softmax(logits, axis=-1)


def _unit(x):
    x = x.astype(jnp.float32)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)
