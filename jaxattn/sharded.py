"""Attention on a mesh of devices: each computes its own heads and, of a dense batch, its sequences.

A compiled kernel is one opaque call, which XLA's partitioner cannot divide: it would gather the
operands on every device, and for a TPU it refuses. So the public operations, called on a mesh, run
themselves under ``shard_map`` with every axis of the mesh manual. Which axes split what:

* an axis of type Explicit splits what the types of the arrays say (``jax.typeof(q).sharding``);
* an axis of type Auto is told by its name: "data" splits the batch, "model" the heads;
  :func:`mesh_axes` names others;
* a Manual axis has been dealt with: the call is inside the user's own ``shard_map``.

What an axis does not divide evenly is whole on all its devices, and so is everything on axes with
no part in attention. Packed calls (varlen and paged) are split over heads only: their rows are in
one order that the lengths describe. To split their sequences, call them inside a ``shard_map`` over
that axis, with a batch and a cache of its own on each shard.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxattn.operands import PerHead, PerPair, bind, is_operand

__all__ = ["Arg", "Split", "attend", "mesh_axes", "run_split", "split_of"]

# Letters of axes, as in all docstrings, that may be split over a mesh.
SPLITS = {"B": "batch", "H": "heads", "K": "heads"}

_named = jax.make_user_context((("data",), ("model",)))  # in the keys of jit's caches


def mesh_axes(*, batch: str | tuple[str, ...] = (), heads: str | tuple[str, ...] = ()):
    """A context in which Auto axes of these names split the batch and the heads.

    Without it they are ``batch="data", heads="model"``. Explicit axes need no names.

    Raises:
      ValueError: a name is no text, or is given for both.
    """
    both = tuple((x,) if isinstance(x, str) else tuple(x) for x in (batch, heads))
    given = f"mesh_axes batch={batch!r}, heads={heads!r}"
    if not all(isinstance(name, str) for names in both for name in names):
        raise ValueError(f"{given}: must be names of mesh axes")
    if set(both[0]) & set(both[1]):
        raise ValueError(f"{given}: an axis can split only one of them")
    return _named(both)


class Arg(NamedTuple):
    """An argument of a call (an array, or a tree of arrays with the same leading axes), its name,
    and a letter for each axis: "BTHD". Axes past the letters are whole."""

    name: str
    value: Any
    letters: str


class Split(NamedTuple):
    """The mesh of a call, and its axes over which the batch and the heads are split."""

    mesh: jax.sharding.AbstractMesh
    batch: tuple[str, ...]
    heads: tuple[str, ...]

    def spec(self, letters) -> PartitionSpec:
        """The spec of an array with axes of these letters."""
        return PartitionSpec(
            *(getattr(self, SPLITS[x]) or None if x in SPLITS else None for x in letters)
        )


def split_of(args: tuple[Arg, ...], *, batch: int, kv_heads: int) -> Split | None:
    """How to split a call of ``args``; None off a mesh, and where all of it is manual.

    Raises:
      ValueError: an Explicit axis splits what must be whole, or no Auto axis has a known name.
    """
    mesh = _mesh(args)
    if mesh.empty or not _axes(mesh, AxisType.Explicit, AxisType.Auto):
        return None
    if mesh.size == 1 and not _axes(mesh, AxisType.Manual):
        return None  # in a shard_map over some axes kernels want the others manual, of any size
    axes = {"batch": (), "heads": ()}
    for arg in args:
        for letter, names in _explicit(arg).items():
            if letter not in SPLITS:
                raise ValueError(
                    f"{arg.name} [{', '.join(arg.letters)}] has axis {letter} sharded over "
                    f"{', '.join(names)}: on a mesh attention may be split over "
                    f"{'batch and heads' if 'B' in args[0].letters else 'heads'} only"
                )
            axes[SPLITS[letter]] = axes[SPLITS[letter]] or names
    auto = _axes(mesh, AxisType.Auto)
    _check_names(mesh, auto)
    for kind, names in zip(axes, _named.value, strict=True):
        axes[kind] += tuple(name for name in names if name in auto)
    for kind, size in (("batch", batch), ("heads", kv_heads)):
        if size % math.prod(mesh.shape[name] for name in axes[kind]):
            axes[kind] = ()
    return Split(mesh, axes["batch"] if "B" in args[0].letters else (), axes["heads"])


@functools.partial(jax.jit, static_argnums=(0, 1))
def run_split(local: Callable, split: Split, args: tuple):
    """``local(*args)`` with every device on its part of the arrays.

    ``local`` is hashable, so that equal calls are traced once, and has ``specs(split, args)``: the
    specs of the arguments and of the results, whose Explicit layout is that of the first array.
    """
    in_specs, out_specs = local.specs(split, args)
    layout = _spec(jax.tree.leaves(args)[0])
    placed = jax.tree.map(
        lambda spec, part: jax.tree.map(lambda x: _reshard(x, spec, split.mesh), part),
        in_specs,
        args,
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    out = jax.shard_map(
        local,
        mesh=split.mesh if jax.sharding.get_abstract_mesh().empty else None,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(_axes(split.mesh, AxisType.Explicit, AxisType.Auto)),
        check_vma=False,
    )(*placed)
    # Only the axes before the head dim: that of the results may be another.
    layout = PartitionSpec(*layout[:-1])
    return jax.tree.map(lambda x: _reshard(x, layout, split.mesh), out)


@dataclasses.dataclass(frozen=True)
class Attend:
    """A public operation on the part of one device. ``sizes`` and ``letters`` are of the whole
    call: what the axes of a bias or a dense mask can be, and what those of the arguments are."""

    op: Callable
    letters: tuple[str, ...]
    axes: str
    sizes: tuple[int, ...]
    static: tuple  # of pairs: the arguments that are no arrays
    interpreter: Any  # only so that a call is not taken for one of another interpreter

    def __call__(self, arrays, mask, scores, sinks):
        return self.op(*arrays, mask=mask, score=scores, sinks=sinks, **dict(self.static))

    def specs(self, split, args):
        _, mask, scores, _ = args
        out, arrays = split.spec(self.letters[0]), tuple(map(split.spec, self.letters))
        of = functools.partial(self._operands, split)
        lse = split.spec(self.letters[0][:-1])
        return_lse = dict(self.static)["return_lse"]
        return (arrays, of(mask), of(scores), split.spec("H")), (out, lse) if return_lse else out

    def _operands(self, split, tree):
        """A mask or scores with the spec of each array in its place."""
        return jax.tree.map(
            lambda x: dataclasses.replace(x, value=self._operand(split, x)),
            tree,
            is_leaf=is_operand,
        )

    def _operand(self, split, x):
        if isinstance(x, PerHead):
            return split.spec("H")
        if not isinstance(x, PerPair):
            return split.spec("B" if "B" in self.axes else "")
        # An axis of another size than the call's is broadcast, and whole.
        ends = zip(self.axes[::-1], self.sizes[::-1], x.value.shape[::-1], strict=False)
        return split.spec([axis if size == n else "" for axis, size, n in ends][::-1])


def attend(op, args: tuple[Arg, ...], options, layout, return_lse: bool, interpreter):
    """``op`` on its part of ``args`` on each device of a mesh; None where there is none.

    ``options`` are the checked ones of :mod:`jaxattn.attention`, ``layout`` the whole call's.
    """
    keys = jax.tree.leaves(args[1].value)[0]
    kv_heads = keys.shape[args[1].letters.index("K")]
    split = split_of(args, batch=layout.batch or 1, kv_heads=kv_heads)
    if split is None:
        return None
    operands = jax.tree.map(
        lambda x: dataclasses.replace(x, value=jnp.asarray(x.value)),
        (options.mask, options.scores),
        is_leaf=is_operand,
    )
    sinks = None if options.sinks is None else jnp.asarray(options.sinks)
    bind((operands, () if sinks is None else PerHead(sinks)), layout)  # for its errors
    sizes = (layout.heads, layout.queries, layout.keys or 0)
    static = {name: getattr(options, name) for name in ("scale", "implementation", "compiler")}
    local = Attend(
        op,
        tuple(arg.letters for arg in args),
        "HTS" if layout.batch is None else "BHTS",
        sizes if layout.batch is None else (layout.batch, *sizes),
        (*static.items(), ("tiles", options.tiles), ("return_lse", return_lse)),
        interpreter,
    )
    arrays = tuple(arg.value for arg in args)
    return run_split(local, split, (arrays, *operands, sinks))


def _mesh(args):
    """The mesh in force, else that on which an argument lies."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        leaves = (x for arg in args for x in jax.tree.leaves(arg.value))
        meshes = (jax.typeof(x).sharding.mesh for x in leaves)
        mesh = next((m for m in meshes if not m.empty), mesh)
    return mesh


def _axes(mesh, *types) -> tuple[str, ...]:
    """The mesh axes of these types."""
    named = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in named if kind in types)


def _spec(x) -> tuple:
    spec = tuple(jax.typeof(x).sharding.spec)
    return spec + (None,) * (x.ndim - len(spec))


def _names(entry) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _explicit(arg) -> dict[str, tuple[str, ...]]:
    """The axes of an argument that are split over Explicit mesh axes, and over which."""
    found = {}
    for x in jax.tree.leaves(arg.value):
        for letter, entry in zip(arg.letters, _spec(x), strict=False):
            if _names(entry):
                found[letter] = _names(entry)
    return found


def _check_names(mesh, auto):
    known = sorted({name for names in _named.value for name in names})
    if any(mesh.shape[name] > 1 for name in auto) and not set(known) & set(mesh.axis_names):
        raise ValueError(
            f"the mesh has the axes {', '.join(mesh.axis_names)}: none is {' or '.join(known)}; "
            "say with jaxattn.mesh_axes(batch=..., heads=...) what they split"
        )


def _reshard(x, spec, mesh):
    """``x`` laid out as ``spec`` on the Explicit axes; Auto ones are the compiler's."""
    explicit = _axes(mesh, AxisType.Explicit)
    if not explicit:
        return x
    kept = (tuple(name for name in _names(entry) if name in explicit) or None for entry in spec)
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*kept)))
