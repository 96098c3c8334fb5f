"""The options that programs with an engine share, and the engine they make."""

import argparse
import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scripts.console import say

DTYPES = ("float32", "bfloat16", "float16")
IMPLEMENTATIONS = ("mosaic", "triton", "xla", "reference")
# More sequences at once than this rarely help a laptop, and every one takes cache.
MOST_SEQS = 32
BATCHED_TOKENS = 512
# What the engine calls the values of flags. The last three are ordinary words: they are the value's
# name only where a message begins with them.
_PARAMETERS = (
    "max_new_tokens|top_k|top_p|min_p|max_num_seqs|max_num_batched_tokens|max_model_len|page_size"
    "|num_pages|memory_fraction"
)
_PARAMETER = re.compile(
    rf"(?<![\w/.-])({_PARAMETERS})(?![\w/.-])|^(temperature|seed|stop)(?= must)"
)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model",
        metavar="DIR|FILE.gguf|HF-ID",
        help="a folder with config.json and safetensors, a GGUF file, or a Hugging Face id; "
        "default: SmolLM2-135M-Instruct, downloaded once",
    )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of weights, activations and cache; default: float32 on a CPU, else bfloat16",
    )
    group.add_argument(
        "--implementation",
        choices=IMPLEMENTATIONS,
        help="of attention; default: what fits the platform",
    )


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--max-num-seqs",
        type=int,
        metavar="N",
        help=f"requests in a step; default: as many as there are, up to {MOST_SEQS}",
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="tokens in a step, at least --max-num-seqs; longer prompts run in chunks (default: "
        f"{BATCHED_TOKENS}, or --max-num-seqs if that is more)",
    )
    group.add_argument(
        "--max-model-len",
        type=int,
        metavar="N",
        help="tokens of a request, prompt and generated; default: what these requests need, at "
        "most the model's context",
    )
    group.add_argument(
        "--page-size",
        type=int,
        metavar="N",
        default=16,
        help="tokens in a cache page, a power of two up to 256 (default: %(default)s)",
    )
    pages = group.add_mutually_exclusive_group()
    pages.add_argument(
        "--num-pages",
        type=int,
        metavar="N",
        help="pages in the cache; default: enough for every request of a step at its longest, "
        "within half of the memory",
    )
    pages.add_argument(
        "--memory-fraction",
        type=float,
        metavar="F",
        help="let the cache take up to this fraction of the device's memory (on a CPU: of the "
        "machine's); it is never larger than every request of a step needs",
    )


@contextlib.contextmanager
def flags_named() -> Iterator[None]:
    """Make the ValueErrors of the engine name flags where they name its parameters."""
    try:
        yield
    except ValueError as error:
        message = _PARAMETER.sub(lambda name: f"--{name[0].replace('_', '-')}", str(error))
        raise ValueError(message) from error


def _batched_tokens(args: argparse.Namespace) -> int:
    if args.max_num_batched_tokens is not None:
        return args.max_num_batched_tokens
    return max(BATCHED_TOKENS, args.max_num_seqs or 1)


def check_engine_options(args: argparse.Namespace) -> None:
    """Raise ValueError for what can be refused before a model is loaded."""
    from jaxattn.engine import EngineConfig

    EngineConfig(
        max_model_len=2 if args.max_model_len is None else args.max_model_len,
        num_pages=1 if args.num_pages is None else args.num_pages,
        page_size=args.page_size,
        max_num_seqs=1 if args.max_num_seqs is None else args.max_num_seqs,
        max_num_batched_tokens=_batched_tokens(args),
    )
    if args.memory_fraction is not None and not 0 < args.memory_fraction <= 1:
        raise ValueError(
            f"memory_fraction must be above 0 and at most 1, got {args.memory_fraction}"
        )


def load_model(args: argparse.Namespace, mesh: Any = None) -> Any:
    """models.load with the options, after setting up JAX's compilation cache."""

    import models

    use_compilation_cache()
    backend = check_implementation(args.implementation)
    dtype = args.dtype or ("float32" if backend == "cpu" else "bfloat16")
    return models.load(args.model, dtype=dtype, implementation=args.implementation, mesh=mesh)


def check_implementation(implementation: str | None) -> str:
    """The platform JAX runs on. ValueError if the attention target does not run there."""
    backend = _backend()
    needed = {"mosaic": "tpu", "triton": "gpu"}.get(implementation, backend)
    if backend != needed:
        raise ValueError(
            f"--implementation {implementation} needs a {needed.upper()}, "
            f"and JAX runs on: {backend}"
        )
    return backend


def _backend() -> str:
    """The platform JAX runs on. ValueError if it cannot run on what JAX_PLATFORMS asks for."""
    import jax

    try:
        return jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # JAX 0.12 asserts where CUDA finds no GPU
        asked = os.environ.get("JAX_PLATFORMS")
        if not asked:
            raise
        why = str(error) or "it finds no device"
        raise ValueError(f"JAX_PLATFORMS is {asked!r}, and JAX cannot run on it: {why}") from error


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX has been told of another."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:
        folder = compilation_cache_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            say(f"compiled programs are not kept: {folder}: {error.strerror}")
            return
        if not os.access(folder, os.W_OK):
            say(f"compiled programs are not kept: {folder} cannot be written")
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def compilation_cache_folder() -> Path:
    from models.packaged import cache_folder

    return cache_folder() / "compiled"


def make_engine(
    args: argparse.Namespace,
    loaded: Any,
    max_model_len: int,
    num_seqs: int,
    mesh: Any = None,
    least: Callable[[int], int] = int,
) -> Any:
    """An Engine for `num_seqs` requests of up to `max_model_len` tokens each, on a mesh if there is
    one. `least` gives the least of what processes have that run it together."""
    from jaxattn.engine import Engine, EngineConfig
    from jaxattn.engine.memory import default_pages, pages_in_memory
    from jaxattn.engine.pages import pages_for

    replicas = 1 if mesh is None else mesh.shape["data"]
    num_seqs = -(-num_seqs // replicas)  # of one replica, to which all sizes apply
    max_num_seqs = args.max_num_seqs or min(num_seqs, MOST_SEQS, _batched_tokens(args))
    # More pages than these would never be used.
    wanted = min(max_num_seqs, num_seqs) * pages_for(max_model_len, args.page_size)
    each = dict(loaded.cache_spec)  # of one device
    if mesh is not None and each["num_kv_heads"] % mesh.shape["model"] == 0:
        each["num_kv_heads"] //= mesh.shape["model"]
    if args.memory_fraction is not None:
        fitting = pages_in_memory(each, args.page_size, args.memory_fraction)
        num_pages = min(fitting, wanted)
    elif args.num_pages is not None:
        num_pages = min(args.num_pages, wanted)
    else:
        num_pages = default_pages(each, args.page_size, wanted)
    config = EngineConfig(
        max_model_len=max_model_len,
        num_pages=least(num_pages),
        page_size=args.page_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=_batched_tokens(args),
    )
    return Engine(
        loaded.step,
        loaded.params,
        loaded.cache_spec,
        config,
        vocab_size=loaded.config.vocab_size,
        tokenizer=loaded.tokenizer,
        eos_token_ids=loaded.tokenizer.eos_token_ids,
        mesh=mesh,
    )
