"""How errors quote values and the messages of others: short, and on one line."""

import reprlib

LISTED = 20  # names of one kind in an error; a wrong architecture has hundreds
_QUOTE = reprlib.Repr(
    maxlevel=4, maxdict=8, maxlist=8, maxtuple=8, maxset=8, maxstring=120, maxlong=60, maxother=120
)


def shown(value):
    """repr(value), abbreviated however long or deeply nested the value is."""
    return _QUOTE.repr(value)


def one_line(error):
    """The message of an exception on one line; its type's name when it has none."""
    parts = (part.strip() for part in str(error).splitlines())
    return "; ".join(part for part in parts if part) or type(error).__name__


def some(names):
    """The first LISTED of `names`, and how many more there are."""
    listed = ", ".join(names[:LISTED])
    return listed if len(names) <= LISTED else f"{listed} and {len(names) - LISTED} more"
