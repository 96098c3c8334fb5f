"""The Makefile and the search for Python, run against stand-ins that show what reaches them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FIND_PYTHON = ROOT / "tools" / "find_python.sh"
# What a pyenv shim does for a version that is installed but not activated.
DEAD_SHIM = '#!/bin/sh\necho "pyenv: $0: command not found" >&2\nexit 127\n'
# Stands for a venv's python: answers the Makefile's health check, else prints its arguments.
RECORDER = '#!/bin/sh\n[ "$1" = -c ] && exit 0\nfor a; do printf "<%s>" "$a"; done\n'

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def executable(path: Path, text: str) -> Path:
    """Write `text` to `path` as an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def stand_in(path: Path, probe_patch: str = "") -> Path:
    """An interpreter: this test's own, with `probe_patch` run before the code it is given."""
    return executable(path, f'#!/bin/sh\nexec "{sys.executable}" -c "{probe_patch}\n$2"\n')


def find_python(*arguments: str, path: Path | str, home: Path, **environment: str):
    """Run the search with nothing on PATH but `path` and the system's tools, python excluded."""
    tools = home / "tools"
    tools.mkdir(exist_ok=True)
    for tool in ("sh", "head", "env"):
        link = tools / tool
        if not link.exists():
            link.symlink_to(shutil.which(tool))
    return subprocess.run(
        ["/bin/sh", FIND_PYTHON, *arguments],
        env={"PATH": f"{path}:{tools}", "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["python3.12", "python3.13", "python3.14", "python3", "python"])
def test_finds_a_working_name_on_path(tmp_path, name):
    stand_in(tmp_path / "bin" / name)
    found = find_python(path=tmp_path / "bin", home=tmp_path)
    assert (found.returncode, found.stdout) == (0, sys.executable + "\n")


def test_a_dead_shim_is_passed_over_for_the_next_name(tmp_path):
    executable(tmp_path / "bin" / "python3.12", DEAD_SHIM)
    stand_in(tmp_path / "bin" / "python3.13")
    found = find_python(path=tmp_path / "bin", home=tmp_path)
    assert (found.returncode, found.stdout) == (0, sys.executable + "\n")


@pytest.mark.parametrize("where", ["PYENV_ROOT", "HOME", "shim"])
def test_finds_the_version_that_pyenv_hides(tmp_path, where):
    root = tmp_path / (".pyenv" if where == "HOME" else "pyenv")
    executable(root / "shims" / "python3.12", DEAD_SHIM)
    executable(tmp_path / "system" / "python3", DEAD_SHIM)
    stand_in(root / "versions" / "3.12.1" / "bin" / "python")
    environment = {"PYENV_ROOT": str(root)} if where == "PYENV_ROOT" else {}
    path = f"{tmp_path / 'system'}:{root / 'shims'}" if where == "shim" else tmp_path / "system"
    found = find_python(path=path, home=tmp_path, **environment)
    assert (found.returncode, found.stdout) == (0, sys.executable + "\n")


def test_finding_nothing_is_one_clear_line(tmp_path):
    executable(tmp_path / "bin" / "python3", DEAD_SHIM)
    found = find_python(path=tmp_path / "bin", home=tmp_path)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("error: no Python 3.12 or newer found")
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (
            "import sys; sys.version_info = (3, 11, 9)",
            "is Python 3.11, but 3.12 or newer is needed",
        ),
        ("import sys; sys.modules['venv'] = None", "has no venv module"),
        ("import sys; sys.modules['ensurepip'] = None", "has no ensurepip module"),
        ("import sys; sys.implementation.name = 'pypy'", "is pypy, but CPython is needed"),
    ],
)
def test_a_named_python_that_cannot_serve_says_why(tmp_path, patch, reason):
    stand_in(tmp_path / "other" / "python", patch)
    stand_in(tmp_path / "bin" / "python3")
    named = str(tmp_path / "other" / "python")
    found = find_python(named, path=tmp_path / "bin", home=tmp_path)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith(f"error: PYTHON={named} cannot be used: {reason}")
    assert found.stderr.count("\n") == 1


def test_a_new_python_without_venv_is_named_when_nothing_better_is_there(tmp_path):
    stand_in(tmp_path / "bin" / "python3.12", "import sys; sys.modules['venv'] = None")
    found = find_python(path=tmp_path / "bin", home=tmp_path)
    assert found.stderr.startswith("error: python3.12 has no venv module")


@pytest.fixture
def made(tmp_path):
    """A venv that make takes for installed, whose python prints its arguments."""
    venv = tmp_path / "venv"
    executable(venv / "bin" / "python", RECORDER)
    for stamp in (".created", ".installed-none", ".installed-dev"):
        (venv / stamp).touch()
    return venv


def make(*arguments: str, **environment: str):
    """Run make in the checkout, without the variables of a make that may be running this test."""
    inherited = {
        k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PROMPT"))
    }
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    "prompt",
    [
        "plain",
        """It's "$5", $HOME, $(HOME), ${HOME}, $$, `id`, $(id), 100%, a\\b; # & * | < >""",
        "$(",
        "--help",
        "",
        "two\nlines",
        "é 你好 🙂",
    ],
)
def test_generate_hands_the_prompt_over_untouched(made, prompt):
    for run in (
        make(f"VENV={made}", "generate", f"PROMPT={prompt}"),
        make(f"VENV={made}", "generate", PROMPT=prompt),
    ):
        assert run.stderr == ""
        assert run.stdout == f"<-m><scripts.generate><--chat><--prompt={prompt}>"


def test_generate_passes_more_flags_as_the_shell_splits_them(made):
    run = make(f"VENV={made}", "generate", "PROMPT=p", "ARGS=--seed 1 --stop 'a b'")
    assert run.stdout.endswith("<--prompt=p><--seed><1><--stop><a b>")


def test_test_runs_pytest_in_parallel(made):
    run = make(f"VENV={made}", "test", "TESTS=tests/test_make.py")
    assert run.stdout == "<-m><pytest><-n><2><--dist><worksteal><tests/test_make.py>"


def test_a_broken_venv_is_one_clear_line(made):
    executable(made / "bin" / "python", DEAD_SHIM)
    run = make(f"VENV={made}", "generate")
    assert run.returncode != 0
    assert run.stdout == ""
    assert run.stderr.splitlines()[0] == (
        f"error: {made}/bin/python does not run; 'make clean' and try again"
    )


def test_help_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    targets = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    run = make("help")
    assert run.returncode == 0
    for target in targets:
        assert f"make {target} " in run.stdout
