"""What is where in a device's HBM, and how many pages are left."""

import dataclasses

from scripts.planning.sizes import Sizes

# Left for activations until a step is compiled; what it then takes is subtracted instead.
SPARE = 0.06


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device, and pages and tokens of one replica.

    activations: the most that any step takes beside its arguments. code: of all steps together.
    pages: as many as fit, at most those that sequences of the longest length use.
    """

    hbm: int
    weights: int
    activations: int
    code: int
    page: int
    pages_left: int
    pages: int
    tokens: int

    @property
    def fits(self) -> bool:
        return self.pages > 0

    @property
    def cache(self) -> int:
        return self.pages * self.page


def memory(sizes: Sizes, hbm: float, weights: int, activations: int, code: int) -> Memory:
    left = int(hbm - weights - activations - code) // sizes.page_bytes
    left = max(0, min(left, (2**31 - 1) // sizes.page_size))  # slots are numbered in int32
    pages = min(left, sizes.wanted_pages)
    tokens = pages * sizes.page_size
    return Memory(int(hbm), weights, activations, code, sizes.page_bytes, left, pages, tokens)


def first_guess(sizes: Sizes, hbm: float, weights: int) -> int:
    """Pages to compile with; 0 if the weights leave no room."""
    return memory(sizes, hbm, weights, int(SPARE * hbm), 0).pages
