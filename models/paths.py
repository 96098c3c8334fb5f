"""Paths that a user wrote, in an argument or in the environment."""

from pathlib import Path


def expanded(text, where):
    """Path of `text` with its "~" or "~name" replaced by that user's home directory.

    where: what the error calls the text. Raises FileNotFoundError when there is no such user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:  # what pathlib raises for a user that the system does not know
        raise FileNotFoundError(
            f"{where} {str(text)!r} does not exist: there is no such user or home directory"
        ) from None
