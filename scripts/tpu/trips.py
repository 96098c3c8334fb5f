"""How often the loops of a kernel run, and so how many bundles a whole launch executes."""

import dataclasses

from scripts.tpu.bundles import Kernel, Loop


@dataclasses.dataclass(frozen=True)
class Trips:
    """counts: turns of each loop over the whole launch, in the order of the code."""

    counts: tuple[int, ...]

    def executed(self, kernel: Kernel) -> int | None:
        """Bundles executed; what a condition skips counts. None where the loops are others."""
        loops = list(kernel.root.walk())[1:]
        if len(loops) != len(self.counts):
            return None
        pairs = zip(loops, self.counts, strict=True)
        return kernel.root.bundles + sum(loop.bundles * count for loop, count in pairs)

    def of(self, kernel: Kernel, loop: Loop) -> int:
        """Turns of one of the kernel's loops."""
        loops = list(kernel.root.walk())[1:]
        return self.counts[[id(each) for each in loops].index(id(loop))]
