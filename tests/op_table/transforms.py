"""Rows under function transforms: vmap against a loop over the elements, jvp against finite differences."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from . import convert
from .checks import Call, describe, leaves_of, samples_for, tensors
from .table import Op

ELEMENTS = 2  # of the mapped dim


def tensor_paths(rt: Any, args: Any, kwargs: Any) -> list[Any]:
    """Places of the tensors among the arguments and in lists of them."""
    paths: list[Any] = []
    for kind, items in (("args", enumerate(args)), ("kwargs", kwargs.items())):
        for key, x in items:
            if isinstance(x, rt.Tensor):
                paths.append((kind, key, None))
            elif isinstance(x, (list, tuple)):
                paths += [(kind, key, j) for j, y in enumerate(x) if isinstance(y, rt.Tensor)]
    return paths


def variants(rt: Any, x: Any, shift: int) -> list[Any]:
    """Tensors of x's shape near it: floats are scaled a little, so that domains and orders stay; masks are
    rolled by `shift`, and integers have it added."""
    if x.is_floating_point():
        return [(x * (1 - 0.01 * i)).detach() for i in range(ELEMENTS)]
    if x.dtype == rt.bool:
        return [x.flatten().roll(i * shift).reshape(x.shape) for i in range(ELEMENTS)]
    return [x + i * shift for i in range(ELEMENTS)]


def check_vmap(rt: Any, op: Op, call: Call, dtype: str, inplace: bool = False) -> int:
    """Every tensor argument mapped, and the first alone, equals the stacked results of single calls."""
    count = 0
    for number, original, sample in samples_for(op, dtype):
        args, kwargs = convert.arguments(rt, sample, original, dtype)
        if inplace and call(*args, **kwargs).shape != args[0].shape:
            continue
        paths = tensor_paths(rt, args, kwargs)
        for mapped in {tuple(paths), tuple(paths[:1])}:
            if not mapped:
                continue
            where = f"{describe(op, dtype, number, sample)}, vmap over {[p[1] for p in mapped]}"
            call_of = inplace_of(op) if inplace else call
            count += one_vmap(rt, call_of, args, kwargs, mapped, where, op.tolerance(dtype))
    return count


def one_vmap(rt: Any, call: Call, args: Any, kwargs: Any, mapped: Any, where: str, tolerance: Any) -> int:
    def at(kind: str, key: Any, j: Any) -> Any:
        x = (args if kind == "args" else kwargs)[key]
        return x if j is None else x[j]

    def on(parts: Any) -> Any:
        new_args, new_kwargs = list(args), dict(kwargs)
        for (kind, key, j), part in zip(mapped, parts, strict=True):
            holder = new_args if kind == "args" else new_kwargs
            if j is None:
                holder[key] = part.clone()
            else:
                holder[key] = [part.clone() if k == j else y for k, y in enumerate(holder[key])]
        return tensors(rt, call(*new_args, **new_kwargs))

    for shift in (1, -1, 0):  # an index at the end of its range is refused, and an offset anywhere else
        values = [variants(rt, at(*path), shift) for path in mapped]
        try:
            single = [on([v[i] for v in values]) for i in range(ELEMENTS)]
            for x in [x for one in single for x in one]:
                convert.to_numpy(rt, x)  # where a CUDA kernel's bad index is raised
            break
        except (IndexError, ValueError, RuntimeError):
            if shift == 0:
                raise
    if any(len({tuple(x.shape) for x in same}) > 1 for same in zip(*single, strict=True)):
        return 0  # shapes that depend on the data have no stack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mapped_call = rt.func.vmap(lambda *parts: tuple(on(parts)), randomness="same")
        try:
            together = mapped_call(*[rt.stack(v) for v in values])
        except RuntimeError as error:
            if "inplace arithmetic" not in str(error):
                raise
            return 1  # refused: the op would write what the mapped calls share
    for got, *want in zip(together, *single, strict=True):
        for i, one in enumerate(want):
            assert got[i].shape == one.shape, f"{where}: shape {got[i].shape}, expected {one.shape}"
            assert got.dtype == one.dtype, f"{where}: dtype {got.dtype}, expected {one.dtype}"
            a, b = (convert.widen(convert.to_numpy(rt, x)) for x in (got[i], one))
            np.testing.assert_allclose(a, b, *tolerance, equal_nan=True, err_msg=where)
    return 1


def inplace_of(op: Op) -> Call:
    """The op by its in-place twin, on the first argument."""

    def written(x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, str(op.inplace))(*args, **kwargs)

    return written


def check_jvp(rt: Any, op: Op, call: Call) -> int:
    """The derivative along a direction against central differences along it."""
    count = 0
    for number, original, sample in samples_for(op, "float64"):
        if not original.grad:
            continue
        args, kwargs, leaves = leaves_of(rt, op, sample, original, "float64")
        where = f"{describe(op, 'float64', number, sample)}, jvp"
        count += one_jvp(rt, call, args, kwargs, leaves, where)
    return count


def one_jvp(rt: Any, call: Call, args: Any, kwargs: Any, leaves: Any, where: str) -> int:
    rng = np.random.default_rng(3)
    points = tuple(x.detach() for x in leaves)
    along = tuple(convert.from_array(rt, rng.uniform(0.5, 1.0, tuple(x.shape))).to(x.dtype) for x in leaves)

    def on(*values: Any) -> Any:
        swapped = {id(x): v for x, v in zip(leaves, values, strict=True)}

        def put(x: Any) -> Any:
            if isinstance(x, (list, tuple)):
                return type(x)(put(y) for y in x)
            return swapped.get(id(x), x)

        out = tensors(rt, call(*[put(a) for a in args], **{k: put(v) for k, v in kwargs.items()}))
        return tuple(x for x in out if x.is_floating_point() or x.is_complex())

    outputs, derivatives = rt.func.jvp(on, points, along)
    step = 1e-6
    with rt.no_grad():
        ahead = on(*(p + step * t for p, t in zip(points, along, strict=True)))
        behind = on(*(p - step * t for p, t in zip(points, along, strict=True)))
    for got, value, a, b in zip(derivatives, outputs, ahead, behind, strict=True):
        assert got.shape == value.shape, f"{where}: shape {got.shape} of the derivative of {value.shape}"
        want = convert.to_numpy(rt, (a - b) / (2 * step))
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
        np.testing.assert_allclose(convert.to_numpy(rt, got), want, 2e-5, 2e-5 * scale, err_msg=where)
    return 1
