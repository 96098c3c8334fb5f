"""The options that programs with an engine share, and the engine they make."""

import argparse
import os
from pathlib import Path
from typing import Any

from scripts.console import say

DTYPES = ("float32", "bfloat16", "float16")
IMPLEMENTATIONS = ("mosaic", "triton", "xla", "reference")
# More sequences at once than this rarely help a laptop, and every one takes cache.
MOST_SEQS = 32


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
        default=512,
        help="tokens in a step; longer prompts run in chunks (default: %(default)s)",
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
        help="size the cache as this fraction of the device's memory (on a CPU: of the machine's)",
    )


def check_engine_options(args: argparse.Namespace) -> None:
    """Raise ValueError for what can be refused before a model is loaded."""
    from jaxattn.engine import EngineConfig

    EngineConfig(
        max_model_len=2 if args.max_model_len is None else args.max_model_len,
        num_pages=1 if args.num_pages is None else args.num_pages,
        page_size=args.page_size,
        max_num_seqs=1 if args.max_num_seqs is None else args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
    )
    if args.memory_fraction is not None and not 0 < args.memory_fraction <= 1:
        raise ValueError(
            f"memory_fraction must be above 0 and at most 1, got {args.memory_fraction}"
        )


def load_model(args: argparse.Namespace) -> Any:
    """models.load with the options, after setting up JAX's compilation cache."""
    import jax

    import models

    use_compilation_cache()
    backend = jax.default_backend()
    needed = {"mosaic": "tpu", "triton": "gpu"}.get(args.implementation, backend)
    if backend != needed:
        raise ValueError(
            f"implementation {args.implementation} needs a {needed.upper()}, "
            f"and JAX runs on: {backend}"
        )
    dtype = args.dtype or ("float32" if backend == "cpu" else "bfloat16")
    return models.load(args.model, dtype=dtype, implementation=args.implementation)


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
    from models.smollm2 import cache_folder

    return cache_folder() / "compiled"


def make_engine(args: argparse.Namespace, loaded: Any, max_model_len: int, num_seqs: int) -> Any:
    """An Engine for `num_seqs` requests of up to `max_model_len` tokens each."""
    from jaxattn.engine import Engine, EngineConfig
    from jaxattn.engine.memory import default_pages, pages_in_memory
    from jaxattn.engine.pages import pages_for

    max_num_seqs = args.max_num_seqs or min(num_seqs, MOST_SEQS, args.max_num_batched_tokens)
    if args.memory_fraction is not None:
        num_pages = pages_in_memory(loaded.cache_spec, args.page_size, args.memory_fraction)
    elif args.num_pages is not None:
        num_pages = args.num_pages
    else:
        wanted = min(max_num_seqs, num_seqs) * pages_for(max_model_len, args.page_size)
        num_pages = default_pages(loaded.cache_spec, args.page_size, wanted)
    config = EngineConfig(
        max_model_len=max_model_len,
        num_pages=num_pages,
        page_size=args.page_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
    )
    return Engine(
        loaded.step,
        loaded.params,
        loaded.cache_spec,
        config,
        vocab_size=loaded.config.vocab_size,
        tokenizer=loaded.tokenizer,
        eos_token_ids=loaded.tokenizer.eos_token_ids,
    )
