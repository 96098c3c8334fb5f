"""Where prompts come from: flags, a file, or stdin."""

import json
import sys
from pathlib import Path


def read_prompts(prompts: list[str] | None, prompts_file: str | None) -> list[str]:
    """The prompts of --prompt, or of --prompts-file, or else stdin as one prompt.

    ValueError if there is none, if one is empty, or if the input is not UTF-8; OSError if the file
    cannot be read.
    """
    if prompts is not None:
        found, where = prompts, "--prompt"
        for index, prompt in enumerate(prompts):
            check_text(prompt, f"--prompt {index}")
    elif prompts_file is not None:
        found, where = _from_file(prompts_file), prompts_file
    elif sys.stdin is None or sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt TEXT, --prompts-file FILE, or text on stdin")
    else:
        found, where = [_decode(_stdin(), "stdin").removesuffix("\n")], "stdin"
    if not found:
        raise ValueError(f"{where} has no prompt in it")
    for index, prompt in enumerate(found):
        if not prompt:
            raise ValueError(f"prompt {index} (from {where}) is empty")
    return found


def check_text(text: str, where: str) -> None:
    """ValueError unless `text` can be written as UTF-8.

    Bytes of an argument that are not UTF-8, and half a pair like "\\ud800" in JSON, come as
    surrogates.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} is not UTF-8 text (character {error.start})") from error


def _from_file(name: str) -> list[str]:
    """One prompt a line; in a .jsonl file each line is a string or an object with "prompt".

    Lines end at a line feed and nowhere else: a prompt may hold every other line separator.
    """
    if not name:
        raise ValueError("--prompts-file is empty: give a file, or - for stdin")
    text = _decode(_stdin() if name == "-" else Path(name).read_bytes(), name)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip("\r")]
    if not name.endswith(".jsonl"):
        return [line for _, line in lines]
    return [_from_json(line, f"{name}, line {number}") for number, line in lines if line.strip()]


def _from_json(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise ValueError(f"{where}: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {getattr(error, 'msg', error)}") from error
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str):
        raise ValueError(f'{where}: neither a string nor {{"prompt": string}}')
    if isinstance(value, dict) and (unknown := [key for key in value if key != "prompt"]):
        raise ValueError(f'{where}: unknown key {unknown[0]!r}: an object has "prompt" only')
    check_text(prompt, where)
    return prompt


def _stdin() -> bytes:
    if sys.stdin is None:
        raise ValueError("stdin is closed, so there is no prompt in it")
    return sys.stdin.buffer.read()


def _decode(data: bytes, where: str) -> str:
    """Text of UTF-8 bytes, without a byte order mark and with \\n for the line ends of Windows."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text (byte {error.start})") from error
