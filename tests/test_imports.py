"""Imports point one way, the online softmax is in one file, and each compiler's dialect in one."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A module may import those of the layers below its own. docs/architecture.md draws the arrows.
LAYERS = [
    {"chips", "integers"},
    {"batch", "interpreting", "operands", "refusal", "schedule", "tile"},
    {"sharded"},
    {"masks", "paging", "parts", "scores"},
    {"kernel", "problem", "reference"},
    {"checks", "tuning"},
    {"mosaic", "triton", "xla"},
    {"attention"},
    {"__init__"},
]
LAYER_OF = {name: level for level, layer in enumerate(LAYERS) for name in layer}
KERNELS = sorted((ROOT / "jaxattn").glob("*.py"))
ENGINE = sorted((ROOT / "jaxattn" / "engine").glob("*.py"))
MODELS = sorted((ROOT / "models").glob("*.py"))
PACKAGES = {"jaxattn", "models", "scripts"}


def imports(path: Path) -> set[str]:
    """The dotted names of everything that `path` imports, `from a import b` as `a.b`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path) -> set[str]:
    """The first two parts of what `path` imports from this repository: `jaxattn.tile`."""
    dotted = (name.split(".") for name in imports(path))
    return {".".join(parts[:2]) for parts in dotted if parts[0] in PACKAGES}


def module_of(name: str) -> str:
    """The layer entry for `jaxattn.<name>`: a file `mosaic_tables.py` counts as `mosaic`."""
    return name if name in LAYER_OF else name.partition("_")[0]


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernel_modules_import_only_what_is_below_them(path):
    own = module_of(path.stem)
    assert own in LAYER_OF, f"jaxattn/{path.name} is new: give it a layer in this test"
    for name in ours(path):
        package, _, module = name.partition(".")
        assert package == "jaxattn", f"{path.name} imports {name}"
        below = module_of(module)
        # `from jaxattn.masks import ...` names a module; a part of the same target may be imported.
        assert below in LAYER_OF, f"{path.name} imports {name}, which has no layer"
        assert below == own or LAYER_OF[below] < LAYER_OF[own], f"{path.name} imports {name}"


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: path.stem)
def test_the_engine_knows_neither_models_nor_targets(path):
    assert ours(path) <= {"jaxattn.engine", "jaxattn.batch", "jaxattn.paging"}


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_models_use_the_public_functions_only(path):
    public = re.findall(r'^    "(\w+)",$', (ROOT / "jaxattn" / "__init__.py").read_text(), re.M)
    assert len(public) > 10
    for name in ours(path):
        package, _, module = name.partition(".")
        assert package == "models" or (package == "jaxattn" and module in public), name


def test_the_scheduler_has_no_arrays():
    for name in ("pages", "scheduler", "sequence"):
        modules = {m.partition(".")[0] for m in imports(ROOT / "jaxattn" / "engine" / f"{name}.py")}
        assert not modules & {"jax", "numpy", "flax"}, name


def test_the_online_softmax_is_in_one_file():
    holders = [path.name for path in KERNELS if re.search(r"\bexp2\(", path.read_text())]
    assert holders == ["tile.py"]


@pytest.mark.parametrize("dialect", ["tpu", "triton"])
def test_each_dialect_is_known_to_one_target(dialect):
    target = {"tpu": "mosaic", "triton": "triton"}[dialect]
    pallas = f"jax.experimental.pallas.{dialect}"
    holders = {
        module_of(path.stem)
        for path in KERNELS
        if any(f"{name}.".startswith(f"{pallas}.") for name in imports(path))
    }
    assert holders == {target}
