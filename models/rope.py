"""Rotary position embedding: which frequencies a model uses, and the rotation.

Every number comes from the checkpoint's configuration. Nothing is keyed on a model's name: Llama
3.1 and 3.3 scale by 8, Llama 3.2 by 32, and a wrong factor shows only after tens of thousands of
tokens.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """What decides the rotation angles. Fields that a kind does not use stay None.

    kind: "default", "linear" (positions / factor), "llama3" (low frequencies / factor, a ramp
    between) or "yarn" (a ramp between plain and linear, and cos/sin times `attention_factor`).
    divisors: one number a frequency pair by which inv_freq is divided, or None. This is how GGUF
    files store the llama3 scaling (`rope_freqs.weight`), with kind "default".
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] | None = None

    def __post_init__(self):
        if not self.theta > 1:
            raise ValueError(f"rope theta is {self.theta}; it must be above 1")
        if self.kind == "llama3" and not self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor {self.low_freq_factor} must be below high_freq_factor "
                f"{self.high_freq_factor}"
            )
        if self.kind == "yarn" and not self.beta_slow < self.beta_fast:
            raise ValueError(f"beta_slow {self.beta_slow} must be below beta_fast {self.beta_fast}")
        if self.divisors is not None and not all(0 < d < math.inf for d in self.divisors):
            raise ValueError("rope_freqs.weight holds values that are not above 0")

    def inv_freq(self, head_dim):
        """Radians a position for each pair of dimensions: float64 [head_dim / 2]."""
        plain = self.theta ** -(np.arange(0, head_dim, 2) / head_dim)
        if self.kind == "linear":
            plain = plain / self.factor
        elif self.kind == "llama3":
            plain = self._llama3(plain)
        elif self.kind == "yarn":
            plain = self._yarn(plain, head_dim)
        if self.divisors is not None:
            if len(self.divisors) != head_dim // 2:
                raise ValueError(
                    f"rope_freqs.weight has {len(self.divisors)} values; head_dim {head_dim} needs "
                    f"{head_dim // 2}"
                )
            plain = plain / np.asarray(self.divisors)
        return plain

    def _llama3(self, plain):
        """Keep short wavelengths, divide long ones by `factor`, interpolate those between."""
        turns = (
            self.original_max_position_embeddings * plain / (2 * math.pi)
        )  # over the old context
        low, high = self.low_freq_factor, self.high_freq_factor
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return plain * (keep + (1.0 - keep) / self.factor)

    def _yarn(self, plain, head_dim):
        """Keep pairs that turn more than beta_fast times over the old context, divide by `factor`
        those that turn less than beta_slow times, and ramp linearly in the pair's index between."""

        def pair_turning(turns):
            ratio = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return head_dim * math.log(ratio) / (2 * math.log(self.theta))

        low, high = pair_turning(self.beta_fast), pair_turning(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        width = max(high - low, 0.001)  # no division by zero when both bounds meet
        keep = 1.0 - np.clip((np.arange(head_dim // 2) - low) / width, 0.0, 1.0)
        return plain * (keep + (1.0 - keep) / self.factor)


def yarn_attention_factor(factor):
    """The factor on cos and sin that the YaRN paper derives from the context extension."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0


def rope_table(positions, rope, head_dim):
    """cos and sin, f32 [T, head_dim / 2] each, of absolute `positions` i32 [T]."""
    inv_freq = jnp.asarray(rope.inv_freq(head_dim), jnp.float32)
    angles = positions.astype(jnp.float32)[:, None] * inv_freq
    return jnp.cos(angles) * rope.attention_factor, jnp.sin(angles) * rope.attention_factor


def rotate(x, table):
    """Rotate pair (i, i + D/2) of x [T, ..., D] by the angles of `table`; f32 inside, x's dtype
    out."""
    cos, sin = (t.reshape(t.shape[0], *(1,) * (x.ndim - 2), -1) for t in table)
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
