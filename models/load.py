"""`load`: one call from a name or path to everything that the engine needs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from models import catalog, config_gguf, config_hf, llama, llama_weights, sharding, weights
from models.config import Config
from models.gguf_file import GGUFFile
from models.safetensors_files import SafetensorsSource, read_json
from models.tokenizer import Tokenizer
from models.tokenizer_gguf import tokenizer_from_gguf
from models.tokenizer_hf import tokenizer_from_folder
from models.wording import one_line, shown

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model ready to run.

    step(params, batch, caches) -> (logits f32 [N, vocab], caches) is pure; jit it with caches
    donated.
    cache_spec: the arguments of one layer's PagedKV, and how many layers there are.
    """

    config: Config
    params: list
    step: Callable
    tokenizer: Tokenizer
    cache_spec: dict[str, Any]


def load(name_or_path=None, *, dtype="float32", implementation=None, mesh=None):
    """Read a GGUF file, a Hugging Face directory or a Hub id; None is SmolLM2-135M-Instruct.

    dtype: of weights, activations and cache, whatever the file stores. implementation: as in
    `jaxattn.paged_attention`. mesh: of `models.sharding.make_mesh`; params then lie on it, of a
    config that is `sharding.for_shards`, and each process reads what its devices hold.

    Raises FileNotFoundError, ConnectionError or ValueError, each with one line that says what is
    wrong; everything that can be known without reading the weights is checked before they are read.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {shown(dtype)} is not supported; one of {', '.join(DTYPES)} is")
    path = catalog.resolve(name_or_path)
    try:
        read = _read_folder if path.is_dir() else _read_gguf
        config, tokenizer, table, source = read(path, 1 if mesh is None else mesh.shape["model"])
    except ValueError as error:
        where = "" if str(path) in str(error) else f"{path}: "
        raise ValueError(where + one_line(error)) from None
    graphdef, state = llama.abstract(config, jnp.dtype(dtype), implementation)
    place = None if mesh is None else sharding.placer(config, mesh)
    return Loaded(
        config=config,
        params=weights.fill(table, state, source, jnp.dtype(dtype), place),
        step=llama.make_step(graphdef, state),
        tokenizer=tokenizer,
        cache_spec={
            "num_layers": config.num_layers,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "dtype": jnp.dtype(dtype),
        },
    )


def _read_gguf(path, shards):
    """(config, tokenizer, table, source) of a GGUF file; the weights fit but are not read."""
    file = GGUFFile(path)
    name = "rope_freqs.weight"
    divisors = file.read(name).ravel() if name in file.shapes else None
    config = config_gguf.from_gguf(file.meta, file.shapes, divisors)
    copies, config = sharding.kv_copies(config, shards), sharding.for_shards(config, shards)
    table = llama_weights.gguf_table(config, copies)
    weights.check(table, file.shapes, lambda extra: llama_weights.gguf_ignored(config, extra), path)
    return config, tokenizer_from_gguf(file.meta, config.eos_token_ids), table, file


def _read_folder(folder, shards):
    """(config, tokenizer, table, source) of a Hugging Face directory, or of the one GGUF in it."""
    if not (folder / "config.json").is_file():
        return _read_gguf(_only_gguf(folder), shards)
    generation = folder / "generation_config.json"
    config = config_hf.from_hf(
        read_json(folder / "config.json"), read_json(generation) if generation.is_file() else None
    )
    source = SafetensorsSource(folder)
    copies, config = sharding.kv_copies(config, shards), sharding.for_shards(config, shards)
    table = llama_weights.hf_table(config, copies)
    weights.check(
        table, source.shapes, lambda extra: llama_weights.hf_ignored(config, extra), folder
    )
    tokenizer = tokenizer_from_folder(folder, config.eos_token_ids)
    if not config.eos_token_ids:
        config = dataclasses.replace(config, eos_token_ids=tokenizer.eos_token_ids)
    return config, tokenizer, table, source


def _only_gguf(folder):
    found = sorted(Path(folder).glob("*.gguf"))
    if len(found) != 1:
        names = f"{len(found)} GGUF files" if found else "no GGUF file"
        raise FileNotFoundError(f"{folder} has no config.json and {names}; give one file's path")
    return found[0]
