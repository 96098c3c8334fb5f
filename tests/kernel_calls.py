"""Reads the kernel calls of a lowered program: protocol buffers of jaxlib's triton.proto."""

import zlib
from typing import NamedTuple


class KernelCall(NamedTuple):
    """`arguments` counts the kernel's pointers; `shared` is in bytes; `text` is the operation."""

    code: str
    name: str
    warps: int
    shared: int
    capability: int
    grid: tuple[int, int, int]
    arguments: int
    text: str


def read(call) -> KernelCall:
    """The kernel call in a custom call operation."""
    config = {attr.name: attr.attr for attr in call.attributes["mhlo.backend_config"]}
    [launch] = fields(zlib.decompress(config["opaque"].value_bytes))[1]
    launch = fields(launch)
    [kernel] = map(fields, launch[1])
    number = lambda message, field: message.get(field, [0])[0]  # noqa: E731
    return KernelCall(
        code=kernel[4][0].decode(),
        name=kernel[1][0].decode(),
        warps=number(kernel, 2),
        shared=number(kernel, 3),
        capability=number(kernel, 6),
        grid=tuple(number(launch, field) for field in (2, 3, 4)),
        arguments=len(launch[5]),
        text=str(call),
    )


def fields(message: bytes) -> dict[int, list]:
    """The numbers and byte strings of a protocol buffer by the number of their field."""
    found, at = {}, 0
    while at < len(message):
        key, at = _varint(message, at)
        value, at = _varint(message, at)
        if key & 7 == 2:  # a length and that many bytes
            value, at = message[at : at + value], at + value
        else:
            assert key & 7 == 0, f"wire type {key & 7}"
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(message, at):
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
