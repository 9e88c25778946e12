"""Runs an op on DTensors: brings its inputs to where its rule wants them and calls it on the shards."""

from __future__ import annotations

import functools
from typing import Any

from ... import _C
from ... import core as wt
from ...core import Tensor
from ...core.by_name import is_pointwise, map_tensors, name_of, tells_facts, tensors_in
from ...distributed import functional
from .layout import Layout
from .placement import Partial, Replicate
from .rules import INDEXED, RULES, Call, Rule, choose, fits, shape_of
from .tensor import HANDLERS, DTensor, plain, replicates_plain, wrap
from .transfer import moved


def parse(func: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> tuple[Call, list[Tensor]]:
    """The call, and its tensors. Raises RuntimeError where plain tensors are among them, but for indices,
    which every rank has alike."""
    inplace = (name.endswith("_") and not name.startswith("__")) or name == "__setitem__"
    base = name if name.startswith("__") else name.rstrip("_")
    tensors: list[Tensor] = []
    places: dict[Any, list[int]] = {}
    for key, value in [*enumerate(args), *kwargs.items()]:
        first = len(tensors)
        tensors.extend(tensors_in(value))
        places[key] = list(range(first, len(tensors)))
    meshes = [t._spec.mesh for t in tensors if isinstance(t, DTensor)]
    if any(mesh != meshes[0] for mesh in meshes):
        raise NotImplementedError(f"{name}: its tensors are on different meshes, {meshes}")
    layouts: list[Layout | None] = []
    for t in tensors:
        if isinstance(t, DTensor):
            layouts.append(t._spec)
        elif t.ndim == 0 or t.numel() == 1:
            layouts.append(None)
        elif replicates_plain() or (base in INDEXED and not t.dtype.is_floating_point):
            layouts.append(Layout(meshes[0], (Replicate(),) * meshes[0].ndim, tuple(t.shape)))
        else:
            raise RuntimeError(
                f"{name}: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor "
                "before calling distributed operators!"
            )
    shapes = [x.shape if x else tuple(t.shape) for x, t in zip(layouts, tensors, strict=True)]
    return Call(
        base, func, args, kwargs, shapes, layouts, places, inplace, getattr(func, "_is_linear", False)
    ), tensors


def run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The op, by its rule; without one where all is replicated.

    Args:
        func: the op.
        args, kwargs: of the call.
    """
    name = name_of(func)
    if tells_facts(name):  # the same for the shard and the full tensor; those that differ have handlers
        args, kwargs = map_tensors((args, kwargs), plain)
        return func(*args, **kwargs)
    if getattr(func, "_is_random", False):
        return _draw(func, name, args, kwargs)
    if name.startswith("_foreach_") and hasattr(_C.TensorBase, name.removeprefix("_foreach_")):
        return _one_by_one(name.removeprefix("_foreach_"), args, kwargs)
    call, tensors = parse(func, name, args, kwargs)
    if is_pointwise(func):
        applied = RULES["role=pointwise"](call)
    else:
        rule = RULES.find(call.name)
        applied = rule(call) if rule is not None else None
    if applied is None and all(_is_full(x) for x in call.layouts):
        return _run_on_full(call, tensors)
    if applied is not None and not fits(call, applied):
        _check_full(call, tensors)
    chosen = choose(call, applied) if applied is not None and "out" not in kwargs else None
    if chosen is None and call.inplace and applied is not None and _is_partial(args[0]):
        return _change_partial(func, args, kwargs)
    if chosen is None:
        where = ", ".join(str(list(x.placements)) for x in call.layouts if x is not None)
        what = "in-place change" if call.inplace and applied is not None else "sharding rule"
        raise NotImplementedError(
            f"{name}: no {what} for tensors with placements {where}; redistribute them to "
            "Replicate() before, or work on to_local()"
        )
    assert applied is not None
    return _run_on_shards(call, applied, tensors, *chosen)


def _is_partial(t: Any) -> bool:
    return isinstance(t, DTensor) and any(isinstance(p, Partial) for p in t.placements)


def _change_partial(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An in-place op that is not linear, on a tensor that is still to be reduced: the reduced result becomes
    a sum again, of which one rank has all."""
    t = args[0]
    # What a collective returns may be a view, which must not change.
    reduced = run(_C.TensorBase.clone, (without_partial(t),), {})
    run(func, (reduced, *args[1:]), kwargs)
    plain(t).copy_(moved(plain(reduced), reduced._spec, t.placements))
    return t


def _check_full(call: Call, tensors: list[Tensor]) -> None:
    """Raises what the op itself does for the full tensors: their shards may fit each other where they do not.
    Of other ops, as attention of grouped heads, dims of one label may differ."""
    shapes = zip(call.shapes, tensors, strict=True)
    full = iter([wt.empty(s, dtype=t.dtype, device="meta") for s, t in shapes])
    args, kwargs = map_tensors((call.args, call.kwargs), lambda _: next(full))
    call.func(*args, **kwargs)


def _is_full(layout: Layout | None) -> bool:
    return layout is None or all(isinstance(p, Replicate) for p in layout.placements)


def _run_on_full(call: Call, tensors: list[Tensor]) -> Any:
    """As one process does it, on every rank."""
    mesh = next(x.mesh for x in call.layouts if x is not None)
    args, kwargs = map_tensors((call.args, call.kwargs), plain)
    out = call.func(*args, **kwargs)
    if call.inplace:
        return call.args[0]
    replicated = (Replicate(),) * mesh.ndim
    return map_tensors(out, lambda t: wrap(t, Layout(mesh, replicated, tuple(t.shape), t.dtype)))


def _run_on_shards(call: Call, made: Rule, tensors: list[Tensor], inputs: Any, outputs: Any) -> Any:
    mesh = next(x.mesh for x in call.layouts if x is not None)
    # On these axes the ranks' work differs: the gradients of what is replicated there add up.
    divided = [any(not isinstance(w[axis], Replicate) for w in outputs) for axis in range(mesh.ndim)]
    if call.inplace and not made.outputs:
        divided = [False] * mesh.ndim
    ready: list[Tensor] = []
    for t, layout, want in zip(tensors, call.layouts, inputs, strict=True):
        local = plain(t)
        if layout is None:  # every rank has it: where the others add up to a sum, one of them adds it
            layout = Layout(mesh, (Replicate(),) * mesh.ndim, tuple(t.shape), t.dtype)
        local = moved(local, layout, want)
        if local.requires_grad and wt.is_grad_enabled() and not (call.inplace and not ready):
            for axis, where in enumerate(want):
                if divided[axis] and isinstance(where, Replicate):
                    local = functional.pass_through_all_reduce(local, mesh.get_group(axis))
        ready.append(local)
    left = iter(ready)
    args, kwargs = map_tensors((call.args, call.kwargs), lambda _: next(left))
    if made.localize is not None:
        shapes = made.shapes or []
        shapes_of_shards = [Layout(mesh, w, s).local_shape() for w, s in zip(outputs, shapes, strict=False)]
        args, kwargs = made.localize(args, kwargs, shapes_of_shards)
    run = made.run or call.func
    if made.layout_of is not None:
        layout = call.layouts[made.layout_of]
        run = functools.partial(run, layout and layout.with_placements(inputs[made.layout_of]))
    out = run(*args, **kwargs)
    if call.inplace:
        return call.args[0]
    number = iter(range(1 << 30))

    def wrapped(t: Tensor) -> DTensor:
        i = next(number)
        which = min(i, len(made.outputs) - 1)
        if made.shapes is not None:
            shape = made.shapes[min(i, len(made.shapes) - 1)]
        else:
            shape = shape_of(made.outputs[which], made, call, t.shape)
        layout = Layout(mesh, outputs[which], shape, t.dtype)
        if tuple(t.shape) != layout.local_shape() and mesh.get_coordinate() is not None:
            raise AssertionError(
                f"{call.name}: of {list(shape)}, {list(layout.placements)}, this rank made {list(t.shape)}"
            )
        return wrap(t, layout)

    return map_tensors(out, wrapped)


HANDLERS.other = run


def _one_by_one(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A _foreach_ op, by the op for one tensor."""
    single = getattr(_C.TensorBase, name)
    count = len(args[0])

    def at(value: Any, i: int) -> Any:
        return value[i] if isinstance(value, list | tuple) and len(value) == count else value

    out = []
    before = _C._set_torch_function_subclasses(True)  # within it ops on DTensors are taken over again
    try:
        for i in range(count):
            options = {k: at(v, i) for k, v in kwargs.items()}
            out.append(single(*(at(a, i) for a in args), **options))
    finally:
        _C._set_torch_function_subclasses(before)
    return None if name.endswith("_") else tuple(out)


def _draw(func: Any, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An op that draws: every rank draws the full tensor, as one process does, and keeps its shard."""
    fills = name.endswith("_") and "dropout" not in name and "rrelu" not in name
    if fills and not any(isinstance(a, Tensor) for a in (*args[1:], *kwargs.values())):
        return args[0].filled_as_full(lambda full: func(full, *args[1:], **kwargs))
    t = args[0] if isinstance(args[0], DTensor) else next(a for a in args if isinstance(a, DTensor))
    reduced = t if name.endswith("_") else without_partial(t)
    spec = reduced._spec
    replicated = spec.with_placements((Replicate(),) * spec.mesh.ndim)
    if name.endswith(("_like", "_")):
        local = plain(t)
        source: Any = wt.empty(spec.shape, dtype=local.dtype, device=local.device)
        if name.endswith("_"):
            source.copy_(to_full_tensor(wrap(plain(t).detach(), t._spec)))
        drawn = func(source, *args[1:], **kwargs)
    else:
        args, kwargs = map_tensors((args, kwargs), to_full_tensor)
        drawn = func(*args, **kwargs)
    if tuple(drawn.shape) != spec.shape:
        return wrap(drawn, Layout(spec.mesh, replicated.placements, tuple(drawn.shape), drawn.dtype))
    shard = moved(drawn, replicated, spec.placements)
    if not name.endswith("_"):
        return wrap(shard, Layout(spec.mesh, spec.placements, spec.shape, shard.dtype))
    plain(t).copy_(shard)
    return t


def to_full_tensor(t: Tensor) -> Tensor:
    """The whole of a DTensor, a plain tensor as it is.

    Args:
        t: any tensor.
    """
    if not isinstance(t, DTensor):
        return t
    return plain(t.full_tensor())


def without_partial(t: DTensor) -> DTensor:
    """What is still to be reduced is.

    Args:
        t: any DTensor.
    """
    where = [Replicate() if isinstance(p, Partial) else p for p in t.placements]
    return t.redistribute(placements=where)
