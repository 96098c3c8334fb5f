"""Metadata and tensors of a GGUF file, dequantised by the `gguf` package."""

from pathlib import Path

import gguf
import numpy as np

from models.fields import whole
from models.wording import one_line

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# What GGUFReader raises on files that are cut off or overwritten, depending on where.
BROKEN = (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, EOFError)


class GGUFFile:
    """meta: key -> Python value. shapes: name -> shape of every tensor, [out, in] for matrices."""

    def __init__(self, path):
        """Raises FileNotFoundError, or ValueError for a file that is not one whole GGUF, is a part
        of a split one, or holds a quantisation that the gguf package cannot undo."""
        self.path = Path(path)
        reader = _open(self.path)
        self.meta = {key: _contents(self.path, field) for key, field in reader.fields.items()}
        parts = whole(self.meta, "split.count", 0, minimum=0)
        if parts > 1:
            raise ValueError(
                f"{self.path} is one of {parts} parts; join them first with llama.cpp's "
                "`llama-gguf-split --merge`"
            )
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.shapes = {
            name: tuple(int(n) for n in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
        }
        _check_types(self.path, self._tensors)

    def read(self, name, index=()):
        """The tensor `name`, or the part `index` of it, as float32. All of it is dequantised."""
        tensor = self._tensors[name]
        return gguf.dequantize(tensor.data, tensor.tensor_type).reshape(self.shapes[name])[index]


class _Reader(gguf.GGUFReader):
    """The package's reader on a plain view of the mapped file: np.memmap costs two thirds of the
    time to read the metadata, three seconds for a vocabulary of 49152."""

    @property
    def data(self):
        return self._plain

    @data.setter
    def data(self, mapped):
        self._plain = mapped.view(np.ndarray)


def is_gguf(path):
    """Whether the file begins with the GGUF magic."""
    with open(path, "rb") as file:
        return file.read(4) == MAGIC


def _open(path):
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    if not is_gguf(path):
        raise ValueError(f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    _check_version(path)
    try:
        return _Reader(path)
    except BROKEN as error:
        raise ValueError(f"{path} is cut off or damaged: {one_line(error)}") from None


def _check_version(path):
    with open(path, "rb") as file:
        head = file.read(8)[4:]
    if len(head) < 4:
        raise ValueError(f"{path} is cut off or damaged: it ends before the GGUF version")
    version, swapped = (int.from_bytes(head, order) for order in ("little", "big"))
    if swapped in VERSIONS:
        raise ValueError(f"{path} is a big-endian GGUF file; only little-endian ones are supported")
    if version not in VERSIONS:
        raise ValueError(
            f"{path} has GGUF version {version}; {' and '.join(map(str, VERSIONS))} are supported"
        )


def _contents(path, field):
    try:
        return field.contents()
    except BROKEN as error:
        raise ValueError(f"{path} is damaged: metadata {field.name}: {one_line(error)}") from None


def _check_types(path, tensors):
    """Dequantise a row of each kind, so that a kind that cannot be is found before the long
    work."""
    for kind, tensor in {tensor.tensor_type: tensor for tensor in tensors.values()}.items():
        try:
            gguf.dequantize(np.atleast_2d(tensor.data)[:1], kind)
        except NotImplementedError:
            raise ValueError(
                f"{path}: {tensor.name} has type {kind.name}, which the gguf package cannot read"
            ) from None
