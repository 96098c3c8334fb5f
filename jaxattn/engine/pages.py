"""The page allocator: which cache pages are free. It knows numbers only, no arrays."""


class PageAllocator:
    """Hands out page numbers 0 .. num_pages-1, each to one owner at a time.

    Invariant: every page is either in the free list once or owned once.
    The page freed last is handed out first, since its memory is likelier to be in a CPU cache.
    """

    def __init__(self, num_pages: int):
        if num_pages < 1:
            raise ValueError(f"num_pages must be at least 1, got {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._owned = [False] * num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages. ValueError if fewer are free, and then nothing is taken."""
        if not 0 <= count <= len(self._free):
            raise ValueError(f"count must be from 0 to the {len(self._free)} free, got {count}")
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._owned[page] = True
        return taken

    def free(self, pages: list[int]) -> None:
        """Give pages back. ValueError on a page that is not owned: it would be owned twice."""
        for page in pages:
            if not (0 <= page < self.num_pages and self._owned[page]):
                raise ValueError(f"page {page} is not owned, so it cannot be freed")
            self._owned[page] = False
            self._free.append(page)


def pages_for(num_tokens: int, page_size: int) -> int:
    """How many pages of `page_size` slots hold `num_tokens` tokens."""
    return -(-num_tokens // page_size)
