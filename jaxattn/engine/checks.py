"""Checks of what a caller gives: one ValueError that names the argument, its value and the rule."""

import numbers
import operator
from typing import Any

import numpy as np

INT32_MAX = 2**31 - 1


def integer(name: str, value: Any) -> int:
    """`value` as an int: Python's and NumPy's integers are, a bool and a float are not."""
    if not isinstance(value, bool | np.bool_):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise ValueError(f"{name} must be an integer, got {value!r}")


def number(name: str, value: Any) -> float:
    """`value` as a float: a real number, not a bool."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass
    raise ValueError(f"{name} must be a number that a float can hold, got {value!r}")


def entries(name: str, values: Any, kind: str) -> tuple:
    """`values` as a tuple. A string is refused: its letters would become the entries."""
    if isinstance(values, list | tuple):
        return tuple(values)
    raise ValueError(f"{name} must be a list or a tuple of {kind}, got {values!r}")
