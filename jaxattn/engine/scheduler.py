"""The scheduler: which tokens of which requests run in the next step. Plain Python, no arrays.

Requests are served in order of arrival. A step holds at most `max_num_batched_tokens` tokens:
first one token of every request that is generating, then the prompts, of which the last one is
cut into chunks where the budget ends. When pages run out, the request that came last loses its
pages and waits to be computed again; the first one always goes on, so every request finishes.
"""

from collections import deque
from typing import NamedTuple

from jaxattn.engine.pages import PageAllocator, pages_for
from jaxattn.engine.sequence import Sequence

# A request is admitted beside others only if each of those can still grow by this many tokens:
# else it would be computed, lose its pages within a few steps, and be computed again.
HEADROOM_TOKENS = 16


class Chunk(NamedTuple):
    """The tokens [start, start + length) of a sequence that run in a step."""

    sequence: Sequence
    start: int
    length: int

    @property
    def samples(self) -> bool:
        """Whether the step's logits after this chunk choose the sequence's next token."""
        return self.start + self.length == len(self.sequence.token_ids)

    @property
    def is_decode(self) -> bool:
        """Whether this is one generated token, its predecessors stored already."""
        return self.length == 1 and self.start >= self.sequence.num_prompt_tokens


class Scheduler:
    """Waiting and running requests, both in order of arrival; every running one owns pages."""

    def __init__(
        self, num_pages: int, page_size: int, max_num_seqs: int, max_num_batched_tokens: int
    ):
        self.pages = PageAllocator(num_pages)
        self.page_size = page_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def num_tokens(self) -> int:
        """Tokens that the requests here may still need computed."""
        mine = [*self.running, *self.waiting]
        return sum(each.max_tokens - each.num_cached for each in mine)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. ValueError if the whole cache is too small for it alone."""
        # The last token is never stored: it ends the request.
        needed = self._pages_for(sequence.max_tokens - 1)
        if needed > self.pages.num_pages:
            raise ValueError(
                f"the request may need {needed} cache pages for {sequence.max_tokens} tokens, but "
                f"num_pages is {self.pages.num_pages} (page_size {self.page_size}): raise "
                f"num_pages, or lower max_new_tokens"
            )
        self.waiting.append(sequence)

    def schedule(self) -> list[Chunk]:
        """Choose the next step's chunks, at most one a sequence, and give them their pages.

        The chunks follow the order of `running`. An empty list means there is no work.
        """
        chunks: list[Chunk] = []
        budget = self.max_num_batched_tokens
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            length = min(sequence.num_pending, budget)
            while not self._grow(sequence, sequence.num_cached + length):
                # The victim is never before `position`, so it has no chunk yet in this step.
                preempted = True
                if self._preempt_last() is sequence:
                    break
            else:
                chunks.append(Chunk(sequence, sequence.num_cached, length))
                budget -= length
                position += 1
        # What was just taken away must not be handed out again in the same step.
        if not preempted:
            self._admit(chunks, budget)
        return chunks

    def advance(self, chunks: list[Chunk]) -> None:
        """Record that a step has stored the chunks' keys and values."""
        for sequence, start, length in chunks:
            sequence.num_cached = start + length

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or aborted sequence out, wherever it is, and free its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._release(sequence)

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            # All pages of the known tokens are taken at once, so that prompts admitted together
            # cannot starve one another half way.
            needed = self._pages_for(len(sequence.token_ids))
            if needed + self._headroom() > self.pages.num_free:
                return  # later arrivals do not overtake
            self.running.append(self.waiting.popleft())
            self._grow(sequence, len(sequence.token_ids))
            length = min(len(sequence.token_ids), budget)
            chunks.append(Chunk(sequence, 0, length))
            budget -= length

    def _headroom(self) -> int:
        """Pages that the running sequences will want within HEADROOM_TOKENS tokens."""
        pages = 0
        for sequence in self.running:
            soon = min(len(sequence.token_ids) + HEADROOM_TOKENS, sequence.max_tokens - 1)
            pages += max(0, self._pages_for(soon) - len(sequence.pages))
        return pages

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Own pages for `num_tokens` tokens. False, and no change, if too few are free."""
        missing = self._pages_for(num_tokens) - len(sequence.pages)
        if missing > self.pages.num_free:
            return False
        if missing > 0:
            sequence.pages.extend(self.pages.allocate(missing))
        return True

    def _preempt_last(self) -> Sequence:
        sequence = self.running.pop()
        self._release(sequence)
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        # To the front: it came before everything that still waits.
        self.waiting.appendleft(sequence)
        return sequence

    def _release(self, sequence: Sequence) -> None:
        self.pages.free(sequence.pages)
        sequence.pages = []
        sequence.num_cached = 0

    def _pages_for(self, num_tokens: int) -> int:
        return pages_for(num_tokens, self.page_size)
