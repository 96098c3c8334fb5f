"""The paged engine: continuous batching over a callable step. It never imports a model."""

from jaxattn.engine.config import EngineConfig
from jaxattn.engine.engine import Completion, Engine, Output
from jaxattn.engine.sequence import SamplingParams

__all__ = ["Completion", "Engine", "EngineConfig", "Output", "SamplingParams"]
