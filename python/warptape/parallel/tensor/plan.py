"""A plan of styles, by names of modules, applied to a model that knows nothing of ranks."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from ... import nn
from ...distributed import DeviceMesh
from ..dtensor.placement import check_mesh
from ..dtensor.tensor import DTensor
from .styles import ParallelStyle

Plan = ParallelStyle | Mapping[str, ParallelStyle | Sequence[ParallelStyle]]
Steps = list[tuple[str, nn.Module, ParallelStyle]]


def _fits(pattern: str, name: str) -> bool:
    wanted, have = pattern.split("."), name.split(".")
    return len(wanted) == len(have) and all(
        fnmatch.fnmatchcase(g, w) for g, w in zip(have, wanted, strict=True)
    )


def _steps(module: nn.Module, plan: Plan) -> Steps:
    """(name, module, style) in the plan's order. Raises ValueError for a name that matches nothing."""
    if isinstance(plan, ParallelStyle):
        plan = {"": plan}
    modules = dict(module.named_modules(remove_duplicate=False))
    steps: Steps = []
    for pattern, styles in plan.items():
        matched = [name for name in modules if _fits(pattern, name)]
        if not matched:
            close = difflib.get_close_matches(pattern, modules, n=3, cutoff=0.3)
            raise ValueError(
                f"parallelize_module: {pattern!r} matches no module of {type(module).__name__}; names like "
                f"it: {', '.join(close) or 'none'}"
            )
        for style in styles if isinstance(styles, Sequence) else [styles]:
            if not isinstance(style, ParallelStyle):
                raise TypeError(f"parallelize_module: expected a style for {pattern!r}, got {style!r}")
            once = {id(modules[name]): name for name in reversed(matched)}  # a module may have two names
            steps += [(name, modules[name], style) for name in reversed(once.values())]
    return steps


def _check(module: nn.Module, steps: Steps, ranks: int) -> None:
    """Raises ValueError for what cannot be split, or would be split in two ways."""
    placed: dict[tuple[int, str], Any] = {}  # by module and the parameter's name in it
    for name, part, style in steps:
        style.check(name or "the module", part, ranks)
        for parameter, where in style.placements(part).items():
            owner, _, own = parameter.rpartition(".")
            key = id(part.get_submodule(owner)), own
            if key in placed:
                full = f"{name}.{parameter}".lstrip(".")
                raise ValueError(
                    f"parallelize_module: {full} is placed by two entries of the plan, {placed[key]!r} and "
                    f"{where!r}; leave one out"
                )
            placed[key] = where
    owners: dict[int, list[tuple[str, Any]]] = {}
    for name, part in module.named_modules():
        for own, value in part._parameters.items():
            if value is not None:
                lies = placed.get((id(part), own))
                owners.setdefault(id(value), []).append((f"{name}.{own}".lstrip("."), lies))
                if lies is not None and isinstance(value, DTensor):
                    raise ValueError(f"parallelize_module: {name}.{own} is already sharded")
    for shared in owners.values():
        if len({where for _, where in shared}) > 1:
            ways = ", ".join(
                f"{name} {'not at all' if where is None else repr(where)}" for name, where in shared
            )
            raise ValueError(
                f"parallelize_module: modules share a parameter and the plan places it in two ways: {ways}; "
                "give these modules styles that split it alike, such as RowwiseParallel for an embedding and "
                "ColwiseParallel for the output layer"
            )


def check_plan(module: nn.Module, plan: Plan, ranks: int) -> dict[str, nn.Module]:
    """The modules that a plan changes. Raises what parallelize_module does for one that does not fit.

    Args:
        module: not changed.
        plan: styles by name.
        ranks: how many.
    """
    steps = _steps(module, plan)
    _check(module, steps, ranks)
    return {name: part for name, part, _ in steps}


def parallelize_module(
    module: nn.Module, device_mesh: DeviceMesh | None = None, parallelize_plan: Plan | None = None
) -> nn.Module:
    """Splits a module, in place, among the ranks of a mesh of one axis; returns it.

    All ranks pass a module with the same values: each keeps its part of them. No collective runs here.

    Args:
        device_mesh: of one axis, such as init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"].
        parallelize_plan: a style, or styles by names of modules. In a name each part between dots may be a
            pattern ("layers.*.mlp"), "" is the module itself; a list applies several styles in order.

    Raises: ValueError, on every rank and before anything is changed, for names that match nothing, sizes that
        do not divide, a parameter split in two ways, a mesh that is not of the job's ranks.
    """
    if parallelize_plan is None:
        raise ValueError("parallelize_module: expected a parallelize_plan")
    if device_mesh is None:
        raise ValueError("parallelize_module: expected a device_mesh; make one with init_device_mesh")
    mesh = check_mesh(device_mesh, "parallelize_module")
    steps = _steps(module, parallelize_plan)
    _check(module, steps, mesh.size())
    for _, part, style in steps:
        style.apply(part, mesh)
    return module
