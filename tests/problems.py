"""Random attention calls in every form, with NaN and garbage wherever a kernel must not look.

A `Call` knows its sequences one by one in numpy; `args` are the arrays of the public function. Each
`Recipe` builds a mask or a score for a call, and says in plain numpy what it means.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from ml_dtypes import bfloat16

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": bfloat16}


@dataclasses.dataclass
class Call:
    """One call. `kind` is "attention", "varlen" or "paged"; `seqs` the (query, key) lengths."""

    kind: str
    seqs: tuple
    heads: tuple  # H, K, D, Dv
    page_size: int = 16
    dtype: str = "f32"
    seed: int = 0
    padding: int = 3  # query rows that belong to no sequence
    idle: int = 2  # sequences that are padding
    spread: float = 1.0  # standard deviation of q: small makes every weight matter

    def __post_init__(self):
        if self.kind == "attention":
            assert len(set(self.seqs)) == 1, "attention() is a batch of equal lengths"
            self.padding = self.idle = 0

    @functools.cached_property
    def q(self):
        """[T_n, H, D] of every sequence."""
        return self._normal("q", 0, self.heads[0], self.heads[2], self.spread)

    @functools.cached_property
    def k(self):
        """[S_n, K, D] of every sequence."""
        return self._normal("k", 1, self.heads[1], self.heads[2], 1.0)

    @functools.cached_property
    def v(self):
        """[S_n, K, Dv] of every sequence."""
        return self._normal("v", 1, self.heads[1], self.heads[3], 1.0)

    def _normal(self, name, which, heads, dim, std):
        rng, dtype = self.rng(name), DTYPES[self.dtype]
        shapes = [(lens[which], heads, dim) for lens in self.seqs]
        draws = [rng.standard_normal(shape, np.float32) * np.float32(std) for shape in shapes]
        return [x.astype(dtype) for x in draws]

    def rng(self, purpose: str):
        return np.random.default_rng([self.seed, *purpose.encode()])

    def positions(self, n):
        """Query positions [T_n, 1] and key positions [1, S_n]."""
        q_len, k_len = self.seqs[n]
        return (np.arange(q_len) + k_len - q_len)[:, None], np.arange(k_len)[None, :]

    @property
    def rows(self) -> int:
        return sum(q_len for q_len, _ in self.seqs) + self.padding

    @functools.cached_property
    def cu_q_lens(self):
        return self._cumulate(0)

    @functools.cached_property
    def cu_k_lens(self):
        return self._cumulate(1)

    def _cumulate(self, which):
        ends = np.cumsum([0, *(s[which] for s in self.seqs)])
        return np.pad(ends, (0, self.idle), mode="edge").astype(np.int32)

    @functools.cached_property
    def width(self) -> int:
        """Block table columns: the longest sequence and one more."""
        return -(-max(s for _, s in self.seqs) // self.page_size) + 1

    @property
    def columns(self) -> int:
        """Key positions that a per-pair array has."""
        return max(k_len for _, k_len in self.seqs)

    @functools.cached_property
    def tables(self):
        """Pages of each sequence, scattered over a cache with some pages to spare."""
        pages = [-(-k_len // self.page_size) for _, k_len in self.seqs]
        order = self.rng("pages").permutation(sum(pages) + 3)
        return np.split(order[: sum(pages)], np.cumsum(pages)[:-1])

    def args(self, dead=None):
        """The arrays of the public function, in its order. `dead[n]` are keys [S_n] that nothing
        may let through: they hold NaN."""
        make = {"attention": self._attention, "varlen": self._varlen, "paged": self._paged}
        return make[self.kind](dead or [np.zeros(k_len, bool) for _, k_len in self.seqs])

    def _poisoned(self, x, dead):
        x = x.copy()
        x[dead] = np.nan
        return x

    def _attention(self, dead):
        k, v = (
            [self._poisoned(x, d) for x, d in zip(a, dead, strict=True)] for a in (self.k, self.v)
        )
        return np.stack(self.q), np.stack(k), np.stack(v)

    def _packed_q(self):
        q = np.full((self.rows, *self.q[0].shape[1:]), np.nan, self.q[0].dtype)
        q[: self.rows - self.padding] = np.concatenate(self.q)
        return q

    def _varlen(self, dead):
        packed = []
        for each in (self.k, self.v):
            parts = [self._poisoned(x, d) for x, d in zip(each, dead, strict=True)]
            packed.append(
                np.concatenate(
                    [*parts, np.full_like(each[0], np.nan, shape=(5, *each[0].shape[1:]))]
                )
            )
        return self._packed_q(), *packed, self.cu_q_lens, self.cu_k_lens

    def _paged(self, dead):
        from jaxattn import PagedKV

        num_pages, rng = sum(map(len, self.tables)) + 3, self.rng("garbage")
        table = rng.choice([-1, -7, num_pages, 2**31 - 1], (len(self.seqs) + self.idle, self.width))
        cache = []
        for each in (self.k, self.v):
            x = np.full((num_pages, self.page_size, *each[0].shape[1:]), np.nan, each[0].dtype)
            for n, pages in enumerate(self.tables):
                slots = (pages[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)
                values = self._poisoned(each[n], dead[n])
                x.reshape(-1, *x.shape[2:])[slots[: len(values)]] = values
            cache.append(np.ascontiguousarray(x.swapaxes(1, 2)))
        for n, pages in enumerate(self.tables):
            table[n, : len(pages)] = pages
        lens = [k_len for _, k_len in self.seqs] + [77, -5, 2**30][: self.idle]
        return (
            self._packed_q(),
            PagedKV(*cache),
            table.astype(np.int32),
            np.array(lens, np.int32),
            self.cu_q_lens,
        )

    def pack_rows(self, parts, fill):
        """[..., T_n] of every sequence -> [..., rows] (or [B, ..., T]); padding holds `fill`."""
        if self.kind == "attention":
            return np.stack(parts)
        pad = np.full((*parts[0].shape[:-1], self.padding), fill, parts[0].dtype)
        return np.concatenate([*parts, pad], axis=-1)

    def pack_keys(self, parts, fill):
        """[S_n] of every sequence in the form that Segments.k_ids has."""
        if self.kind == "attention":
            return np.stack(parts)
        if self.kind == "varlen":
            return np.concatenate([*parts, np.full(5, fill, parts[0].dtype)])
        out = np.full((len(parts) + self.idle, self.width * self.page_size), fill, parts[0].dtype)
        for n, x in enumerate(parts):
            out[n, : len(x)] = x
        return out

    def pack_pairs(self, parts, fill):
        """[H or 1, T_n, S_n] of every sequence in the form that Dense and Bias have."""
        if self.kind == "attention":
            return np.stack(parts)
        wide = [
            np.pad(x, ((0, 0), (0, 0), (0, self.columns - x.shape[2])), constant_values=fill)
            for x in parts
        ]
        pad = np.full((parts[0].shape[0], self.padding, self.columns), fill, parts[0].dtype)
        return np.concatenate([*wide, pad], axis=1)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """`build(call)` gives the mask or score, `means(call, n)` its numpy meaning for sequence n:
    booleans broadcastable to [H, T_n, S_n] for a mask, a function of the logits for a score."""

    build: Callable
    means: Callable

    def __and__(self, other):
        return Recipe(
            lambda c: self.build(c) & other.build(c),
            lambda c, n: self.means(c, n) & other.means(c, n),
        )

    def __or__(self, other):
        return Recipe(
            lambda c: self.build(c) | other.build(c),
            lambda c, n: self.means(c, n) | other.means(c, n),
        )


def kept(call: Call, mask: Recipe) -> list:
    """Booleans [H, T_n, S_n] of every sequence."""
    shape = lambda n: (call.heads[0], *call.seqs[n])  # noqa: E731
    return [np.broadcast_to(mask.means(call, n), shape(n)) for n in range(len(call.seqs))]


def unreachable(call: Call, mask: Recipe) -> list:
    """For `Call.args`: the keys that no query of their sequence keeps."""
    return [~keep.any((0, 1)) for keep in kept(call, mask)]


def dense(mask: Recipe) -> Recipe:
    """The same mask as a dense array, by its meaning in numpy."""
    from jaxattn import Dense

    def means(call, n):
        keep = np.atleast_2d(mask.means(call, n))
        return np.broadcast_to(keep, (1, *call.seqs[n])) if keep.ndim == 2 else keep

    def build(call):
        parts = [
            np.broadcast_to(x := means(call, n), (len(x), *call.seqs[n]))
            for n in range(len(call.seqs))
        ]
        return Dense(call.pack_pairs(parts, False))

    return Recipe(build, means)
