"""jaxattn: attention written once in Pallas, for TPU, GPU and CPU."""

from jaxattn.attention import attention, merge_states, paged_attention, varlen_attention
from jaxattn.batch import Batch
from jaxattn.interpreting import interpret
from jaxattn.masks import Causal, ChunkedLocal, Dense, Full, Ranges, Segments, Window
from jaxattn.paging import PagedKV
from jaxattn.problem import Tiles
from jaxattn.scores import Alibi, Bias, Softcap
from jaxattn.sharded import mesh_axes

__all__ = [
    "Alibi",
    "Batch",
    "Bias",
    "Causal",
    "ChunkedLocal",
    "Dense",
    "Full",
    "PagedKV",
    "Ranges",
    "Segments",
    "Softcap",
    "Tiles",
    "Window",
    "attention",
    "interpret",
    "merge_states",
    "mesh_axes",
    "paged_attention",
    "varlen_attention",
]
