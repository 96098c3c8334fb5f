"""Decoders of the Llama kind in Flax NNX, with loaders for safetensors and GGUF checkpoints."""

from models.config import Config
from models.load import Loaded, load
from models.smollm2 import fetch_smollm2
from models.tokenizer import Tokenizer

__all__ = ["Config", "Loaded", "Tokenizer", "fetch_smollm2", "load"]
