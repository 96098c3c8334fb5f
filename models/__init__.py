"""Decoders of the Llama kind and vision towers in Flax NNX, with loaders for their checkpoints."""

from models.config import Config
from models.dinov2_small import fetch_dinov2_small
from models.load import Loaded, load
from models.smollm2 import fetch_smollm2
from models.tokenizer import Tokenizer
from models.vision_load import LoadedVision, load_vision

__all__ = [
    "Config",
    "Loaded",
    "LoadedVision",
    "Tokenizer",
    "fetch_dinov2_small",
    "fetch_smollm2",
    "load",
    "load_vision",
]
