"""How often the loops of a kernel run, and so how many bundles a whole launch executes."""

import dataclasses

from scripts.tpu.bundles import Kernel, Loop


@dataclasses.dataclass(frozen=True)
class Trips:
    """counts: turns of each loop over the whole launch, in the order of the code. bodies: of these,
    how often each alternative body runs (bundles.Loop.bodies), where a loop has several."""

    counts: tuple[int, ...]
    bodies: tuple[int, ...] = ()

    def executed(self, kernel: Kernel) -> int | None:
        """Bundles executed; other code that a condition skips counts. None where the loops are
        others."""
        loops = list(kernel.root.walk())[1:]
        if len(loops) != len(self.counts):
            return None
        pairs = zip(loops, self.counts, strict=True)
        return kernel.root.bundles + sum(self._turns(loop, count) for loop, count in pairs)

    def _turns(self, loop: Loop, count: int) -> int:
        bodies = loop.bodies
        if not self.bodies or len(bodies) != len(self.bodies):
            return loop.bundles * count
        rest = loop.bundles - sum(body.bundles for body in bodies)
        pairs = zip(bodies, self.bodies, strict=True)
        return rest * count + sum(body.bundles * turns for body, turns in pairs)
