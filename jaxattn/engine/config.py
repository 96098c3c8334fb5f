"""The sizes of an engine, checked together."""

from dataclasses import dataclass

from jaxattn.engine.checks import INT32_MAX, integer


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What an engine holds at once. Every size is fixed for the engine's life.

    Sizes are int32 on the device; ValueError on one that does not fit, or is not an integer.

    max_model_len: the most tokens of one request, prompt and generated together.
    num_pages: pages in the cache, shared by all requests.
    page_size: tokens in a page, a power of two from 1 to 256.
    max_num_seqs: the most requests in a step.
    max_num_batched_tokens: the most tokens in a step; longer prompts are computed in chunks.
    """

    max_model_len: int
    num_pages: int
    page_size: int = 16
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512

    def __post_init__(self):
        for name in self.__dataclass_fields__:
            size = integer(name, getattr(self, name))
            object.__setattr__(self, name, size)
            if size > INT32_MAX:
                raise ValueError(f"{name} must be at most {INT32_MAX}, got {size}")
        for name in ("num_pages", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_model_len < 2:
            raise ValueError(
                f"max_model_len must be at least 2 (a prompt token and a generated one), "
                f"got {self.max_model_len}"
            )
        if self.page_size not in {2**power for power in range(9)}:
            raise ValueError(
                f"page_size must be a power of two from 1 to 256, got {self.page_size}"
            )
        if self.num_pages * self.page_size > INT32_MAX:
            raise ValueError(
                f"num_pages must be at most {INT32_MAX // self.page_size}, so that the slots of "
                f"pages of page_size {self.page_size} can be numbered, got {self.num_pages}"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs}), so "
                f"that every request can move, got {self.max_num_batched_tokens}"
            )
