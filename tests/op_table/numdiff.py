"""An own check of derivatives by finite differences, independent of the runtime's gradcheck.

The scalar s(x) = sum_k <v_k, f_k(x)> with fixed random cotangents v is differentiated numerically,
coordinate by coordinate, with the five-point stencil: with step 1e-3 in float64 its error is near 1e-11, so
that the tolerance can be tight. A larger tensor is probed at some coordinates and along one random
direction, in which every element takes part, so that a wrong factor in one element cannot hide. The second
check does the same for the gradient itself, which is a function of the inputs and of the cotangents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import convert
from .checks import Call, describe, leaves_of, samples_for, tensors
from .table import Op, Sample

STEP = 1e-3
RELATIVE, ABSOLUTE = 1e-6, 1e-7
FIRST, SECOND = 16, 6  # coordinates per tensor; a larger one is probed at so many places and in one direction


def derivative(function: Callable[[], float], cell: np.ndarray, direction: np.ndarray) -> float:
    """The derivative of `function` along `direction` in `cell`; the array is changed and restored."""
    centre = cell.copy()
    total = 0.0
    for offset, weight in ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0)):
        cell[...] = centre + offset * STEP * direction
        total += weight * function()
    cell[...] = centre
    return total / (12 * STEP)


def directions(shape: tuple[int, ...], limit: int) -> list[tuple[str, np.ndarray]]:
    """Every coordinate of a small tensor; of a larger one some, and one direction with all (entries of at
    most 1, so that the stencil keeps its reach)."""
    probe = np.random.default_rng(0)
    places = list(np.ndindex(shape))
    found: list[tuple[str, np.ndarray]] = []
    if len(places) > limit:
        found.append(
            ("along a direction", np.asarray(probe.uniform(0.3, 1, shape) * probe.choice([-1, 1], shape)))
        )
        places = [places[i] for i in probe.choice(len(places), limit, replace=False)]
    for place in places:
        unit = np.zeros(shape)
        unit[place] = 1
        found.append((f"at {place}", unit))
    return found


def compare_gradient(
    function: Callable[[], float],
    cells: list[np.ndarray],
    gradients: list[np.ndarray],
    where: str,
    limit: int,
) -> None:
    """Asserts that `gradients` are the derivatives of `function` by the entries of `cells`."""
    for number, (cell, gradient) in enumerate(zip(cells, gradients, strict=True)):
        if gradient.shape != cell.shape:
            raise AssertionError(
                f"{where}: gradient {number} has shape {gradient.shape}, the input {cell.shape}"
            )
        for place, direction in directions(cell.shape, limit):
            want = derivative(function, cell, direction)
            got = float((gradient * direction).sum())
            if not abs(got - want) <= ABSOLUTE + RELATIVE * abs(want):
                raise AssertionError(
                    f"{where}: gradient {number} {place}: finite differences {want}, got {got}"
                )


class Problem:
    """One sample as a function of its differentiable inputs, in float64."""

    def __init__(self, rt: Any, op: Op, call: Call, original: Sample, sample: Sample):
        self.rt, self.op, self.call, self.original = rt, op, call, original
        self.sample = convert.concrete(original, "float64")  # own copies: the stencil changes them in place
        self.sample = Sample(*copied(self.sample.args, dict(self.sample.kwargs)), sample.dtypes, sample.grad)
        self.cells = differentiable(op, self.sample, original)

    def outputs(self, grad: bool) -> tuple[list[Any], list[Any]]:
        """(floating point results, leaves)."""
        if self.op.seeded:
            self.rt.manual_seed(11)
        args, kwargs, leaves = leaves_of(self.rt, self.op, self.sample, self.original, "float64")
        with self.rt.set_grad_enabled(grad):
            results = tensors(self.rt, self.call(*args, **kwargs))
        return [one for one in results if one.dtype == self.rt.float64], leaves

    def cotangents(self) -> list[np.ndarray]:
        """Random weights, one per floating point result."""
        draw = np.random.default_rng(1)
        return [draw.uniform(0.5, 1.5, tuple(one.shape)) for one in self.outputs(False)[0]]

    def value(self, cotangents: list[np.ndarray]) -> float:
        """s(x) at the cells' present values."""
        results = self.outputs(False)[0]
        pairs = zip(results, cotangents, strict=True)
        return float(sum((convert.to_numpy(self.rt, one) * v).sum() for one, v in pairs))

    def gradient(self, cotangents: list[Any], create_graph: bool) -> tuple[list[Any], list[Any]]:
        """(gradient by each leaf, leaves); a leaf the result does not depend on has zeros."""
        rt = self.rt
        results, leaves = self.outputs(True)
        pairs = [(one, v) for one, v in zip(results, cotangents, strict=True) if one.requires_grad]
        if not pairs:
            raise AssertionError(f"{self.op.id}: no result requires grad")
        found = rt.autograd.grad(
            [one for one, _ in pairs],
            leaves,
            [v for _, v in pairs],
            create_graph=create_graph,
            allow_unused=True,
        )
        zeros = [rt.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves, strict=True)]
        return zeros, leaves


def copied(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments with arrays of their own."""

    def leaf(pair: Any) -> Any:
        return pair[0].copy() if isinstance(pair[0], np.ndarray) else pair[0]

    return convert.zip_map(leaf, args, args), {k: convert.zip_map(leaf, v, v) for k, v in kwargs.items()}


def differentiable(op: Op, sample: Sample, original: Sample) -> list[np.ndarray]:
    """The sample's arrays that take a gradient, in the order of `leaves_of`."""
    cells: list[np.ndarray] = []

    def leaf(pair: Any) -> Any:
        if convert.is_under_test(pair[1]):
            cells.append(pair[0])

    for index, (value, first) in enumerate(zip(sample.args, original.args, strict=True)):
        if index not in op.nograd:
            convert.zip_map(leaf, value, first)
    for key, value in sample.kwargs.items():
        if key not in op.nograd:
            convert.zip_map(leaf, value, original.kwargs[key])
    return cells


def check_gradient(rt: Any, op: Op, call: Call) -> int:
    """First derivatives of every sample in float64, fused backward. Returns how many samples were checked."""
    count = 0
    for number, original, sample in samples_for(op, "float64"):
        if not original.grad:
            continue
        problem = Problem(rt, op, call, original, sample)
        weights = problem.cotangents()
        tensors_ = [convert.from_array(rt, weight.copy()) for weight in weights]
        got, _ = problem.gradient(tensors_, create_graph=False)
        gradients = [convert.to_numpy(rt, one) for one in got]
        where = describe(op, "float64", number, sample)
        compare_gradient(lambda p=problem, w=weights: p.value(w), problem.cells, gradients, where, FIRST)
        count += 1
    return count


def check_second_gradient(rt: Any, op: Op, call: Call) -> int:
    """Derivatives of the gradient by the inputs and by the cotangents, in float64."""
    count = 0
    for number, original, sample in samples_for(op, "float64"):
        if not original.grad:
            continue
        problem = Problem(rt, op, call, original, sample)
        weights = problem.cotangents()
        draw = np.random.default_rng(2)
        outer = [draw.uniform(0.5, 1.5, cell.shape) for cell in problem.cells]

        def value(p: Problem = problem, w: list[np.ndarray] = weights, u: list[np.ndarray] = outer) -> float:
            inner, _ = p.gradient([convert.from_array(rt, one.copy()) for one in w], create_graph=False)
            return float(
                sum((convert.to_numpy(rt, one) * each).sum() for one, each in zip(inner, u, strict=True))
            )

        cotangents = [convert.from_array(rt, weight.copy()).requires_grad_(True) for weight in weights]
        first, leaves = problem.gradient(cotangents, create_graph=True)
        where = f"{describe(op, 'float64', number, sample)}, second"
        live = [
            (one, convert.from_array(rt, u)) for one, u in zip(first, outer, strict=True) if one.requires_grad
        ]
        inputs = (
            leaves + cotangents
        )  # without a graph the gradient must be constant: finite differences will tell
        second: Any = [None] * len(inputs)
        if live:
            second = rt.autograd.grad(
                [one for one, _ in live], inputs, [u for _, u in live], allow_unused=True
            )
        gradients = [
            np.zeros(tuple(leaf.shape)) if one is None else convert.to_numpy(rt, one)
            for one, leaf in zip(second, inputs, strict=True)
        ]
        compare_gradient(value, problem.cells + weights, gradients, where, SECOND)
        count += 1
    return count


def check_fused(rt: Any, op: Op, call: Call, dtype: str) -> int:
    """The gradient without and with create_graph (fused and composed backward) within the dtype's
    tolerance."""
    count = 0
    for number, original, sample in samples_for(op, dtype):
        if not original.grad:
            continue
        found = []
        for create_graph in (False, True):
            if op.seeded:
                rt.manual_seed(11)
            args, kwargs, leaves = leaves_of(rt, op, sample, original, dtype)
            results = [one for one in tensors(rt, call(*args, **kwargs)) if one.requires_grad]
            cotangents = [weights_for(rt, one) for one in results]
            found.append(
                rt.autograd.grad(results, leaves, cotangents, create_graph=create_graph, allow_unused=True)
            )
        where = f"{describe(op, dtype, number, sample)}, fused against composed backward"
        for fused, composed in zip(*found, strict=True):
            compare_pair(rt, op, fused, composed, dtype, where)
        count += 1
    return count


def weights_for(rt: Any, like: Any) -> Any:
    """A cotangent without symmetry, of a result's shape and dtype."""
    values = np.linspace(0.5, 1.5, int(np.prod(tuple(like.shape)))).reshape(tuple(like.shape))
    return convert.from_array(rt, values).to(like.dtype)


def compare_pair(rt: Any, op: Op, one: Any, other: Any, dtype: str, where: str) -> None:
    """Asserts that two gradients agree: both missing, or equal in dtype, shape and values. The absolute
    tolerance scales with the gradient's largest entry, for sums cancel."""
    if one is None or other is None:
        present = other if one is None else one
        if present is not None and np.any(convert.to_numpy(rt, present)):
            raise AssertionError(f"{where}: one of the two gradients is missing")
        return
    if one.dtype != other.dtype:
        raise AssertionError(f"{where}: dtypes {one.dtype} and {other.dtype}")
    a, b = (convert.widen(convert.to_numpy(rt, each)) for each in (one, other))
    relative, absolute = op.tol.get(dtype, op.tolerance(dtype) if not op.exact else (1e-12, 1e-12))
    scale = max(1.0, float(np.max(np.abs(b), initial=0.0)))
    np.testing.assert_allclose(a, b, rtol=relative, atol=4 * absolute * scale, equal_nan=True, err_msg=where)


def check_gradient_layout(rt: Any, op: Op, call: Call, layout: str) -> int:
    """Gradients through non-contiguous inputs and cotangents equal those through contiguous ones."""
    count = 0
    for number, original, sample in samples_for(op, "float64", layout):
        if not original.grad:
            continue
        found = []
        for form in ("contiguous", layout):
            if op.seeded:
                rt.manual_seed(11)
            args, kwargs, leaves = leaves_of(rt, op, sample, original, "float64", form)
            results = [one for one in tensors(rt, call(*args, **kwargs)) if one.requires_grad]
            weights = [convert.to_numpy(rt, weights_for(rt, one)) for one in results]
            cotangents = [convert.lay_out(rt, one, "float64", layout_of_cotangent(form)) for one in weights]
            found.append(rt.autograd.grad(results, leaves, cotangents, allow_unused=True))
        where = f"{describe(op, 'float64', number, sample)}, gradient of {layout} inputs"
        for strided, plain in zip(*reversed(found), strict=True):
            compare_pair(rt, op, strided, plain, "float64", where)
        count += 1
    return count


def layout_of_cotangent(form: str) -> str:
    """Cotangents keep their values, so an expanded one is stepped instead."""
    return "stepped" if form == "expanded" else form
