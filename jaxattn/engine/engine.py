"""The engine: requests in, tokens and text out. schedule -> run -> accept, once a step.

It knows a callable `step(params, batch, caches) -> (logits, caches)`, never a model.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh

from jaxattn.engine.buckets import Bucket, all_buckets, buckets_for
from jaxattn.engine.checks import integer
from jaxattn.engine.config import EngineConfig
from jaxattn.engine.devices import Devices
from jaxattn.engine.pages import pages_for
from jaxattn.engine.runner import Runner, Step
from jaxattn.engine.scheduler import Scheduler
from jaxattn.engine.sequence import SamplingParams, Sequence
from jaxattn.engine.stats import Stats
from jaxattn.engine.text import TextStream

Prompt = str | list[int]
GREEDY = SamplingParams()
# Called before each compile with (its number from 0, how many, the bucket).
OnCompile = Callable[[int, int, Bucket], None]


@dataclass(frozen=True)
class Output:
    """What a step gave one request.

    index: the request. token_id: the new token. text: what may be shown now; it may lag behind the
    tokens while a character or a possible stop string is incomplete. finish_reason: None, or
    "stop" (end-of-text token, stop token or stop string) or "length", and then nothing follows.
    """

    index: int
    token_id: int
    text: str
    finish_reason: str | None


@dataclass(frozen=True)
class Completion:
    """A finished request. token_ids holds the end-of-text token where one ended it."""

    index: int
    token_ids: list[int]
    text: str
    finish_reason: str


class Engine:
    """Generates from many requests at once over a paged cache.

    step, params: the model, see jaxattn.engine.runner.Step.
    cache_spec: num_layers, num_kv_heads, head_dim, dtype (and head_dim_v) of the cache.
    tokenizer: has encode(text) and stream(); None if prompts are ids and no text is wanted.
    eos_token_ids: tokens that end a request. vocab_size: prompts with other ids are refused.
    mesh: devices with the axes "data" and "model", on which params lie. Along "data" there are
    replicas of the model, each with a scheduler and a cache of the sizes of `config`; a request
    goes to the one with the fewest tokens to compute. With several processes all of them make the
    same calls.
    """

    def __init__(
        self,
        step: Step,
        params: Any,
        cache_spec: Mapping[str, Any],
        config: EngineConfig,
        *,
        vocab_size: int,
        tokenizer: Any = None,
        eos_token_ids: tuple[int, ...] = (),
        mesh: Mesh | None = None,
    ):
        self.config = config
        self.stats = Stats()
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._vocab_size = vocab_size
        devices = Devices(mesh)
        width = pages_for(config.max_model_len, config.page_size)
        self._runner = Runner(step, params, devices.caches(cache_spec, config), width, devices)
        sizes = (config.num_pages, config.page_size)
        limits = (config.max_num_seqs, config.max_num_batched_tokens)
        self.schedulers = [Scheduler(*sizes, *limits) for _ in range(devices.replicas)]
        self._warm = False
        self._next_index = 0
        self._texts: dict[int, TextStream] = {}

    @property
    def has_work(self) -> bool:
        return any(scheduler.has_work for scheduler in self.schedulers)

    def warm_up(
        self, buckets: list[Bucket] | None = None, on_compile: OnCompile | None = None
    ) -> None:
        """Compile the steps that will run. After it nothing is ever compiled.

        buckets: by default enough for the largest step of the config, with few padded rows. With
        fewer or smaller ones steps stay within them, in more chunks or with fewer requests.
        """
        config = self.config
        if buckets is None:
            buckets = all_buckets(config.max_num_batched_tokens, config.max_num_seqs)
        self._compile([Bucket(*bucket) for bucket in buckets], on_compile)
        self._warm = True

    def add_request(self, prompt: Prompt, params: SamplingParams = GREEDY) -> int:
        """Queue a request; returns its index, which counts up from 0.

        ValueError if the prompt is empty, is neither text nor integers, has an id out of the
        vocabulary, or leaves no room for a token in max_model_len (it is never cut), or if the
        cache is too small for it alone.
        """
        return self._add(f"prompt {self._next_index}", prompt, params)

    def _add(self, name: str, prompt: Prompt, params: SamplingParams) -> int:
        """As add_request; errors call the prompt by `name`."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"params of {name} must be SamplingParams, got {params!r}")
        token_ids = self._encode(name, prompt)
        wrong = [i for i in params.stop_token_ids if i >= self._vocab_size]
        if wrong:
            raise ValueError(
                f"stop_token_ids must be ids from 0 to {self._vocab_size - 1}, got {wrong[0]}"
            )
        if params.stop and self._tokenizer is None:
            raise ValueError(f"stop {params.stop!r} needs a tokenizer, and the engine has none")
        sequence = Sequence(
            index=self._next_index,
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            max_tokens=min(len(token_ids) + params.max_new_tokens, self.config.max_model_len),
            params=params,
            seed=_seed(params),
        )
        scheduler = min(self.schedulers, key=lambda each: each.num_tokens)
        try:
            scheduler.add(sequence)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        if self._tokenizer is not None:
            self._texts[sequence.index] = TextStream(self._tokenizer.stream(), params.stop)
        self._next_index += 1
        return sequence.index

    def abort(self, index: int) -> None:
        """Drop a request, whether it waits or runs. Unknown or finished ones are left alone."""
        for scheduler in self.schedulers:
            for sequence in [*scheduler.running, *scheduler.waiting]:
                if sequence.index == index:
                    scheduler.remove(sequence)
                    self._texts.pop(index, None)

    def step(self) -> list[Output]:
        """Run one step: an Output for each request that got a token. [] if there is no work.

        RuntimeError if warm_up has not been called. FloatingPointError if the model's logits are
        not finite: every request is dropped then.
        """
        start = time.perf_counter()
        chunks = [scheduler.schedule() for scheduler in self.schedulers]
        if not any(chunks):
            return []
        ids = self._runner.run(chunks)
        sampled = []
        for scheduler, of_one, new in zip(self.schedulers, chunks, ids, strict=True):
            scheduler.advance(of_one)
            pairs = zip(of_one, new, strict=True)
            sampled += [(scheduler, chunk.sequence, i) for chunk, i in pairs if chunk.samples]
        for _, sequence, token_id in sampled:
            if token_id < 0:
                self._fail(sequence)
        outputs = [self._accept(*each) for each in sampled]
        self.stats.record([chunk for one in chunks for chunk in one], time.perf_counter() - start)
        self.stats.preemptions = sum(each.num_preemptions for each in self.schedulers)
        return outputs

    def stream(
        self,
        prompts: list[Prompt],
        params: SamplingParams | list[SamplingParams] = GREEDY,
        on_compile: OnCompile | None = None,
    ) -> Iterator[Output]:
        """Generate for all prompts together, giving each token as it comes.

        An Output's index is the prompt's place in `prompts`. Unless warm_up has been called, what
        these prompts need is compiled first. Every prompt is checked before the first step; the
        errors are those of add_request, ValueError if `params` is a list of another length, and
        RuntimeError if other requests are under way. Closing the iterator drops what is unfinished.
        """
        if self.has_work:
            raise RuntimeError("stream and generate need an engine without other requests")
        each = _params_of_each(prompts, params)
        first = self._next_index
        try:
            for index, (prompt, prompt_params) in enumerate(zip(prompts, each, strict=True)):
                self._add(f"prompt {index}", prompt, prompt_params)
            if self.has_work and not self._warm:
                self._compile(self._needed_buckets(), on_compile)
            while self.has_work:
                for output in self.step():
                    yield replace(output, index=output.index - first)
        finally:
            for index in range(first, self._next_index):
                self.abort(index)

    def generate(
        self,
        prompts: list[Prompt],
        params: SamplingParams | list[SamplingParams] = GREEDY,
        on_compile: OnCompile | None = None,
    ) -> list[Completion]:
        """As `stream`, but all at once: a Completion for each prompt, in their order."""
        _params_of_each(prompts, params)
        token_ids: list[list[int]] = [[] for _ in prompts]
        texts: list[list[str]] = [[] for _ in prompts]
        reasons: list[str] = [""] * len(prompts)
        for output in self.stream(prompts, params, on_compile):
            token_ids[output.index].append(output.token_id)
            texts[output.index].append(output.text)
            reasons[output.index] = output.finish_reason or ""
        return [
            Completion(i, token_ids[i], "".join(texts[i]), reasons[i]) for i in range(len(prompts))
        ]

    def _encode(self, name: str, prompt: Prompt) -> list[int]:
        """The prompt's ids, checked; errors call the prompt by `name`."""
        if isinstance(prompt, bytes | bytearray) or not hasattr(prompt, "__len__"):
            raise ValueError(f"{name} must be text or a list of ids, got {prompt!r}")
        if len(prompt) == 0:
            raise ValueError(f"{name} is empty: it must have at least one character or id")
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise ValueError(f"{name} is text, and the engine has no tokenizer: give ids")
            prompt = self._tokenizer.encode(prompt)
        token_ids = [integer(f"each id of {name}", token_id) for token_id in prompt]
        wrong = [i for i in token_ids if not 0 <= i < self._vocab_size]
        if wrong:
            raise ValueError(
                f"{name} has the id {wrong[0]}: ids must be from 0 to {self._vocab_size - 1}"
            )
        room = self.config.max_model_len - 1
        if not 1 <= len(token_ids) <= room:
            raise ValueError(
                f"{name} has {len(token_ids)} tokens: it must have from 1 to {room}, so that with "
                f"one generated token it fits max_model_len {self.config.max_model_len}"
            )
        return token_ids

    def _needed_buckets(self) -> list[Bucket]:
        waiting = [sequence for each in self.schedulers for sequence in each.waiting]
        longest = sorted(sequence.max_tokens for sequence in waiting)[-self.config.max_num_seqs :]
        pages = sum(pages_for(length, self.config.page_size) for length in longest)
        return buckets_for(
            [len(sequence.token_ids) for sequence in waiting],
            self.config.max_num_batched_tokens,
            self.config.max_num_seqs,
            longest_recompute=longest[-1] if pages > self.config.num_pages else 0,
        )

    def _compile(self, buckets: list[Bucket], on_compile: OnCompile | None) -> None:
        missing = [bucket for bucket in buckets if bucket not in self._runner.buckets]
        for number, bucket in enumerate(missing):
            if on_compile is not None:
                on_compile(number, len(missing), bucket)
            self.stats.compile_seconds += self._runner.compile(bucket)
        # Steps must not outgrow what is compiled: they hold less of a prompt, or fewer requests.
        largest = max(buckets)
        for each in self.schedulers:
            each.max_num_batched_tokens = min(self.config.max_num_batched_tokens, largest.tokens)
            each.max_num_seqs = min(self.config.max_num_seqs, largest.seqs)

    def _fail(self, sequence: Sequence) -> None:
        """Drop everything and raise: what one NaN has reached in the cache is not known."""
        for scheduler in self.schedulers:
            for other in [*scheduler.running, *scheduler.waiting]:
                self.abort(other.index)
        raise FloatingPointError(
            f"the model's logits for request {sequence.index} at position "
            f"{len(sequence.token_ids)} are not finite"
        )

    def _accept(self, scheduler: Scheduler, sequence: Sequence, token_id: int) -> Output:
        """Add a sampled token to its sequence, and end the sequence where it ends."""
        sequence.token_ids.append(token_id)
        params, text = sequence.params, self._texts.get(sequence.index)
        is_end = token_id in params.stop_token_ids or (
            token_id in self._eos_token_ids and not params.ignore_eos
        )
        is_last = is_end or len(sequence.token_ids) >= sequence.max_tokens
        shown, stopped = "", is_end
        if text is not None:
            shown = "" if is_end else text.push(token_id)
            # What was held back may complete a stop string as it comes out.
            shown += text.flush() if is_last else ""
            stopped = is_end or text.stopped
        if is_last or stopped:
            sequence.finish_reason = "stop" if stopped else "length"
            scheduler.remove(sequence)
            self._texts.pop(sequence.index, None)
        return Output(sequence.index, token_id, shown, sequence.finish_reason)


def _seed(params: SamplingParams) -> int:
    """One that a greedy request does not use is 0, the same in all processes of a mesh."""
    if params.seed is not None:
        return params.seed
    return secrets.randbits(64) if params.temperature > 0 else 0


def _params_of_each(
    prompts: list[Prompt], params: SamplingParams | list[SamplingParams]
) -> list[SamplingParams]:
    """The params of each prompt. ValueError unless both are lists, or one SamplingParams is."""
    if not isinstance(prompts, list | tuple):
        raise ValueError(f"prompts must be a list of prompts, got {prompts!r}")
    if isinstance(params, SamplingParams):
        return [params] * len(prompts)
    if not isinstance(params, list | tuple):
        raise ValueError(f"params must be SamplingParams, or a list of them, got {params!r}")
    if len(params) != len(prompts):
        raise ValueError(
            f"params must have an entry for each of the {len(prompts)} prompts, got {len(params)}"
        )
    return list(params)
