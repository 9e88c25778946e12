"""Every row of the op table inside of a compiled function."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from op_table import ROWS, checks, convert
from op_table.driver import callable_of, count, rows
from op_table.table import FLOATS, Op, Sample, tree_map, writes
from op_table.test_errors import CASES

from .outcomes import differences, outcome

Request = pytest.FixtureRequest
Program = Callable[..., Any]
SEED = 11
# Forms in which a call is made: its arguments come from outside or are made in the function; the result is
# all, or a backward follows, or another.
FORMS = [(fresh, order) for fresh in (False, True) for order in (0, 1, 2)]
GARBAGE = {"empty_like", "Tensor.new_empty", "empty", "empty_strided", "Tensor.new_empty_strided"}


def program(rt: Any, call: Any, args: Any, kwargs: Any, leaves: Any, fresh: bool, order: int) -> Program:
    """A function that makes the call, and as many backwards as `order` says."""

    def renew(value: Any) -> Any:
        return value.clone() if fresh and isinstance(value, rt.Tensor) else value

    def run() -> Any:
        result = call(*tree_map(renew, list(args)), **tree_map(renew, dict(kwargs)))
        return (result, *backwards(rt, result, leaves, order))

    return run


def weights(rt: Any, like: Any) -> Any:
    return rt.linspace(0.5, 1.5, like.numel(), dtype=rt.float64).to(like.dtype).reshape(like.shape)


def backwards(rt: Any, result: Any, leaves: Any, order: int) -> Iterator[Any]:
    """Gradients with respect to the leaves, and gradients of these."""
    outputs = [x for x in checks.tensors(rt, result) if x.requires_grad]
    if not order or not outputs or not leaves:
        return
    given = [weights(rt, x).requires_grad_(order > 1) for x in outputs]
    first = rt.autograd.grad(outputs, leaves, given, create_graph=order > 1, allow_unused=True)
    yield first
    again = [x for x in first if x is not None and x.requires_grad]
    if order > 1 and again:
        yield rt.autograd.grad(again, [*leaves, *given], [weights(rt, x) for x in again], allow_unused=True)


def compare(rt: Any, make: Callable[[], tuple[Program, Any]], where: str, values: bool = True) -> int:
    """Runs what `make` gives (a function and the tensors that it may change) as it is and compiled."""
    found = []
    for compiled in (False, True):
        run, watched = make()
        rt.manual_seed(SEED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(outcome(rt, rt.compile(run) if compiled else run, watched, values))
    same(found[1], found[0], where)
    return 1


def same(got: Any, want: Any, where: str) -> None:
    """Asserts that two outcomes are equal. Not the versions of gradients: whether the tape adds in place
    depends on who holds the memory."""
    lines = [line for line in differences(got, want) if not re.match(r"\.result\[[23]\].*\.version", line)]
    assert not lines, f"{where}:\n" + "\n".join(lines[:8])


def chosen(config: pytest.Config, op: Op) -> Iterator[tuple[str, str, int, Sample, Sample]]:
    """(dtype, layout, number, as written, concrete): all, or some with every dtype and layout among them."""
    limit = config.getoption("--samples")
    if not limit:
        for dtype in op.dtypes:
            for layout in ("contiguous", *op.layouts):
                for found in checks.samples_for(op, dtype, layout):
                    yield (dtype, layout, *found)
        return
    layouts = ("contiguous", *op.layouts)
    for k in range(limit):
        dtype = op.dtypes[k % len(op.dtypes)]
        layout = layouts[k % len(layouts)]
        found = list(checks.samples_for(op, dtype, layout))
        if found:
            yield (dtype, layout, *found[(k * 7) % len(found)])


def placed(rt: Any, op: Op, sample: Sample, original: Sample, dtype: str, layout: str) -> Any:
    """Arguments, and those among them that require a gradient."""
    if op.grad and dtype in FLOATS:
        return checks.leaves_of(rt, op, sample, original, dtype, layout)
    args, kwargs = convert.arguments(rt, sample, original, dtype, layout)
    return args, kwargs, []


@rows()
def test_row(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    done = 0
    for dtype, layout, number, original, sample in chosen(request.config, op):
        for fresh, order in FORMS if op.grad and dtype in FLOATS else FORMS[::3]:

            def make(fresh: bool = fresh, order: int = order) -> tuple[Program, Any]:
                args, kwargs, leaves = placed(rt, op, sample, original, dtype, layout)
                return program(rt, call, args, kwargs, leaves, fresh, order), (args, kwargs)

            where = f"{checks.describe(op, dtype, number, sample)} {layout}, fresh={fresh}, order={order}"
            done += compare(rt, make, where, op.name not in GARBAGE)
    count(request, "compiled", done)


@rows(lambda op: op.grad and bool(set(op.dtypes) & set(FLOATS)))
def test_backward_outside(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    done = 0
    for dtype, layout, number, original, sample in chosen(request.config, op):
        if dtype not in FLOATS:
            continue
        where = f"{checks.describe(op, dtype, number, sample)} {layout}, backward outside"
        found = []
        for compiled in (False, True):
            args, kwargs, leaves = placed(rt, op, sample, original, dtype, layout)
            run = program(rt, call, args, kwargs, leaves, True, 0)
            run = rt.compile(run) if compiled else run

            def whole(run: Program = run, leaves: Any = leaves) -> Any:
                result = run()
                return (result, *backwards(rt, result, leaves, 2))

            rt.manual_seed(SEED)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(outcome(rt, whole, (args, kwargs), op.name not in GARBAGE))
        same(found[1], found[0], where)
        done += 1
    count(request, "compiled", done)


def inplace_paths(op: Op) -> list[str]:
    return [path for path in op.spellings if writes(path)]


@rows(lambda op: bool(inplace_paths(op)))
def test_inplace(rt: ModuleType, op: Op, request: Request) -> None:
    done = 0
    for path in inplace_paths(op):
        call = checks.resolve_path(rt, path)
        for dtype, layout, number, original, sample in chosen(request.config, op):
            for fresh, order in ((False, 0), (True, 0), (True, 1), (True, 2)):

                def make(fresh: bool = fresh, order: int = order) -> tuple[Program, Any]:
                    args, kwargs, leaves = placed(rt, op, sample, original, dtype, layout)
                    if not order:
                        for x in leaves:
                            x.requires_grad_(False)
                        leaves = []
                    run = call if op.view else used(call)
                    return program(rt, run, args, kwargs, leaves, fresh, order), (args, kwargs)

                where = (
                    f"{checks.describe(op, dtype, number, sample)} {layout}, as {path}, {fresh=}, {order=}"
                )
                done += compare(rt, make, where)
    count(request, "compiled", done)


def used(call: Any) -> Any:
    """An in-place op between two uses of its argument, one of them through a view."""

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        before, part = x.neg() if x.dtype.is_floating_point else x.clone(), x[..., :1] if x.dim() else x
        result = call(x, *args, **kwargs)
        return result, before, part, result.clone()

    return run


@rows(lambda op: op.out)
def test_out(rt: ModuleType, op: Op, request: Request) -> None:
    call = callable_of(rt, op, request)
    done = 0
    for dtype, _, number, original, sample in chosen(request.config, op):
        args, kwargs = convert.arguments(rt, sample, original, dtype)
        rt.manual_seed(SEED)
        like = call(*args, **kwargs)
        for form in ("exact", "empty", "stepped"):

            def make(form: str = form, like: Any = like) -> tuple[Program, Any]:
                args, kwargs = convert.arguments(rt, sample, original, dtype)
                kinds = [(tuple(x.shape), convert.dtype_name(rt, x)) for x in checks.tensors(rt, like)]
                targets = [checks.out_target(rt, form, *kind) for kind in kinds]
                out = tuple(targets) if isinstance(like, (tuple, list)) else targets[0]
                run = functools.partial(call, *args, **kwargs, out=out)
                return lambda: (run(), [t.clone() for t in targets]), (args, kwargs, targets)

            done += compare(rt, make, f"{checks.describe(op, dtype, number, sample)}, out= {form}")
    count(request, "compiled", done)


@pytest.mark.parametrize(
    ("op", "case"),
    [(op, case) for op, _, case in CASES],
    ids=[f"{op.id}-{number}-{case.kind}" for op, number, case in CASES],
)
def test_error(rt: ModuleType, op: Op, case: Any, request: Request) -> None:
    call = callable_of(rt, op, request)
    original = Sample(case.args, case.kwargs, None, True)
    sample = convert.concrete(original, case.dtype)
    for fresh in (False, True):

        def make(fresh: bool = fresh) -> tuple[Program, Any]:
            args, kwargs = convert.arguments(rt, sample, original, case.dtype)
            return program(rt, call, args, kwargs, [], fresh, 0), (args, kwargs)

        compare(rt, make, f"{checks.describe(op, case.dtype, 0, sample)}, {fresh=}")
    count(request, "compiled", 2)


def test_rows_are_there() -> None:
    assert len(ROWS) > 700
