"""The step shapes that are compiled: a step runs in the smallest bucket that holds it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Between one bucket and the next smaller one. Two wastes less padding, four halves the compiles.
GROWTH = 4


class Bucket(NamedTuple):
    """A step's static shape: token rows T and sequence rows N, both powers of two."""

    tokens: int
    seqs: int


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def smallest_holding(buckets: Iterable[Bucket], tokens: int, seqs: int) -> Bucket | None:
    """The bucket with the least padding for a step of `tokens` of `seqs`; None if none holds it."""
    fitting = [b for b in buckets if b.tokens >= tokens and b.seqs >= seqs]
    return min(fitting, default=None)


def all_buckets(max_tokens: int, max_seqs: int, growth: int = GROWTH) -> list[Bucket]:
    """Buckets for any step of up to `max_tokens` of `max_seqs`, when nothing more is known.

    Steps of decodes only have one token a sequence; the others are padded to all sequences.
    """
    top = power_of_two(max_seqs)
    decodes = [Bucket(seqs, seqs) for seqs in _ladder(top, 1, growth)]
    mixed = _ladder(max(power_of_two(max_tokens), top), 2 * top, growth)
    return decodes + [Bucket(tokens, top) for tokens in mixed]


def buckets_for(
    prompt_lens: Sequence[int], max_tokens: int, max_seqs: int, longest_recompute: int = 0
) -> list[Bucket]:
    """The few buckets that known requests need: two for one prompt.

    prompt_lens: tokens of each request. longest_recompute: the most tokens a request can have when
    it loses its pages and is computed again; 0 if pages suffice for all.
    """
    seqs = min(max_seqs, len(prompt_lens))
    top = power_of_two(seqs)
    together = sum(sorted(prompt_lens)[-seqs:])
    largest = power_of_two(min(max_tokens, max(together, longest_recompute)))
    buckets = {Bucket(n, n) for n in _ladder(top, 1, GROWTH)}
    buckets.add(Bucket(max(top, largest), top))
    if len(prompt_lens) > seqs:
        # Later requests join one at a time, beside the ones that generate.
        joining = min(max_tokens, max(prompt_lens) + seqs)
        buckets.add(Bucket(power_of_two(joining), top))
    return sorted(buckets)


def _ladder(top: int, bottom: int, growth: int) -> list[int]:
    """`top`, `top`/growth ... down to at least `bottom`."""
    sizes = []
    while top >= bottom:
        sizes.append(top)
        top //= growth
    return sizes
