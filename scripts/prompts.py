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
    elif prompts_file is not None:
        found, where = _from_file(prompts_file), prompts_file
    elif sys.stdin is None or sys.stdin.isatty():
        raise ValueError("no prompt: give --prompt TEXT, --prompts-file FILE, or text on stdin")
    else:
        found, where = [_decode(sys.stdin.buffer.read(), "stdin").removesuffix("\n")], "stdin"
    if not found:
        raise ValueError(f"{where} has no prompt in it")
    for index, prompt in enumerate(found):
        if not prompt:
            raise ValueError(f"prompt {index} (from {where}) is empty")
    return found


def _from_file(name: str) -> list[str]:
    """One prompt a line; in a .jsonl file each line is a string or an object with "prompt"."""
    lines = _decode(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes(), name)
    if not name.endswith(".jsonl"):
        return [line for line in lines.splitlines() if line]
    prompts = []
    for number, line in enumerate(lines.splitlines(), 1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}, line {number}: not JSON: {error.msg}") from error
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str):
            raise ValueError(f'{name}, line {number}: neither a string nor {{"prompt": string}}')
        prompts.append(prompt)
    return prompts


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text (byte {error.start})") from error
