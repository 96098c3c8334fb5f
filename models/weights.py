"""From the tensors of a checkpoint to the flat parameters of a model, checked before anything is
read.

A format contributes a source (`shapes`, `read`) and its names; the model contributes which tensor
goes where (`llama_weights.py`). Everything wrong with a checkpoint is said in one ValueError.
"""

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
    else 0.
    """

    path: tuple
    shape: tuple[int, ...]
    part: tuple = ()
    interleaved: int = 0


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


def fill(table, state, source, dtype):
    """The state's leaves as arrays of `dtype`, in the order of `jax.tree.leaves(state)`.

    One parameter is put together at a time and handed to the device, so the host holds no second
    copy of the model.
    """
    by_path = {}
    for name, entry in table.items():
        by_path.setdefault(entry.path, []).append((name, entry))
    filled = []
    for path, leaf in nnx.to_flat_state(state):
        array = np.empty(leaf.shape, dtype)
        for name, entry in by_path[path]:
            tensor = source.read(name)
            if entry.interleaved:
                tensor = deinterleave(tensor, entry.interleaved)
            target = array[entry.part]
            target[...] = tensor.reshape(target.shape)
        filled.append((path, leaf.replace(jax.device_put(array))))
    return jax.tree.leaves(nnx.from_flat_state(filled))


def deinterleave(tensor, heads):
    """Rows of each head from (0, D/2, 1, D/2 + 1, ...) to (0, 1, 2, ...); a view when possible."""
    half = tensor.shape[0] // heads // 2
    rest = tensor.shape[1:]
    return tensor.reshape(heads, half, 2, *rest).swapaxes(1, 2).reshape(tensor.shape)
