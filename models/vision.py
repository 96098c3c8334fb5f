"""Vision towers: ViT, DINOv2 (with registers or without), CLIP's and SigLIP's, on packed images.

One model for all: the families differ in a few switches of their VisionConfig. Images are
f32 [height, width, 3], already rescaled and normalised (preprocessing.py does that).

Letters: B images, T tokens of all of them, P pixels along a side of a patch, E hidden size.
"""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from models.encoder import Encoder, FeedForward, LayerNorm, Linear, Packing, param, zeros
from models.layers import linear
from models.positions import resize_grid


@dataclass(frozen=True)
class VisionOutput:
    """What a tower makes of images.

    intermediates: name -> [B, T of one, E] of a batch of one size, or [T, E] of a sequence of
    images, whose tokens follow one another (`split`). "embeddings" enters the first layer,
    "layers.0" to "layers.N-1" leave the layers and "last" is the final hidden state.
    pooled: f32 or the model's dtype [B, E], one vector an image; None in a tower without pooling.
    grids: (rows, columns) of patches of each image. num_prefix: tokens before them.
    """

    intermediates: dict[str, jax.Array]
    pooled: jax.Array | None
    grids: tuple[tuple[int, int], ...]
    num_prefix: int

    @property
    def last_hidden_state(self):
        return self.intermediates["last"]

    @property
    def hidden_states(self):
        """The embeddings and every layer's output, as transformers numbers them: -2 is LLaVA's."""
        count = len(self.intermediates) - 2
        names = ["embeddings", *(f"layers.{i}" for i in range(count))]
        return tuple(self.intermediates[name] for name in names)

    def split(self, rows):
        """One of the intermediates as a list of [tokens of the image, E]."""
        rows = rows.reshape(-1, rows.shape[-1])
        starts = _packing(self.grids, self.num_prefix).starts
        return [rows[a:b] for a, b in itertools.pairwise(starts)]

    def patches(self, rows):
        """One of the intermediates as a list of [rows, columns, E], without class and registers."""
        return [
            image[self.num_prefix :].reshape(*grid, -1)
            for image, grid in zip(self.split(rows), self.grids, strict=True)
        ]


jax.tree_util.register_dataclass(
    VisionOutput,
    data_fields=["intermediates", "pooled"],
    meta_fields=["grids", "num_prefix"],
)


class Embeddings(nnx.Module):
    """Patches to tokens with positions, behind the class token and the registers."""

    def __init__(self, config, *, rngs, dtype):
        c, size = config, config.encoder.hidden_size
        self.config = c
        self.patch = Linear((size,), 3 * c.patch_size**2, rngs=rngs, dtype=dtype, bias=c.patch_bias)
        self.positions = param(rngs, (c.grid**2 + c.class_token, size), dtype)
        self.class_token = param(rngs, (size,), dtype) if c.class_token else None
        self.registers = param(rngs, (c.num_registers, size), dtype) if c.num_registers else None

    def __call__(self, images, grids):
        """Images [H, W, 3] -> [T, E]."""
        pixels = [
            _patches(x, grid, self.config.patch_size) for x, grid in zip(images, grids, strict=True)
        ]
        tokens = self.patch(jnp.concatenate(pixels))
        added = {grid: self.grid_positions(*grid).astype(tokens.dtype) for grid in set(grids)}
        prefix, parts, start = self._prefix(tokens.dtype), [], 0
        for rows, columns in grids:
            end = start + rows * columns
            parts += [*prefix, tokens[start:end] + added[rows, columns]]
            start = end
        return jnp.concatenate(parts)

    def grid_positions(self, rows, columns):
        """f32 [rows * columns, E], interpolated from the learnt grid unless it is that size."""
        c = self.config
        grid = self.positions[int(c.class_token) :].reshape(c.grid, c.grid, -1)
        return resize_grid(grid, rows, columns, c.antialias).reshape(rows * columns, -1)

    def _prefix(self, dtype):
        """The tokens before the patches of each image, as a list of [tokens, E]."""
        found = []
        if self.class_token is not None:
            found.append((self.class_token[...] + self.positions[0])[None].astype(dtype))
        if self.registers is not None:
            found.append(self.registers[...].astype(dtype))
        return found


class AttentionPool(nnx.Module):
    """A learnt query attends over each image's tokens; then a feed-forward (SigLIP's head)."""

    def __init__(self, config, *, rngs, dtype, implementation=None):
        c = config
        size = c.hidden_size
        self.probe = param(rngs, (size,), dtype)
        self.qkv = param(rngs, (3, c.num_heads, c.head_dim, size), dtype)
        self.qkv_bias = zeros((3, c.num_heads, c.head_dim), dtype)
        self.out = Linear((size,), size, rngs=rngs, dtype=dtype)
        self.norm = LayerNorm(size, c.norm_eps, dtype)
        self.mlp = FeedForward(c, rngs=rngs, dtype=dtype)
        self.implementation = implementation

    def __call__(self, x, packing):
        """x [T, E] -> [B, E]."""
        count = len(packing.lengths)
        weight, bias = self.qkv[...], self.qkv_bias[...]
        query = linear(self.probe[...][None].astype(x.dtype), weight[0], bias[0])  # [1, H, D]
        kv = linear(x, weight[1:], bias[1:])  # [T, 2, H, D]
        pooled = packing.attend(
            jnp.broadcast_to(query, (count, *query.shape[1:])),
            kv[:, 0],
            kv[:, 1],
            queries=Packing((1,) * count),
            implementation=self.implementation,
        )
        pooled = self.out(pooled.reshape(count, -1))
        return pooled + self.mlp(self.norm(pooled))


class VisionTower(nnx.Module):
    """Images to hidden states and one vector each.

    dtype: of weights and activations; norms and position interpolation are computed in f32 whatever
    it is. implementation: which attention target runs, as in `jaxattn.attention`.
    """

    def __init__(self, config, *, rngs, dtype=jnp.float32, implementation=None):
        c, size = config, config.encoder.hidden_size
        self.config, self.dtype = c, jnp.dtype(dtype)
        norm = (size, c.encoder.norm_eps, dtype)
        options = {"rngs": rngs, "dtype": dtype, "implementation": implementation}
        self.embeddings = Embeddings(c, rngs=rngs, dtype=dtype)
        self.pre_norm = LayerNorm(*norm) if c.pre_norm else None
        self.encoder = Encoder(c.encoder, **options)
        self.norm = LayerNorm(*norm)
        self.pool = _pool(c, options)
        seen = {None: 0, "class": size, "class+mean": 2 * size}[c.classifier]
        self.head = Linear((len(c.labels),), seen, rngs=rngs, dtype=dtype) if seen else None

    def __call__(self, images):
        """VisionOutput of images [B, H, W, 3], or of a sequence of [H, W, 3] of any sizes.

        Pixels past the last whole patch are not seen, as in a convolution. Raises ValueError for
        another shape, and for an image smaller than a patch.
        """
        batch = not isinstance(images, list | tuple)
        images = _checked(images, self.config.patch_size)
        size = self.config.patch_size
        grids = tuple((x.shape[0] // size, x.shape[1] // size) for x in images)
        packing = _packing(grids, self.config.num_prefix)
        x = self.embeddings([image.astype(self.dtype) for image in images], grids)
        if self.pre_norm is not None:
            x = self.pre_norm(x)
        found = {"embeddings": x}
        for i, output in enumerate(self.encoder(x, packing)):
            found[f"layers.{i}"] = x = output
        found["last"] = self.norm(x) if self.config.post_norm else x
        pooled = self._pooled(found["last"], packing)
        if batch:
            found = {name: y.reshape(len(images), -1, y.shape[-1]) for name, y in found.items()}
        return VisionOutput(found, pooled, grids, self.config.num_prefix)

    def logits(self, output):
        """f32 [B, labels] of a VisionOutput."""
        if self.head is None:
            raise ValueError("this vision tower has no classifier: its checkpoint has no labels")
        images = output.split(output.last_hidden_state)
        seen = jnp.stack([x[0] for x in images])
        if self.config.classifier == "class+mean":
            means = jnp.stack([x[output.num_prefix :].mean(0) for x in images])
            seen = jnp.concatenate([seen, means], axis=-1)
        return self.head(seen).astype(jnp.float32)

    def _pooled(self, last, packing):
        if self.config.pooling == "attention":
            return self.pool(last, packing)
        if self.config.pooling is None:
            return None
        first = last[packing.starts[:-1]]
        if self.config.pooling == "tanh":
            return jnp.tanh(self.pool(first))
        return first if self.config.post_norm else self.norm(first)


def _pool(config, options):
    """What makes a tower's last hidden states one vector; None where that needs no parameters."""
    if config.pooling == "attention":
        return AttentionPool(config.encoder, **options)
    if config.pooling == "tanh":
        rngs, dtype = options["rngs"], options["dtype"]
        return Linear((config.pooler_size,), config.encoder.hidden_size, rngs=rngs, dtype=dtype)
    return None


def _packing(grids, num_prefix):
    return Packing(tuple(num_prefix + rows * columns for rows, columns in grids))


def _patches(image, grid, size):
    """[H, W, 3] -> [rows * columns, 3 * P * P], channels outermost as in the checkpoints."""
    rows, columns = grid
    cut = image[: rows * size, : columns * size].reshape(rows, size, columns, size, 3)
    return cut.transpose(0, 2, 4, 1, 3).reshape(rows * columns, 3 * size * size)


def _checked(images, patch_size):
    """The images as a list of arrays [H, W, 3] of at least a patch."""
    images = [jnp.asarray(image) for image in images]
    if not images:
        raise ValueError("images is empty; there must be at least one")
    for i, image in enumerate(images):
        if image.ndim != 3 or image.shape[-1] != 3 or min(image.shape[:2]) < patch_size:
            raise ValueError(
                f"image {i} has shape {image.shape}; it must be [height, width, 3] with sides of "
                f"at least patch_size {patch_size}"
            )
    return images
