"""Whether a peer can be used here, and for a case."""

import importlib

import jax


class Unsuited(ValueError):
    """A case that an implementation has no function for; the message says why."""


def missing(*modules: str) -> str | None:
    """Why one of ``modules`` cannot be imported; None if all can."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a peer that is broken here must not end the run
            return f"{module} cannot be imported: {type(error).__name__}: {error}"
    return None


def no_gpu() -> str | None:
    backend = jax.default_backend()
    return None if backend == "gpu" else f"it needs a GPU, and JAX runs on: {backend}"


def no_torch_gpu() -> str | None:
    reason = no_gpu() or missing("torch")
    if reason:
        return reason
    import torch

    return None if torch.cuda.is_available() else "PyTorch finds no GPU"
