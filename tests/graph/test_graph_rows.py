"""Every row of the op table as a graph: recorded, written to a file's bytes, read and run."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
from op_table import checks, convert
from op_table.driver import callable_of, count, rows
from op_table.table import FLOATS, Op

from .outcomes import differences, summary
from .test_op_table import GARBAGE, SEED, chosen

Request = pytest.FixtureRequest


def through_a_file(rt: Any, function: Any) -> Any:
    """The same function of a graph that was written and read."""
    graph, spec = rt._C._OpGraph.from_bytes(function.graph.to_bytes("spec"))
    assert spec == "spec" and graph.text() == function.graph.text()
    function.graph = graph
    return function


def outcome(rt: Any, call: Any, args: Any, kwargs: Any, values: bool) -> Any:
    rt.manual_seed(SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = call(*args, **kwargs)
            if not any(isinstance(x, rt.Tensor) for x in checks.tensors(rt, result)):
                result = None  # a number or a list is part of the graph
        except Exception as error:
            return type(error).__name__
    return summary(rt, [list(checks.tensors(rt, result)), list(args), kwargs], values)


@rows(lambda op: True)
def test_row(rt: ModuleType, op: Op, request: Request) -> None:
    from warptape._graphs import record

    call = callable_of(rt, op, request)
    done = 0
    for dtype, layout, number, original, sample in chosen(request.config, op):

        def make() -> tuple[Any, Any]:
            if op.grad and dtype in FLOATS:
                return checks.leaves_of(rt, op, sample, original, dtype, layout)[:2]
            return convert.arguments(rt, sample, original, dtype, layout)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            return list(checks.tensors(rt, call(*args, **kwargs)))

        args, kwargs = make()
        args = tuple(args)
        want = outcome(rt, call, *make(), op.name not in GARBAGE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                function = record(recorded, args, kwargs)
            except NotImplementedError as error:
                assert "generator" in str(error), error
                continue
            except Exception as error:
                assert type(error).__name__ == want
                continue
        args, kwargs = make()
        args = tuple(args)
        got = outcome(rt, through_a_file(rt, function), args, kwargs, op.name not in GARBAGE)
        lines = list(differences(got, want))
        assert not lines, f"{checks.describe(op, dtype, number, sample)} {layout}:\n" + "\n".join(lines[:8])
        done += 1
    count(request, "as graphs", done)
