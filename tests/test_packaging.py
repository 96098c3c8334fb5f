"""The wheel holds what it should, asks for what the code imports, and works elsewhere."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("jaxattn", "models", "scripts")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Programs of peers run under an interpreter of their own and import nothing of ours.
PEERS = "scripts/peer_"
# Benchmarks compare with these where they are installed; nobody needs them.
COMPARED = {"flash_attn3_jax", "tokamax", "torch"}
COMPARING = ("scripts/bench/peers/", "scripts/timing.py")
# Names that a dependency brings along: `import jaxlib` is covered by depending on jax.
BROUGHT_ALONG = {"jaxlib": "jax"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built without network or isolation."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (built,) = out.glob("*.whl")
    return built


def sources(suffix: str) -> set[str]:
    """Paths, relative to the checkout, of the packages' files that end in `suffix`."""
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*" + suffix)
        if "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_three_packages_and_their_data_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    held = {name for name in names if ".dist-info/" not in name}
    assert held == sources(".py") | sources(".json")
    assert {f"{package}/__init__.py" for package in PACKAGES} <= held


def test_the_wheel_states_licence_python_and_extras(wheel):
    archive = zipfile.ZipFile(wheel)
    (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    text = archive.read(about).decode()
    assert "\nLicense-Expression: Apache-2.0\n" in text
    assert "\nRequires-Python: >=3.12\n" in text
    extras = set(re.findall(r"^Provides-Extra: (\S+)$", text, re.M))
    assert extras >= {"gpu", "tpu", "serve", "dev"}
    assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())


def test_the_unpacked_wheel_generates_outside_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()
    code = (
        "import jaxattn, models, scripts as s; print(jaxattn.__file__, models.__file__, s.__file__)"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "JAX_PLATFORMS": "cpu"}
    for arguments in (["-c", code], ["-m", "scripts.generate", "--help"]):
        run = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path / "elsewhere",
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        if "-c" in arguments:
            assert all(path.startswith(str(tmp_path / "site")) for path in run.stdout.split())
        else:
            assert "--max-new-tokens" in run.stdout


def distribution(requirement: str) -> str:
    """`jax[cuda13]>=0.11; sys_platform == 'linux'` -> `jax`."""
    return re.match(r"[A-Za-z0-9._-]+", requirement).group().lower().replace("_", "-")


def own_files() -> list[str]:
    """The package files that run under the interpreter which jaxattn is installed into."""
    return sorted(name for name in sources(".py") if not name.startswith(PEERS))


def imported() -> dict[str, set[str]]:
    """Top-level third-party module -> the files of ours that import it, also inside functions."""
    found: dict[str, set[str]] = {}
    for name in own_files():
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            else:
                continue
            for module in {module.partition(".")[0] for module in modules}:
                if module not in sys.stdlib_module_names and module not in PACKAGES:
                    found.setdefault(module, set()).add(name)
    return found


def test_every_import_is_a_declared_dependency_and_every_dependency_is_imported():
    always = {distribution(line) for line in PROJECT["dependencies"]}
    optional = {
        distribution(line)
        for extra, lines in PROJECT["optional-dependencies"].items()
        if extra != "dev"
        for line in lines
    }
    owners = metadata.packages_distributions()
    used = set()
    for module, files in imported().items():
        if module in COMPARED and all(name.startswith(COMPARING) for name in files):
            continue
        module = BROUGHT_ALONG.get(module, module)
        names = {distribution(name) for name in owners.get(module, [module])}
        declared = names & (always | optional)
        assert declared, f"{module}, imported by {sorted(files)}, is not declared in pyproject.toml"
        used |= declared
    assert always <= used, f"declared but never imported: {sorted(always - used)}"


def test_everything_imports_with_the_runtime_dependencies_alone():
    names = [name.removesuffix(".py").replace("/", ".") for name in own_files()]
    names = [name.removesuffix(".__init__") for name in names]
    absent = ["hypothesis", "jax_triton", "libtpu", "matplotlib", "pytest", "transformers"]
    absent += ["triton", *sorted(COMPARED)]
    code = (
        f"import importlib, sys; sys.modules.update(dict.fromkeys({absent}))\n"
        f"for name in {names}: importlib.import_module(name)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def test_no_tracked_file_is_over_one_megabyte():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert paths
    assert not [str(path) for path in paths if path.is_file() and path.stat().st_size > 1_000_000]
