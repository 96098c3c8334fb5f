"""The text of a request: stop strings wherever token boundaries fall, characters kept whole."""

from hypothesis import given
from hypothesis import strategies as st
from toy_lm import Tokenizer

from jaxattn.engine.text import TextStream


class Pieces:
    """A detokenizer whose ids index pieces of text; the last comes out of flush."""

    def __init__(self, pieces, last=""):
        self._pieces, self._last = pieces, last

    def push(self, token_id):
        return self._pieces[token_id]

    def flush(self):
        return self._last


def run(pieces, stops, last=""):
    """(what was given out, in parts; whether it stopped)."""
    stream = TextStream(Pieces(pieces, last), stops)
    parts = []
    for token_id in range(len(pieces)):
        parts.append(stream.push(token_id))
        if stream.stopped:
            break
    return [*parts, stream.flush()], stream.stopped


def cut(pieces, stops, last=""):
    """The oracle: after each piece look at the whole text so far."""
    text = ""
    for piece in [*pieces, last]:
        text += piece
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], True
    return text, False


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.text("ab", max_size=4),
)
def test_any_stops_over_any_token_boundaries(pieces, stops, last):
    parts, stopped = run(pieces, tuple(stops), last)
    assert ("".join(parts), stopped) == cut(pieces, stops, last)


def test_only_what_may_begin_a_stop_is_held_back():
    parts, stopped = run(["one T", "H", "E two TH", "EN"], ("THEN",))
    assert parts == ["one ", "", "THE two ", "", ""]
    assert stopped
    parts, stopped = run(["one TH", "E"], ("THEN",))
    assert parts == ["one ", "", "THE"]
    assert not stopped


def test_without_stops_nothing_is_held_back():
    assert run(["a", "", "b"], ())[0] == ["a", "", "b", ""]


def test_half_a_character_never_leaves():
    stream = TextStream(Tokenizer().stream(), ())
    assert [stream.push(token_id) for token_id in Tokenizer().encode("a☃b")] == [
        "a", "", "", "☃", "b",
    ]  # fmt: skip
    stream.push(58)
    assert stream.flush() == "�"
