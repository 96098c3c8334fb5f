"""What an engine has done and how long it took."""

from dataclasses import dataclass

from jaxattn.engine.scheduler import Chunk


@dataclass
class Stats:
    """Tokens and seconds, compiling kept apart.

    A prefill token is one of a prompt, or one computed again after a preemption. A decode token is
    one that was generated in the step before. The time of a step that has both is shared out by
    their numbers. The first generated token of a request comes out of its prefill.
    """

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    compile_seconds: float = 0.0
    steps: int = 0
    preemptions: int = 0

    def record(self, chunks: list[Chunk], seconds: float) -> None:
        """Count a step, with the sequences as they are before their new tokens are added."""
        decodes = sum(chunk.is_decode for chunk in chunks)
        prefill = sum(chunk.length for chunk in chunks) - decodes
        share = decodes / (decodes + prefill)
        self.steps += 1
        self.decode_tokens += decodes
        self.decode_seconds += seconds * share
        self.prefill_tokens += prefill
        self.prefill_seconds += seconds * (1 - share)

    @property
    def prefill_rate(self) -> float:
        """Prefill tokens per second; 0 before the first."""
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Decode tokens per second; 0 before the first."""
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0
