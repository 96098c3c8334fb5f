"""What a step reads, packed into one int32 array so that it costs one transfer to the device."""

import jax
import numpy as np

from jaxattn.batch import Batch
from jaxattn.engine.buckets import Bucket
from jaxattn.engine.sampling import SamplingRows
from jaxattn.engine.scheduler import Chunk
from jaxattn.engine.sequence import Sequence


def _fields(bucket: Bucket, width: int) -> dict[str, tuple[tuple[int, ...], type]]:
    tokens, seqs = bucket
    return {
        "tokens": ((tokens,), np.int32),
        "positions": ((tokens,), np.int32),
        "slots": ((tokens,), np.int32),
        "block_tables": ((seqs, width), np.int32),
        "seq_lens": ((seqs,), np.int32),
        "cu_q_lens": ((seqs + 1,), np.int32),
        "temperature": ((seqs,), np.float32),
        "top_k": ((seqs,), np.int32),
        "top_p": ((seqs,), np.float32),
        "min_p": ((seqs,), np.float32),
        "seeds": ((seqs, 2), np.uint32),
    }


def packed_size(bucket: Bucket, width: int) -> int:
    """Length of the packed array of a bucket with `width` pages a sequence."""
    return sum(int(np.prod(shape)) for shape, _ in _fields(bucket, width).values())


def unpack(packed: jax.Array, bucket: Bucket, width: int) -> tuple[Batch, SamplingRows]:
    """The device side of StepInputs, for use inside jit. packed: i32[packed_size]."""
    parts = {}
    start = 0
    for name, (shape, dtype) in _fields(bucket, width).items():
        size = int(np.prod(shape))
        part = packed[start : start + size].reshape(shape)
        parts[name] = part if dtype == np.int32 else jax.lax.bitcast_convert_type(part, dtype)
        start += size
    rows = {name: parts.pop(name) for name in ("temperature", "top_k", "top_p", "min_p", "seeds")}
    return Batch(**parts), SamplingRows(**rows)


class StepInputs:
    """The host side for one bucket: arrays allocated once, changed in place from step to step.

    A step of decodes writes a few numbers a sequence. Its page table and sampling settings are
    written only when the row gets another sequence, or the sequence another page.
    """

    def __init__(self, bucket: Bucket, width: int, page_size: int):
        self.packed = np.zeros(packed_size(bucket, width), np.int32)
        self._page_size = page_size
        self._owners: list[tuple[Sequence, int] | None] = [None] * bucket.seqs
        self._pages_written = [0] * bucket.seqs
        self._rows_used = 0
        start = 0
        for name, (shape, dtype) in _fields(bucket, width).items():
            size = int(np.prod(shape))
            setattr(self, name, self.packed[start : start + size].view(dtype).reshape(shape))
            start += size

    def fill(self, chunks: list[Chunk]) -> None:
        """Write a step of `chunks`, which fit the bucket; the rest becomes padding."""
        row_end = 0
        for row, chunk in enumerate(chunks):
            self._own(row, chunk.sequence)
            row_start, row_end = row_end, row_end + chunk.length
            self._fill_tokens(row, row_start, chunk)
            self.seq_lens[row] = chunk.start + chunk.length
            self.cu_q_lens[row + 1] = row_end
        self.tokens[row_end:] = 0
        self.positions[row_end:] = 0
        self.slots[row_end:] = -1
        self._clear_rows(len(chunks), row_end)

    def _fill_tokens(self, row: int, at: int, chunk: Chunk) -> None:
        sequence, start, length = chunk
        size = self._page_size
        if length == 1:  # a decode: plain numbers are faster than slices of one
            self.tokens[at] = sequence.token_ids[start]
            self.positions[at] = start
            self.slots[at] = sequence.pages[start // size] * size + start % size
            return
        positions = np.arange(start, start + length, dtype=np.int32)
        self.tokens[at : at + length] = sequence.token_ids[start : start + length]
        self.positions[at : at + length] = positions
        pages = self.block_tables[row, positions // size]
        self.slots[at : at + length] = pages * size + positions % size

    def _own(self, row: int, sequence: Sequence) -> None:
        # After a preemption the same sequence has other pages.
        owner = (sequence, sequence.num_preemptions)
        if self._owners[row] != owner:
            self._owners[row] = owner
            self._pages_written[row] = 0
            params = sequence.params
            self.temperature[row] = params.temperature
            self.top_k[row] = min(params.top_k, np.iinfo(np.int32).max)
            self.top_p[row] = params.top_p
            self.min_p[row] = params.min_p
            self.seeds[row] = divmod(sequence.seed, 2**32)
        written, pages = self._pages_written[row], sequence.pages
        if written < len(pages):
            self.block_tables[row, written : len(pages)] = pages[written:]
            self._pages_written[row] = len(pages)

    def _clear_rows(self, used: int, row_end: int) -> None:
        """Make the rows from `used` on padding: no tokens, length 0, greedy."""
        self.cu_q_lens[used + 1 :] = row_end
        for row in range(used, self._rows_used):
            self._owners[row] = None
            self.block_tables[row] = 0
            self.seq_lens[row] = 0
            self.temperature[row] = 0
            self.top_k[row] = 0
            self.top_p[row] = 1
            self.min_p[row] = 0
        self._rows_used = used
