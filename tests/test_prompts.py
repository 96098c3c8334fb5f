"""Where prompts come from: lines and JSON of files, stdin, and what is no prompt."""

import io
import re
import sys

import pytest

from scripts.prompts import check_text, read_prompts


@pytest.fixture
def file(tmp_path):
    """Writes bytes to a file and reads its prompts."""

    def read(content, name="prompts.txt"):
        path = tmp_path / name
        path.write_bytes(content)
        return read_prompts(None, str(path))

    return read


def test_a_line_ends_at_a_line_feed_only(file):
    inside = "a\u2028b\u0085c\fd\re\x1cf"
    content = f"\ufeff{inside}\nsecond\r\n\r\n\nlast".encode()
    assert file(content) == [inside, "second", "last"]
    line = f'"{inside}"'.replace("\f", "\\f").replace("\r", "\\r").replace("\x1c", "\\u001c")
    assert file(f'{line}\r\n\n{{"prompt": "b"}}\n'.encode(), "a.jsonl") == [inside, "b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5000, "not JSON: Exceeds the limit"),
        (b'{"prompt": "a", "system": "b"}', "unknown key 'system'"),
        (b'"\\ud800"', "is not UTF-8 text"),
        (b'{"prompt": ', "not JSON: Expecting value"),
        (b'{"text": "a"}', 'neither a string nor {"prompt": string}'),
        (b'{"prompt": 3}', "neither a string nor"),
    ],
)
def test_bad_json_is_named_by_its_line(file, line, message):
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 2:? {re.escape(message)}"):
        file(b'"fine"\n' + line, "a.jsonl")


@pytest.mark.parametrize("content", [b"", b"\n\r\n"])
def test_a_file_without_a_prompt(file, content):
    with pytest.raises(ValueError, match="has no prompt in it"):
        file(content)
    with pytest.raises(ValueError, match=r"prompt 1 \(from .*\) is empty"):
        file(b'"a"\n""', "a.jsonl")


def test_bytes_that_are_no_text(file):
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(byte 3\)"):
        file(b"caf\xe9")
    with pytest.raises(ValueError, match="--prompt 1 is not UTF-8 text"):
        read_prompts(["fine", "\udcff"], None)
    with pytest.raises(ValueError, match=r"--stop is not UTF-8 text \(character 2\)"):
        check_text("ab\udcff", "--stop")
    check_text("\U0001f600", "--stop")


def test_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfa\r\nb\n\n")))
    assert read_prompts(None, None) == ["a\nb\n"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\nb\n")))
    assert read_prompts(None, "-") == ["a", "b"]
    monkeypatch.setattr(sys, "stdin", None)  # as with <&-
    with pytest.raises(ValueError, match="stdin is closed"):
        read_prompts(None, "-")
    with pytest.raises(ValueError, match="no prompt: give"):
        read_prompts(None, None)


def test_an_empty_file_name():
    with pytest.raises(ValueError, match="--prompts-file is empty"):
        read_prompts(None, "")
