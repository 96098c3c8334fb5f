"""A request: how its tokens are chosen (`SamplingParams`) and how far it has come (`Sequence`)."""

import math
from dataclasses import dataclass, field

from jaxattn.engine.checks import entries, integer, number

SMALLEST_TEMPERATURE = 1e-5  # below this a float32 division by it may overflow to inf


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request chooses its tokens. Every field is honoured; a bad value raises ValueError.

    max_new_tokens: how many tokens may be generated, at least 1.
    temperature: 0 takes the likeliest token (greedy); otherwise logits are divided by it.
    top_k: keep the k likeliest tokens (and ties with the k-th); 0 keeps all.
    top_p: keep the fewest likeliest tokens whose probability adds up to at least top_p.
    min_p: keep the tokens at least min_p times as likely as the likeliest one.
    seed: 0 to 2**64 - 1. The same seed gives the same text whatever else is in the batch. None
        lets the engine draw one.
    stop: strings that end the text; the text returned ends before the stop string.
    stop_token_ids: tokens that end the text besides the end-of-text tokens of the model.
    ignore_eos: treat the model's end-of-text tokens like any other token.

    The order is temperature, top-k, top-p, min-p, each on what the one before has left.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self):
        self._check_types()
        _check("max_new_tokens", self.max_new_tokens, self.max_new_tokens >= 1, "at least 1")
        temperature_fits = self.temperature == 0 or (
            SMALLEST_TEMPERATURE <= self.temperature < math.inf
        )
        rule = f"0 (greedy) or a finite number from {SMALLEST_TEMPERATURE:g} up"
        _check("temperature", self.temperature, temperature_fits, rule)
        _check("top_k", self.top_k, self.top_k >= 0, "at least 0 (0 keeps every token)")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        seed_fits = self.seed is None or 0 <= self.seed < 2**64
        _check("seed", self.seed, seed_fits, "from 0 to 2**64 - 1")
        _check("stop", self.stop, all(self.stop), "strings of at least one character")
        ids_fit = all(token_id >= 0 for token_id in self.stop_token_ids)
        _check("stop_token_ids", self.stop_token_ids, ids_fit, "ids of at least 0")

    def _check_types(self) -> None:
        """Make every field what its annotation says, from NumPy's numbers and from lists too."""
        values = {name: integer(name, getattr(self, name)) for name in ("max_new_tokens", "top_k")}
        for name in ("temperature", "top_p", "min_p"):
            values[name] = number(name, getattr(self, name))
        values["seed"] = None if self.seed is None else integer("seed", self.seed)
        values["stop"] = entries("stop", self.stop, "strings")
        are_strings = all(isinstance(stop, str) for stop in values["stop"])
        _check("stop", self.stop, are_strings, "a tuple of strings")
        values["stop_token_ids"] = tuple(
            integer("each of stop_token_ids", token_id)
            for token_id in entries("stop_token_ids", self.stop_token_ids, "ids")
        )
        _check("ignore_eos", self.ignore_eos, isinstance(self.ignore_eos, bool), "True or False")
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _check(name: str, value, holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {rule}, got {value!r}")


@dataclass(eq=False)
class Sequence:
    """One request's tokens and its place in the cache. Changed by the scheduler and the engine.

    index: the request's number, in order of arrival; lower is served first.
    token_ids: the prompt's tokens and then the generated ones.
    num_prompt_tokens: how many of token_ids are the prompt.
    max_tokens: the length of token_ids at which the request ends with "length".
    seed: 0 to 2**64 - 1.
    num_cached: how many of token_ids have their keys and values in the cache.
    pages: the cache pages owned, in order of position.
    num_preemptions: how often its pages were taken away.
    finish_reason: None while unfinished, then "stop" or "length".
    """

    index: int
    token_ids: list[int]
    num_prompt_tokens: int
    max_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    num_cached: int = 0
    pages: list[int] = field(default_factory=list)
    num_preemptions: int = 0
    finish_reason: str | None = None

    @property
    def num_pending(self) -> int:
        """Tokens whose keys and values are not yet in the cache: 1 for a decode."""
        return len(self.token_ids) - self.num_cached

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
