"""Tensors of a Hugging Face checkpoint directory: model.safetensors, or shards with an index."""

import json
from pathlib import Path

import safetensors

from models.wording import one_line, shown, some

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = ("F64", "F32", "F16", "BF16")


class SafetensorsSource:
    """shapes: name -> shape of every tensor in the directory. Only headers are read until
    `read`."""

    def __init__(self, folder):
        """Raises FileNotFoundError (a file is absent) or ValueError (broken, or of quantised
        weights)."""
        folder = Path(folder)
        self._files = [_open(path) for path in _paths(folder)]
        self._owner, self.shapes = {}, {}
        for file in self._files:
            for name in file.keys():  # noqa: SIM118 - safe_open is not a mapping
                tensor = file.get_slice(name)
                if tensor.get_dtype() not in DTYPES:
                    raise ValueError(
                        f"{folder}: {name} has dtype {tensor.get_dtype()}; {', '.join(DTYPES)} are "
                        "supported"
                    )
                self._owner[name] = file
                self.shapes[name] = tuple(tensor.get_shape())

    def read(self, name, index=()):
        """The tensor `name`, or the part `index` (slices) of it, as a NumPy array of its own dtype.
        No more than the part is read."""
        if not index:
            return self._owner[name].get_tensor(name)
        return self._owner[name].get_slice(name)[index]


def read_json(path):
    """The object in a JSON file. Raises FileNotFoundError or ValueError with the path."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {one_line(error)}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be read") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _paths(folder):
    """The files that make up the checkpoint, all of them present."""
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict):
            raise ValueError(f"{folder / INDEX} has no weight_map")
        for tensor, name in names.items():
            if not isinstance(name, str) or not name:
                raise ValueError(
                    f"{folder / INDEX}: weight_map puts {tensor} into {shown(name)}; it must be "
                    "the name of a file"
                )
        files = sorted(set(names.values()))
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(f"{folder} lacks {some(missing)}, named in {INDEX}")
        return [folder / name for name in files]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    raise FileNotFoundError(f"{folder} has neither {SINGLE} nor {INDEX}")


def _open(path):
    try:
        return safetensors.safe_open(path, framework="numpy")
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {one_line(error)}") from None
