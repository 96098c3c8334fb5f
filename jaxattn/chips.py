"""What tile sizes depend on in a GPU, and which GPU a program is being compiled for."""

import dataclasses

import jax

__all__ = ["GENERIC", "Chip", "chip", "named", "on_chip"]

KIB, MIB = 1024, 1024**2


@dataclasses.dataclass(frozen=True)
class Chip:
    """Facts of one GPU, from its maker's documents."""

    cores: int  # streaming multiprocessors or compute units
    shared: int  # bytes of shared memory that one program may take
    registers: int  # 32-bit registers of a core
    thread_registers: int  # the most that one thread may take
    warp: int  # threads of a warp
    buffers_less: int  # stages of a pipelined load that are held in registers, not shared memory
    cache: int  # bytes of the last cache before memory
    bandwidth: float  # bytes a second from memory


def _nvidia(cores, shared_kib, cache_mib, bandwidth):
    return Chip(cores, shared_kib * KIB, 65536, 255, 32, 0, cache_mib * MIB, bandwidth)


# Sources: NVIDIA's A100, H100 and Blackwell architecture papers and the compute-capability table of
# the CUDA programming guide; AMD's CDNA 3 paper and MI300X data sheet (a thread's registers are 256
# vector and 256 accumulation ones).
MI300X = Chip(304, 64 * KIB, 131072, 512, 64, 1, 256 * MIB, 5.3e12)
CHIPS = {  # by a word of JAX's device_kind
    "H200": _nvidia(132, 227, 50, 4.8e12),
    "H100": _nvidia(132, 227, 50, 3.35e12),
    "A100": _nvidia(108, 163, 40, 2.04e12),
    "B200": _nvidia(148, 227, 126, 8.0e12),
    "MI300X": MI300X,
    "gfx942": MI300X,
}
# The least of what NVIDIA's chips since Ampere have: what fits here fits all of them.
GENERIC = _nvidia(80, 99, 6, 1.0e12)

# In the keys of jit's caches: a program is traced again for another chip.
_override = jax.make_user_context(None)


def named(kind: str | None) -> Chip:
    """The facts of ``kind``, a ``device_kind`` of JAX ("NVIDIA H200"); GENERIC if unknown."""
    for word, facts in CHIPS.items():
        if word in (kind or ""):
            return facts
    return GENERIC


def on_chip(kind: str):
    """A context in which :func:`chip` is ``kind``, to lower for a GPU that is not there."""
    return _override(kind)


def chip() -> str | None:
    """The ``device_kind`` of the GPU that programs traced here are for; None if there is none.

    In this order: :func:`on_chip`, the abstract GPU of the mesh in force, JAX's default device.
    """
    if _override.value is not None:
        return _override.value
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    if abstract is not None and abstract.platform in ("gpu", "cuda", "rocm"):
        return abstract.device_kind
    if jax.default_backend() in ("gpu", "cuda", "rocm"):
        return jax.devices()[0].device_kind
    return None
