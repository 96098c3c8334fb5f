"""Values out of a configuration that somebody else wrote, checked as they are taken.

Each function takes raw[key] and raises ValueError with the key, its value and the rule; a key that
is absent or null gives the default.
"""

import math

from models.wording import shown


def whole(raw, key, default=None, *, minimum=1):
    """raw[key] as a whole number of at least `minimum`."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(
            f"{key} is {shown(value)}; it must be a whole number of at least {minimum}"
        )
    return value


def positive(raw, key, default=None):
    """raw[key] as a finite float above 0."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{key} is {shown(value)}; it must be a number above 0")
    return float(value)


def flag(raw, key, default=False):
    """raw[key] as a bool; 0, "false" and the like are refused."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {shown(value)}; it must be true or false")
    return value


def text(raw, key, default=None):
    """raw[key] as a string."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{key} is {shown(value)}; it must be text")
    return value


def texts(raw, key):
    """raw[key] as a list of strings, [] by default."""
    return _items(raw, key, str, "a list of texts", "text")


def numbers(raw, key, kind=float):
    """raw[key] as a list of whole numbers (kind=int) or of numbers (kind=float), [] by default."""
    kinds, one = (int, "whole number") if kind is int else (int | float, "number")
    return _items(raw, key, kinds, f"a list of {one}s", f"a {one}")


def needed(raw, keys, where):
    """Raise one ValueError that names all of `keys` that `raw` does not have."""
    missing = [key for key in keys if raw.get(key) is None]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")


def _items(raw, key, kind, rule, rule_of_one):
    value = raw.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key} is {shown(value)}; it must be {rule}")
    for i, item in enumerate(value):
        if not isinstance(item, kind) or isinstance(item, bool):
            raise ValueError(f"{key}[{i}] is {shown(item)}; it must be {rule_of_one}")
    return value
