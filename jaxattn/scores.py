"""What happens to a logit between the scaled product and the mask.

A score is a frozen object with ``apply(s, q_idx, k_idx, env)`` on f32 logits ``[rows, keys]`` in
natural units; several are applied in the order given.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxattn.operands import PerHead, PerPair

__all__ = ["Alibi", "Bias", "Score", "Softcap"]


class Score:
    """The interface."""

    def apply(self, s, q_idx, k_idx, env):
        """The changed logits: ``s f32[rows, keys]`` at ``q_idx [rows, 1]``, ``k_idx [1, keys]``."""
        raise NotImplementedError


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Softcap(Score):
    """``cap * tanh(s / cap)``: finite and smooth however large the logit.

    Raises:
      ValueError: ``cap`` is not positive.
    """

    cap: float

    def __post_init__(self):
        try:
            cap = float(self.cap)
        except (TypeError, ValueError, jax.errors.ConcretizationTypeError):
            cap = math.nan
        if not 1e-30 < cap < math.inf:
            raise ValueError(
                f"Softcap cap={self.cap!r}: must be a positive finite number, known when tracing"
            )
        object.__setattr__(self, "cap", cap)

    def apply(self, s, q_idx, k_idx, env):
        return self.cap * jnp.tanh(s * (1.0 / self.cap))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Alibi(Score):
    """``s + slope * (k - q)`` with one slope a query head, ``f32[H]`` (Press et al. 2021)."""

    slopes: jax.Array

    def __post_init__(self):
        if not isinstance(self.slopes, PerHead):
            object.__setattr__(self, "slopes", PerHead(self.slopes))

    def apply(self, s, q_idx, k_idx, env):
        return s + env.per_head(self.slopes) * (k_idx - q_idx).astype(jnp.float32)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bias(Score):
    """``s + bias``: a float array shaped as :class:`jaxattn.Dense`'s; 0 past its last column."""

    bias: jax.Array

    def __post_init__(self):
        if not isinstance(self.bias, PerPair):
            object.__setattr__(self, "bias", PerPair(self.bias))

    def apply(self, s, q_idx, k_idx, env):
        return s + env.at_pair(self.bias).astype(jnp.float32)
