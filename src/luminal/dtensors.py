"""Placements as PyTorch has them: of DTensors, and in the plans of ``parallelize_module``, read as what ``shard`` says.

PyTorch is not imported: what is given is known by the names of its classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from luminal.core.errors import InputError

# By the style and the class of a module, along which axis each of its parameters is split; None: not at all.
_STYLES: Mapping[tuple[str, str], Mapping[str, int | None]] = {
    ("ColwiseParallel", "Linear"): {"weight": 0, "bias": 0},
    ("ColwiseParallel", "Embedding"): {"weight": 1},
    ("RowwiseParallel", "Linear"): {"weight": 1, "bias": None},
    ("RowwiseParallel", "Embedding"): {"weight": 0},
}
_WHOLE = ("SequenceParallel",)  # parameters are whole on each rank
# They say how activations lie, which is chosen by cost.
_ACTIVATIONS = ("PrepareModuleInput", "PrepareModuleOutput", "PrepareModuleInputOutput")
_KNOWN = (*dict.fromkeys(style for style, _ in _STYLES), *_WHOLE, *_ACTIVATIONS)


class Placed(dict[str, Any]):
    """Placements by the names of a module's parameters. A graph has one name for parameters that are equal."""


def mesh(given: Any) -> Any:
    """A ``DeviceMesh`` as the axes of a mesh with their sizes; anything else as it is. Raises InputError where its axes
    have no names."""
    if not _is_a(given, "DeviceMesh"):
        return given
    if not given.mesh_dim_names:
        raise InputError("mesh: expected a DeviceMesh whose axes have names (mesh_dim_names), found one without")
    return dict(zip(given.mesh_dim_names, map(int, given.mesh.shape), strict=True))


def shard(given: Any, mesh: Mapping[str, int], model: Any) -> Any:
    """``given`` with what PyTorch says of placements as ``luminal.meshes.parse_shard`` takes it: a plan of
    ``parallelize_module`` for ``model``, or for an axis of the mesh such a plan; or by name a DTensor, or a placement
    for each axis of the mesh. Raises InputError for what is none, or is not supported."""
    if _is_style(given):
        return _planned({"": given}, _only(mesh), model)
    if not isinstance(given, Mapping) or not given:
        return given
    if all(_is_style(style) for style in given.values()):
        return _planned(given, _only(mesh), model)
    if given.keys() <= mesh.keys() and all(_is_plan(plan) for plan in given.values()):
        found = Placed()
        for axis, plan in given.items():
            plan = {"": plan} if _is_style(plan) else plan
            for name, axes in _planned(plan, axis, model).items():
                found.setdefault(name, {}).update(axes)
        return found
    kind = Placed if any(_is_a(value, "DTensor") for value in given.values()) else dict
    return kind({name: _placed(name, value, mesh) for name, value in given.items()})


def _placed(name: str, given: Any, mesh: Mapping[str, int]) -> Any:
    """What DTensors and placements say, by the axis of the mesh; anything else as it is."""
    axes = list(mesh)
    if _is_a(given, "DTensor"):
        sizes = tuple(map(int, given.device_mesh.mesh.shape))
        named = given.device_mesh.mesh_dim_names
        wanted = dict(zip(named, sizes, strict=True)) if named else None
        if sizes != tuple(mesh.values()) if wanted is None else wanted != dict(mesh):
            raise InputError(f"shard: {name!r} lies on a mesh {wanted or list(sizes)}, expected {dict(mesh)}")
        axes, given = list(named or axes), given.placements
    given = (given,) if _is_a(given, "Placement") else given
    if isinstance(given, str) or not isinstance(given, Sequence):
        return given
    if len(given) != len(axes) or not all(_is_a(placement, "Placement") for placement in given):
        raise InputError(f"shard: expected a placement for each axis of {', '.join(axes)} for {name!r}, found {given}")
    return {axis: _axis(name, placement) for axis, placement in zip(axes, given, strict=True)}


def _axis(name: str, placement: Any) -> int | None:
    if _is_a(placement, "Replicate"):
        return None
    if type(placement).__name__ == "Shard":
        return int(placement.dim)
    raise InputError(f"shard: expected Shard or Replicate for {name!r}, found {placement}")


def _planned(plan: Mapping[str, Any], axis: str, model: Any) -> Placed:
    """How the styles of ``plan``, by the names of modules with wildcards, split the parameters of ``model``."""
    if not hasattr(model, "named_modules"):
        raise InputError("shard: a plan of parallelize_module is for a torch.nn.Module: name the weights instead")
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first.setdefault(id(parameter), name)
    found = Placed()
    for pattern, style in plan.items():
        modules = list(_modules(model, pattern))
        if not modules:
            raise InputError(f"shard: the plan names {pattern!r}, and the model has no such module")
        for module in modules:
            for name, number in _split(pattern, style, module):
                found[first[id(getattr(module, name))]] = {axis: number}
    return found


def _modules(model: Any, pattern: str) -> Iterator[Any]:
    """The modules of that name, in which each part between dots may be a pattern."""
    wanted = pattern.split(".") if pattern else []
    for name, module in model.named_modules():
        parts = name.split(".") if name else []
        if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            yield module


def _split(name: str, style: Any, module: Any) -> Iterator[tuple[str, int | None]]:
    """The parameters of a module that a style splits, with the axis."""
    styles, kinds = ([kind.__name__ for kind in type(x).__mro__] for x in (style, module))
    if any(known in styles for known in _ACTIVATIONS):
        return
    if any(known in styles for known in _WHOLE):
        yield from ((own, None) for own, _ in module.named_parameters(recurse=False))
        return
    for (known, kind), axes in _STYLES.items():
        if known in styles and kind in kinds:
            yield from ((own, axes[own]) for own, _ in module.named_parameters(recurse=False))
            return
    raise InputError(
        f"shard: the plan has {styles[0]} for {name!r}, a {kinds[0]}: expected {', '.join(_KNOWN)}, the first two for "
        "a Linear or an Embedding; name the weights instead"
    )


def _only(mesh: Mapping[str, int]) -> str:
    """The axis that a plan is for which names none."""
    if len(mesh) != 1:
        raise InputError(f"shard: expected a plan for an axis, {{AXIS: PLAN}}, as the mesh has {', '.join(mesh)}")
    return next(iter(mesh))


def _is_plan(given: Any) -> bool:
    return _is_style(given) or (isinstance(given, Mapping) and bool(given) and all(map(_is_style, given.values())))


def _is_style(given: Any) -> bool:
    return _is_a(given, "ParallelStyle")


def _is_a(given: Any, kind: str) -> bool:
    return any(base.__name__ == kind and base.__module__.startswith("torch.") for base in type(given).__mro__)
