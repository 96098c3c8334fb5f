"""The text of one request as it grows, up to a stop string."""

from typing import Protocol


class Detokenizer(Protocol):
    """Turns ids into text one by one: only whole characters leave it."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class TextStream:
    """Text from ids, cut before the first stop string wherever token boundaries fall.

    Text that may turn out to begin a stop string is held back until that is decided, so what has
    been given out is final.
    """

    def __init__(self, detokenizer: Detokenizer, stops: tuple[str, ...]):
        self._detokenizer = detokenizer
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """The new text that this id settles; sets `stopped` when a stop string is complete."""
        return self._settle(self._detokenizer.push(token_id))

    def flush(self) -> str:
        """The rest of the text, when no more ids will come."""
        if self.stopped:
            return ""
        settled = self._settle(self._detokenizer.flush())
        rest, self._held = self._held, ""
        return settled + rest

    def _settle(self, text: str) -> str:
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            settled, self._held, self.stopped = self._held[: min(found)], "", True
            return settled
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        settled, self._held = self._held[:cut], self._held[cut:]
        return settled


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without completing it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
