"""No term of a gradient is missing silently.

Of each floating input that requires grad, by itself, an op gives the gradient that finite differences tell,
or raises, or gives a result that is declared to have none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from . import convert, numdiff
from .checks import describe, leaves_of, samples_for, tensors
from .driver import callable_of, count, rows
from .table import Op, S, Sample

# Results that have no gradient by their nature, in PyTorch as here.
CONSTANT = {
    *(
        "detach",
        "detach_copy",
        "Tensor.detach",
        "Tensor.detach_",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "histc",
    ),
    *("rand_like", "randn_like", "randint_like", "Tensor.new_zeros", "Tensor.new_ones", "Tensor.new_full"),
    *("Tensor.new_empty", "Tensor.new_tensor"),
}
# Inputs of which only shape or dtype count, and which choose.
UNREAD = {
    "Tensor.expand_as": 1,
    "Tensor.view_as": 1,
    "Tensor.reshape_as": 1,
    "nn.functional.hinge_embedding_loss": 1,
}

# Gradients that are no derivatives by their definition, as in PyTorch: of one triangle, of log-probabilities
# whose sum is taken for 1, straight through a rounding, without a row, of one of several equal values; and
# results that are statistics and the state of an optimizer.
BY_DEFINITION = {
    *("linalg.cholesky", "linalg.eigvalsh", "svd_lowrank", "pca_lowrank", "nn.functional.ctc_loss"),
    *("fake_quantize_per_tensor_affine", "fake_quantize_per_tensor_affine by tensors"),
    *(
        "fake_quantize_per_channel_affine",
        "embedding, padding_idx",
        "sort, stable with ties",
        "native_layer_norm",
    ),
    *("native_batch_norm", "batch_norm, running statistics", "_fused_adam_", "_fused_adamw_", "_fused_sgd_"),
}

# Rows with inputs that are not read, or whose gradient is dropped by definition: of boxes, as in torchvision.
NOT_OF_ALL = {
    *UNREAD,
    *BY_DEFINITION,
    *("ops.torchvision.roi_align", "ops.torchvision.roi_pool", "ops.torchvision.ps_roi_align"),
    "ops.torchvision.ps_roi_pool",
}


def inputs(sample: Sample, original: Sample) -> Iterator[int | str]:
    """Positions and keywords of tensors under test."""
    for index, value in enumerate(original.args):
        if any(map(convert.is_under_test, leaves(value))) and index < len(sample.args):
            yield index
    for key, value in original.kwargs.items():
        if any(map(convert.is_under_test, leaves(value))):
            yield key


def leaves(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (list, tuple)) else [value]


def alone(op: Op, sample: Sample, place: int | str) -> Op:
    """The row with a gradient by one input only."""
    every = (*range(len(sample.args)), *sample.kwargs)
    return dataclasses.replace(op, nograd=tuple(each for each in every if each != place))


def compare(value: Callable[[], float], cells: list[Any], found: list[Any], rt: Any, where: str) -> None:
    """Gradients against finite differences, where those of two steps agree: elsewhere there is a jump."""
    for cell, gradient in zip(cells, found, strict=True):
        for name, direction in numdiff.directions(cell.shape, 3):
            want, again = (n * numdiff.derivative(value, cell, direction / n) for n in (1, 4))
            if not abs(want - again) < 1e-4 * (1 + abs(want)):
                continue
            got = float((convert.to_numpy(rt, gradient) * direction).sum())
            assert abs(got - want) < 1e-4 * (1 + abs(want)), (
                f"{where}, {name}: finite differences {want}, got {got}"
            )


def check(rt: Any, op: Op, call: Any, original: Sample, sample: Sample) -> int:
    """Checks one sample; returns for how many inputs."""
    checked = 0
    for place in inputs(sample, original):
        problem = numdiff.Problem(rt, alone(op, sample, place), call, original, sample)
        if op.name in CONSTANT or UNREAD.get(op.name) == place:
            assert not any(one.requires_grad for one in problem.outputs(True)[0])
            continue
        try:
            weights = problem.cotangents()
            if not weights or not problem.cells:
                continue
            given = [convert.from_array(rt, weight.copy()) for weight in weights]
            found, _ = problem.gradient(given, create_graph=False)
        except (RuntimeError, ValueError):  # refused, by the call or by its backward
            checked += 1
            continue
        where = f"{describe(op, 'float64', 0, sample)}, by input {place} alone"
        if original.grad and op.ref is not None:
            compare(lambda p=problem, w=weights: p.value(w), problem.cells, found, rt, where)
        checked += 1
    return checked


@rows(lambda op: "float64" in op.dtypes and op.id not in BY_DEFINITION and not (op.grad and not op.nograd))
def test_every_input(rt: ModuleType, op: Op, request: pytest.FixtureRequest) -> None:
    call = callable_of(rt, op, request)
    total = sum(check(rt, op, call, original, sample) for _, original, sample in samples_for(op, "float64"))
    request.node.user_properties.append(("missing_derivatives", total))


@rows(lambda op: "float64" in op.dtypes and op.id not in NOT_OF_ALL and op.nograd)
def test_all_inputs_together(rt: ModuleType, op: Op, request: pytest.FixtureRequest) -> None:
    """An input without a derivative is not forgotten beside one that has one."""
    call = callable_of(rt, op, request)
    for _, original, sample in samples_for(op, "float64"):
        every = dataclasses.replace(op, nograd=())
        try:
            args, kwargs, leaves_ = leaves_of(rt, every, sample, original, "float64")
            results = [one for one in tensors(rt, call(*args, **kwargs)) if one.requires_grad]
            found = (
                rt.autograd.grad([one.sum() for one in results], leaves_, allow_unused=True)
                if results
                else ()
            )
        except (RuntimeError, ValueError):
            continue
        assert all(one is not None for one in found), describe(op, "float64", 0, sample)


@rows(lambda op: "float64" in op.dtypes and op.grad and not op.nograd)
def test_inputs_one_by_one(rt: ModuleType, op: Op, request: pytest.FixtureRequest) -> None:
    """Of the rows whose inputs are checked together: that none depends on another to be recorded."""
    call = callable_of(rt, op, request)
    _, original, sample = next(iter(samples_for(op, "float64")))
    for place in inputs(sample, original):
        problem = numdiff.Problem(rt, alone(op, sample, place), call, original, sample)
        results = problem.outputs(True)[0]
        assert not results or any(one.requires_grad for one in results), (
            f"{op.id}: input {place} is not recorded"
        )
    count(request, "missing_derivatives", 1)


def test_a_missing_derivative_is_found(rt: ModuleType) -> None:
    """The check fails where a term is dropped."""
    row = Op("mul", lambda rng: [S(np.ones(2), np.ones(2))], np.multiply)
    (_, original, sample), *_ = samples_for(row, "float64")
    with pytest.raises(AssertionError, match="no result requires grad"):
        check(rt, row, lambda a, b: a.detach() * b, original, sample)
    with pytest.raises(AssertionError, match="finite differences"):
        check(rt, row, lambda a, b: a.detach() * b + a, original, sample)


def test_default_of_an_op_without_a_derivative(rt: ModuleType) -> None:
    x = rt.tensor([0.5, 1.5], dtype=rt.float64, requires_grad=True)
    for result in (
        rt.bincount(rt.tensor([0, 1]), weights=x),
        rt.special.zeta(x, x + 1),
        rt.geqrf(rt.diag(x))[0],
    ):
        assert result.requires_grad
        with pytest.raises(RuntimeError, match=r"derivative for .* is not implemented"):
            (result.sum() + x.sum()).backward()
    with rt.no_grad():
        assert not rt.special.zeta(x, x + 1).requires_grad
