"""From the tensors of a checkpoint to the flat parameters of a model, checked before anything is
read.

A format contributes a source (`shapes`, `read`) and its names; the model contributes which tensor
goes where (`llama_weights.py`). Everything wrong with a checkpoint is said in one ValueError.
"""

import functools
from dataclasses import dataclass

import jax
import numpy as np
from flax import nnx

from models.wording import some


@dataclass(frozen=True)
class Entry:
    """One tensor of a checkpoint, of `shape` there.

    path: of the parameter in the model's state. part: the index of the parameter that it fills, ()
    for all of it; the tensor is reshaped to that part. interleaved: the number of heads in its rows
    when each head's rows are stored as (0, D/2, 1, D/2 + 1, ...) and have to be put back in order,
    else 0. copies: how often the parameter has each of the tensor's heads, one after the other.
    """

    path: tuple
    shape: tuple[int, ...]
    part: tuple = ()
    interleaved: int = 0
    copies: int = 1


def check(table, shapes, ignored, where):
    """Raise one ValueError about all missing, unexpected and mis-shaped tensors.

    table: name -> Entry. shapes: name -> shape in the file. ignored: whether an extra name is
    harmless.
    """
    missing = [name for name in table if name not in shapes]
    extra = [name for name in shapes if name not in table and not ignored(name)]
    wrong = [
        f"{name} is {list(shapes[name])}, not {list(entry.shape)}"
        for name, entry in table.items()
        if name in shapes and tuple(shapes[name]) != entry.shape
    ]
    kinds = {
        "missing": missing,
        "unexpected": extra,
        "of another shape than the config says": wrong,
    }
    found = [f"{len(names)} {kind} ({some(names)})" for kind, names in kinds.items() if names]
    if found:
        raise ValueError(f"{where}: weights do not fit the model: {'; '.join(found)}")


def fill(table, state, source, dtype, place=None):
    """The state's leaves as arrays of `dtype`, in the order of `jax.tree.leaves(state)`.

    place: from a path in the state to the sharding of its array, which may split one axis; None is
    the default device. One block is put together at a time and handed to its devices, so the host
    holds no second copy of the model; of a safetensors file it reads what its devices hold.
    """
    by_path = {}
    for name, entry in table.items():
        by_path.setdefault(entry.path, []).append((name, entry))
    filled = []
    for path, leaf in nnx.to_flat_state(state):
        block = functools.partial(_block, by_path[path], source, leaf.shape, dtype)
        if place is None:
            array = jax.device_put(block())
        else:
            # What several devices hold is read once.
            array = jax.make_array_from_callback(leaf.shape, place(path), functools.cache(block))
        filled.append((path, leaf.replace(array)))
    return jax.tree.leaves(nnx.from_flat_state(filled))


def _block(entries, source, shape, dtype, index=None):
    """The part `index` of a parameter of this shape: a slice for each axis, or None for all."""
    index = index or (slice(None),) * len(shape)
    ranges = [s.indices(n)[:2] for s, n in zip(index, shape, strict=True)]
    block = np.empty([high - low for low, high in ranges], dtype)
    for name, entry in entries:
        part = (*entry.part, *(slice(None),) * (len(shape) - len(entry.part)))
        kept = [axis for axis, i in enumerate(part) if isinstance(i, slice)]
        whole = np.broadcast_to(np.empty(()), shape)[part].shape
        cut = {i: ranges[axis] for i, axis in enumerate(kept) if ranges[axis] != (0, shape[axis])}
        target = block[part]
        target[...] = _read(source, name, entry, whole, cut).reshape(target.shape)
    return block


def _read(source, name, entry, whole, cut):
    """What a tensor gives to a block. `whole` is the shape of all that it fills, `cut` the range
    that is wanted of the one axis that is split, if any: axis -> (low, high)."""
    if not cut and entry.copies == 1:
        tensor = source.read(name)
        return deinterleave(tensor, entry.interleaved) if entry.interleaved else tensor
    [(axis, (low, high))] = cut.items() or [(0, (0, whole[0]))]
    if axis > 0:  # an axis of the tensor itself
        return source.read(name, (slice(None),) * axis + (slice(low, high),))
    # The first axis counts heads, or rows.
    heads = whole[0] // entry.copies
    first, last = low // entry.copies, -(-high // entry.copies)
    rows = entry.shape[0] // heads
    tensor = source.read(name, (slice(first * rows, last * rows),))
    if entry.interleaved:
        tensor = deinterleave(tensor, entry.interleaved * (last - first) // heads)
    if entry.copies == 1:
        return tensor
    tensor = tensor.reshape(last - first, rows, *tensor.shape[1:]).repeat(entry.copies, axis=0)
    return tensor[low - first * entry.copies : high - first * entry.copies]


def deinterleave(tensor, heads):
    """Rows of each head from (0, D/2, 1, D/2 + 1, ...) to (0, 1, 2, ...); a view when possible."""
    half = tensor.shape[0] // heads // 2
    rest = tensor.shape[1:]
    return tensor.reshape(heads, half, 2, *rest).swapaxes(1, 2).reshape(tensor.shape)
