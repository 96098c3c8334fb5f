"""What is known about a launch when it is traced: all that its tile sizes may depend on."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxattn.masks import Full
from jaxattn.operands import PerPair, is_operand
from jaxattn.problem import Packed, Problem

__all__ = ["MIN_SIDE", "MOST_FEW", "Shape", "columns", "pow2", "side"]

MIN_SIDE = 16  # of a matrix product on any GPU
MOST_FEW = 8  # queries of a sequence that still count as few: decode, and speculation


@dataclasses.dataclass(frozen=True)
class Shape:
    """Static facts of one launch."""

    few: bool  # decode and the like: the rows of a sequence are few, its keys may be split
    dtype: str  # of q, k and v
    head_dim: int
    head_dim_v: int
    group: int  # query heads a kv head
    kv_heads: int
    page_size: int | None  # None: the keys of a sequence lie side by side
    queries: int  # of a typical sequence
    num_seqs: int
    max_keys: int  # of any sequence
    masked: bool  # some keys may be masked: the mask is not Full()
    # More than keys passes through shared memory with each tile of them: a tile of a dense mask or
    # a bias, or of what a mask with holes keeps.
    pair_operands: bool

    @classmethod
    def of(cls, problem: Problem, few: bool, queries: int) -> "Shape":
        """Of a launch that does ``problem``'s sequences of about ``queries`` queries."""
        keys = problem.keys
        leaves = jax.tree.leaves((problem.mask, problem.scores), is_leaf=is_operand)
        return cls(
            few=few,
            dtype=jnp.dtype(problem.q.dtype).name,
            head_dim=problem.q.shape[-1],
            head_dim_v=keys.v.shape[-1],
            group=problem.group,
            kv_heads=keys.num_kv_heads,
            page_size=None if isinstance(keys, Packed) else keys.cache.page_size,
            queries=max(queries, 1),
            num_seqs=max(problem.num_seqs, 1),
            max_keys=max(problem.max_keys, 1),
            masked=not isinstance(problem.mask, Full),
            pair_operands=problem.mask.holes or any(isinstance(x, PerPair) for x in leaves),
        )

    @property
    def itemsize(self) -> int:
        """Bytes of a number of q, k and v."""
        return jnp.dtype(self.dtype).itemsize

    @property
    def dims(self) -> tuple[int, int]:
        """Head dims of k and v as the kernel loads them: sums of :func:`columns`."""
        widths = (columns(d) for d in (self.head_dim, self.head_dim_v))
        return tuple(w if isinstance(w, int) else sum(w) for w in widths)

    @property
    def row_bytes(self) -> int:
        """Bytes of one key and its value, as loaded."""
        return sum(self.dims) * self.itemsize

    @property
    def heads_of_seqs(self) -> int:
        return self.num_seqs * self.kv_heads

    def programs(self, block_q: int) -> int:
        """Of a launch that splits no keys."""
        return self.heads_of_seqs * -(-self.queries // block_q)

    def rows(self, block_q: int) -> int:
        """Rows of the tile of ``block_q`` queries."""
        return side(block_q * self.group)


def pow2(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(n - 1, 0).bit_length()


def side(n: int) -> int:
    """What ``n`` is padded to as a side of a matrix product."""
    return max(pow2(n), MIN_SIDE)


def columns(d: int):
    """The width of the columns of a head dim, a number or a tuple: 128: 128; 72: (64, 16)."""
    padded = side(d)
    first = padded // 2
    rest = side(d - first)
    return (first, rest) if first >= MIN_SIDE and first + rest < padded else padded
