"""What the Markdown files say can be followed: links lead somewhere, flags exist, code runs."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import jaxattn

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "models/*.md", "tests/golden/*.md")
    for path in ROOT.glob(pattern)
)
MASKS = (ROOT / "docs" / "masks.md").read_text()
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def read(page: str) -> str:
    return (ROOT / page).read_text()


def prose(page: str) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", read(page))


def commands(page: str) -> list[str]:
    """The lines of the page's fenced blocks and its inline code, with continued lines joined."""
    blocks = "\n".join(body for language, body in FENCE.findall(read(page)) if language != "python")
    lines = blocks.replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0] for line in lines] + re.findall(r"`([^`\n]+)`", prose(page))


@functools.cache
def options(script: str) -> frozenset[str]:
    """The long flags that `python -m scripts.<script> --help` shows."""
    run = subprocess.run(
        [sys.executable, "-m", f"scripts.{script}", "--help"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, f"scripts.{script} --help failed: {run.stderr}"
    return frozenset(FLAG.findall(run.stdout))


def anchors(page: str) -> set[str]:
    """GitHub's anchors of the page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_lead_to_files_and_headings(page):
    for target in LINK.findall(prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / name if name else ROOT / page
        assert linked.exists(), f"{page} links to {target}, which does not exist"
        if anchor:
            other = linked.resolve().relative_to(ROOT).as_posix()
            assert anchor in anchors(other), f"{page} links to {target}: no such heading"


@pytest.mark.parametrize("page", PAGES)
def test_modules_and_their_flags_exist(page):
    for command in commands(page):
        called = re.search(r"-m scripts\.(\w+)(.*)", command)
        made = re.search(r"\bmake generate\b.*ARGS=[\"'](.*)[\"']", command)
        if called:
            script, rest = called.groups()
        elif made:
            script, rest = "generate", made.group(1)
        elif command.startswith("--"):
            script, rest = "generate", command
        else:
            continue
        unknown = set(FLAG.findall(rest)) - options(script)
        assert not unknown, (
            f"{page}: {command!r} uses {sorted(unknown)}, which scripts.{script} lacks"
        )


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.M))
    for command in commands(page):
        for name in re.findall(r"\bmake ([a-z]+)\b", command):
            assert name in targets, f"{page}: make {name} is no target of the Makefile"


@pytest.mark.parametrize("page", PAGES)
def test_files_named_in_code_exist(page):
    for name in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|md|toml|sh|yml|json))`", prose(page)):
        assert (ROOT / name).exists() or (ROOT / page).parent.joinpath(name).exists(), (
            f"{page} names {name}, which does not exist"
        )


PYTHON = [
    pytest.param(page, body, id=f"{page}-{number}")
    for page in PAGES
    for number, (language, body) in enumerate(FENCE.findall(read(page)))
    if language == "python"
]


@pytest.mark.parametrize(("page", "body"), PYTHON)
def test_python_blocks_run_on_cpu(page, body):
    exec(compile(body, page, "exec"), {"__name__": "page"})


def mask_names():
    """What the expressions on the masks page may use; `keep` is the boolean array it describes."""
    i, j = jnp.arange(6)[:, None], jnp.arange(6)[None]
    names = {name: getattr(jaxattn, name) for name in jaxattn.__all__}
    return names | {"array": jnp.asarray, "keep": (i + j) % 2 == 0}


def drawings():
    blocks = re.findall(r"^### `([^`\n]+)`\n(.*?)^```text\n(.*?)^```", MASKS, re.M | re.S)
    return [pytest.param(expression, drawn, id=expression) for expression, _, drawn in blocks]


@pytest.mark.parametrize(("expression", "drawn"), drawings())
def test_drawn_masks_are_what_attention_keeps(expression, drawn):
    # Equal logits and one-hot values: an output is positive exactly where its key is kept.
    q = k = jnp.zeros((1, 6, 1, 8))
    v = jnp.eye(6, 8)[None, :, None]
    mask = eval(expression, mask_names())
    out = jaxattn.attention(q, k, v, mask=mask, implementation="reference")
    kept = out[0, :, 0, :6] > 0
    assert drawn == "".join(" ".join("x" if k else "." for k in row) + "\n" for row in kept)


def spans():
    row = re.compile(r"^\| `(.+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.M)
    return [
        pytest.param(name, [int(n) for n in rest], id=name) for name, *rest in row.findall(MASKS)
    ]


@pytest.mark.parametrize(("expression", "interval"), spans())
def test_tabled_spans_are_what_the_masks_answer(expression, interval):
    mask = eval(expression, mask_names())
    assert [int(end) for end in mask.span(2, 4, None)] == interval


def test_every_public_mask_is_drawn():
    drawn = " ".join(block.values[0] for block in drawings())
    for name in ("Full", "Causal", "Window", "ChunkedLocal", "Ranges", "Segments", "Dense"):
        assert f"{name}(" in drawn
