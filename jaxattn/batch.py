"""The arrays of one engine step."""

import dataclasses

import jax

__all__ = ["Batch"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """T packed tokens of N sequences: decodes, whole prompts and chunks of prompts, freely mixed.

    All int32. Padding: a token's slot is -1 and its row is past ``cu_q_lens[-1]``; a sequence has
    no rows (``cu_q_lens`` repeats) and length 0.
    """

    tokens: jax.Array  # [T]
    positions: jax.Array  # [T] position of each token in its sequence
    slots: jax.Array  # [T] where its key and value go: page * page_size + offset
    block_tables: jax.Array  # [N, W] the pages of each sequence, in order
    seq_lens: jax.Array  # [N] keys in the cache after this step, the new tokens included
    cu_q_lens: jax.Array  # [N + 1] rows cu_q_lens[n]:cu_q_lens[n + 1] are sequence n's
