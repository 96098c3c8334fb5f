"""The float32 weights of an ONNX file, read without the `onnx` package.

Of a file's protobuf messages four fields are wanted: model 7 (graph), graph 1 (nodes) and 5
(weights), and in those the names and bytes below. Everything else is stepped over.
"""

import mmap

import numpy as np

GRAPH, NODES, WEIGHTS = 7, 1, 5
NODE_INPUT, NODE_NAME = 1, 3
TENSOR_DIMS, TENSOR_TYPE, TENSOR_NAME, TENSOR_BYTES = 1, 2, 8, 9
FLOAT = 1


class ONNXFile:
    """tensors: name -> f32 array (views of the mapped file); inputs: node name -> its inputs."""

    def __init__(self, path):
        """Raises ValueError for a file that is no ONNX model, or cut short."""
        self.tensors, self.inputs = {}, {}
        try:
            with open(path, "rb") as file:  # an empty one cannot be mapped: a ValueError
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            for field, graph in _fields(data):
                if field == GRAPH:
                    self._read(graph)
        except (IndexError, KeyError, TypeError, ValueError):
            raise ValueError(f"{path} is not a whole ONNX file") from None
        if not self.tensors:
            raise ValueError(f"{path} is not an ONNX file with weights")

    def _read(self, graph):
        for field, message in _fields(graph):
            if field == NODES:
                parts = list(_fields(message))
                names = [bytes(value).decode() for key, value in parts if key == NODE_NAME]
                inputs = [bytes(value).decode() for key, value in parts if key == NODE_INPUT]
                self.inputs |= dict.fromkeys(names, inputs)
            elif field == WEIGHTS:
                parts = list(_fields(message))
                known = dict(parts)
                if known.get(TENSOR_TYPE) == FLOAT and TENSOR_BYTES in known:
                    shape = [value for key, value in parts if key == TENSOR_DIMS]
                    array = np.frombuffer(known[TENSOR_BYTES], "<f4").reshape(shape)
                    self.tensors[bytes(known[TENSOR_NAME]).decode()] = array


def _fields(data):
    """(number, value) of a message's fields: ints, or memoryviews of bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            if at + size > len(data):
                raise ValueError("cut short")
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def _varint(data, at):
    """(the number whose seven-bit groups begin at `at`, where it ends)."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
