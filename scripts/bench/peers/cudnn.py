"""cuDNN's attention, as JAX calls it: jax.nn.dot_product_attention(implementation="cudnn")."""

import jax

from scripts.bench.arrays import contiguous
from scripts.bench.cases import Case
from scripts.bench.peers.presence import Unsuited, no_gpu
from scripts.bench.ways import JaxWay


def absent() -> str | None:
    return no_gpu()


def ways(case: Case) -> list[JaxWay]:
    self_attention(case)

    def call(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=case.causal, implementation="cudnn")

    return [JaxWay("cudnn", "", call, lambda arrays: contiguous(case, arrays))]


def self_attention(case: Case) -> None:
    """Raise Unsuited unless contiguous sequences of one length attend to themselves."""
    if case.uniform is None or case.q_lens != case.k_lens:
        raise Unsuited("it is compared on whole sequences of one length only")
    if case.window is not None:
        raise Unsuited("it is not compared on sliding windows")
