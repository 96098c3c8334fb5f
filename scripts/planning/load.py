"""The work of a step that its shape does not tell: how long the sequences in it are."""

import dataclasses

from scripts.planning.sizes import Sizes
from scripts.planning.steps import Step

# A multiplication and an addition in each of the two products, q k^T and p v.
FLOPS_PER_PAIR_AND_COLUMN = 2 * 2


@dataclasses.dataclass(frozen=True)
class Load:
    """Sequences of one replica as (queries, keys) and how many alike."""

    groups: tuple[tuple[int, int, int], ...]

    @property
    def tokens(self) -> int:
        """Rows in use."""
        return sum(queries * count for queries, _, count in self.groups)


def load(step: Step, sizes: Sizes, context: int) -> Load:
    """`context`: keys of a decoding sequence. A prompt begins at 0 and fills the step's rows."""
    match step.name:
        case "prefill":
            prompt = min(step.tokens, sizes.batched_tokens, sizes.max_model_len)
            return Load(((prompt, prompt, 1),))
        case "mixed":
            rest = sizes.batched_tokens - (sizes.seqs - 1)
            prompt = max(1, min(rest, sizes.max_model_len))
            return Load(((prompt, prompt, 1), (1, context, sizes.seqs - 1)))
        case _:
            return Load(((1, context, sizes.seqs),))


def attention_flops(work: Load, sizes: Sizes) -> int:
    """4 * (pairs of a query and a key that it sees) * H * D, on one device, all layers."""
    columns = sizes.local_heads[0] * sizes.config.head_dim
    pairs = sum(
        count * _pairs(queries, keys, window)
        for queries, keys, count in work.groups
        for window in sizes.config.windows
    )
    return FLOPS_PER_PAIR_AND_COLUMN * pairs * columns


def cache_bytes(work: Load, sizes: Sizes) -> int:
    """Keys and values that some query sees, read once a layer, on one device."""
    layer = sizes.token_bytes // sizes.config.num_layers
    return layer * sum(
        count * min(keys, queries - 1 + (window or keys))
        for queries, keys, count in work.groups
        for window in sizes.config.windows
    )


def _pairs(queries: int, keys: int, window: int | None) -> int:
    """Query i stands at position keys - queries + i and sees the keys up to its own."""
    first, last = keys - queries + 1, keys
    if window is None or window >= last:
        return (first + last) * queries // 2
    growing = max(0, window - first)  # queries that see fewer than `window`
    return (first + window - 1) * growing // 2 + (queries - growing) * window
