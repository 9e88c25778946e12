"""Every row of the op table as a graph: recorded, written to a file, read and run; as Python source; and
optimised, where what the passes believe of memory is compared with what happened."""

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


def as_source(rt: Any, function: Any) -> Any:
    """A module whose source makes the same calls."""
    from warptape.export._fx import to_fx

    module = to_fx(function)
    return lambda *args, **kwargs: module(*function.tensors(args, kwargs))


def optimised(rt: Any, function: Any) -> Any:
    """The same function after all passes that keep every bit."""
    function.graph.optimise()
    return function


def frozen(rt: Any, function: Any) -> Any:
    """The same function after all passes that keep every bit of results."""
    function.graph.optimise(freeze=True, gradients=False)
    return function


def ids(x: Any) -> Any:
    """The values that an argument of a call names."""
    if isinstance(x, list):
        return {i for item in x for i in ids(item)}
    return {x.id} if hasattr(x, "id") else set()


def check_memory(graph: Any, where: str) -> None:
    """No result lies on the memory of an argument but those that the passes count on."""
    memory = [v[4] for v in graph.values]
    shares = zip(graph.calls, graph.may_share_memory(), graph.written(), strict=True)
    for (name, args, outputs, _), may_share, written in shares:
        known = {memory[i] for i in written}
        read = {memory[i] for i in ids(list(args.values()))} - known
        for out in outputs:
            assert out is None or may_share or memory[out] not in read, f"{where}: {name} shares memory"


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


def check(rt: Any, op: Op, call: Any, make: Any, form: Any, where: str) -> int:
    """Runs what `make` gives the arguments of as it is and as a graph."""
    from warptape._graphs import record

    def recorded(*args: Any, **kwargs: Any) -> Any:
        return list(checks.tensors(rt, call(*args, **kwargs)))

    want = outcome(rt, call, *make(), op.name not in GARBAGE)
    function, failed = None, ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function = record(recorded, *make())
        except Exception as error:
            failed = type(error).__name__
            refused = "generator" in str(error)
    if function is None:
        assert failed == want or refused, where
        return 0
    if form is optimised:
        check_memory(function.graph, where)
    args, kwargs = make()
    lines = list(differences(outcome(rt, form(rt, function), args, kwargs, op.name not in GARBAGE), want))
    assert not lines, f"{where}:\n" + "\n".join(lines[:8])
    return 1


@pytest.mark.parametrize("form", [through_a_file, as_source, optimised, frozen])
@rows(lambda op: op.name != "Tensor.data_ptr")  # another run has another address: test_jit
def test_row(rt: ModuleType, op: Op, form: Any, request: Request) -> None:
    call = callable_of(rt, op, request)
    done = 0
    for found in chosen(request.config, op):
        dtype, layout, number, _, sample = found

        def make(found: Any = found) -> tuple[Any, Any]:
            dtype, layout, _, original, sample = found
            if op.grad and dtype in FLOATS:
                args, kwargs, _ = checks.leaves_of(rt, op, sample, original, dtype, layout)
            else:
                args, kwargs = convert.arguments(rt, sample, original, dtype, layout)
            return tuple(args), kwargs

        done += check(rt, op, call, make, form, f"{checks.describe(op, dtype, number, sample)} {layout}")
    count(request, "as graphs", done)
