"""A plan as one JSON object: made by compiling, and read back for the page."""

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.planning import memory, roofline, steps
from scripts.planning.sizes import Sizes
from scripts.planning.topology import Topology

VERSION = 1
NEEDED = ("plan", "model", "topology", "engine", "split", "memory", "steps", "versions", "date")


def make(
    name: str,
    topology: Topology,
    sizes: Sizes,
    context: int | None,
    said: Callable[[str, float], None],
) -> dict[str, Any]:
    """The plan of the model called `name`. `said(step, seconds)` is called after each compilation.

    RuntimeError if libtpu is missing; ValueError for what the attention kernel refuses.
    """
    from models import sharding

    mesh = sharding.make_mesh(sizes.data, sizes.shards, topology.describe())
    compiler = steps.Compiler(sizes, mesh, sizes.dtype)
    weights = sizes.weight_bytes(compiler.params)
    hbm = topology.tpu.hbm
    compiled = _compile(compiler, memory.first_guess(sizes, hbm, weights), said)
    activations = max((one.temporary for one in compiled), default=0)
    space = memory.memory(sizes, hbm, weights, activations, sum(one.code for one in compiled))
    if context is None:
        context = max(1, min(sizes.max_model_len // 2, space.tokens // sizes.seqs))
    return {
        "plan": VERSION,
        "model": _model(name, sizes),
        "topology": {
            "name": topology.name,
            "devices": topology.devices,
            "data": sizes.data,
            "model_parallel": sizes.shards,
            "ici_bytes_per_second": topology.ici,
        },
        "engine": {
            "max_num_seqs": sizes.seqs * sizes.data,
            "max_model_len": sizes.max_model_len,
            "max_num_batched_tokens": sizes.batched_tokens,
            "page_size": sizes.page_size,
            "context": context,
        },
        "split": sorted(sharding.splits(sizes.config, sizes.shards)),
        "memory": dataclasses.asdict(space) | {"fits": bool(compiled) and space.fits},
        "steps": [_step(one, sizes, topology, context) for one in compiled],
        "versions": {p: importlib.metadata.version(p) for p in ("jax", "libtpu")},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def check(plan: Any) -> dict[str, Any]:
    """`plan` if it is one; ValueError if not."""
    if not isinstance(plan, dict) or any(key not in plan for key in NEEDED):
        raise ValueError("this is not the JSON of a plan")
    if plan["plan"] != VERSION:
        raise ValueError(f"the plan has version {plan['plan']!r}; this program reads {VERSION}")
    return plan


def _compile(compiler, pages: int, said) -> list[steps.Compiled]:
    """The compiled steps; none if they do not fit a device with even one page of cache.

    Where they do not fit with `pages`, there is less room beside them than was thought.
    """
    while pages >= 1:
        # All are lowered first: what attention refuses it refuses before minutes of compiling.
        lowered = {step: compiler.lower(step, pages) for step in steps.steps(compiler.sizes)}
        compiled = []
        try:
            for step, program in lowered.items():
                compiled.append(compiler.compile(step, program))
                said(step.name, compiled[-1].seconds)
            return compiled
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or "HbmOom" not in str(error):
                raise
            pages //= 2
    return []


def _model(name: str, sizes: Sizes) -> dict[str, Any]:
    path = Path(name)
    title = (path.parent if path.name == "config.json" else path).stem if path.exists() else name
    return {
        "name": title or name,
        "layers": sizes.config.num_layers,
        "dtype": sizes.dtype,
        "kv_heads_stored": sizes.config.num_kv_heads,
    }


def _step(one: steps.Compiled, sizes: Sizes, topology: Topology, context: int) -> dict[str, Any]:
    line = roofline.roofline(one, sizes, topology, context)
    return {
        **dataclasses.asdict(one.step),
        "compile_seconds": round(one.seconds, 1),
        "temporary_bytes": one.temporary,
        "code_bytes": one.code,
        "roofline": dataclasses.asdict(line)
        | {"hbm": line.hbm, "seconds": line.seconds, "bound": line.bound},
        "collectives": [dataclasses.asdict(each) | {"sent": each.sent} for each in one.collectives],
    }
