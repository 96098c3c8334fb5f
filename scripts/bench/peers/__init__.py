"""Other implementations of attention to compare with, one a file; none is a dependency.

Each module has `absent() -> str | None`, why it cannot be used here, and
`ways(case) -> list[JaxWay | TorchWay]`. `ways` raises Unsuited, with the reason, for a case that
the implementation has no function for; what it refuses only when called is an error in the results.
"""

from scripts.bench.peers import (
    cudnn,
    fa3,
    jax_mha,
    tokamax,
    torch_sdpa,
    vllm,
    xla,
)
from scripts.bench.peers.presence import Unsuited

__all__ = ["PEERS", "Unsuited"]

# Those of PyTorch come last: what they allocate is not given back to JAX.
PEERS = {
    "xla": xla,
    "cudnn": cudnn,
    "tokamax": tokamax,
    "fa3": fa3,
    "jax-mha": jax_mha,
    "torch-sdpa": torch_sdpa,
    "vllm": vllm,
}
