"""Values out of a configuration that somebody else wrote, checked as they are taken."""

import math


def whole(raw, key, default=None, *, minimum=1):
    """raw[key] as a whole number of at least `minimum`; `default` if it is absent or null."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{key} is {value!r}; it must be a whole number of at least {minimum}")
    return value


def positive(raw, key, default=None):
    """raw[key] as a finite float above 0; `default` if it is absent or null."""
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{key} is {value!r}; it must be a number above 0")
    return float(value)


def needed(raw, keys, where):
    """Raise one ValueError that names all of `keys` that `raw` does not have."""
    missing = [key for key in keys if raw.get(key) is None]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
