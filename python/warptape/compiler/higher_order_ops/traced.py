"""Control flow while a graph is recorded: the functions become graphs of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor

from .utils import Leaves, check_alike


def _graph_of(name: str, function: Callable[..., tuple[Any, ...]], inputs: Leaves) -> tuple[Any, ...]:
    """The graph of function(*inputs), what of the surrounding trace it used, and its results."""
    if not all(isinstance(x, Tensor) for x in inputs):
        raise RuntimeError(f"{name}: within a graph the operands must be tensors, not numbers")
    tracer = _C._Tracer(inputs)
    try:
        # Tensors of their own: what the function uses otherwise is another value, the same object or not.
        own = tracer.inputs
        outputs = [x if isinstance(x, Tensor) else wt.tensor(x) for x in function(*own)]
        graph = tracer.finish(outputs)
    finally:
        tracer.end()
    return graph, tracer.captured, outputs


def cond(
    pred: Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Leaves
) -> tuple[Any, ...]:
    """`cond_op` in a trace: both functions run on the operands."""
    *taken, of_true = _graph_of("cond", true_fn, operands)
    *other, of_false = _graph_of("cond", false_fn, operands)
    check_alike("cond: the results of the branches", of_true, of_false, sizes=False)
    return tuple(_C._tracer().control("cond", [[pred], operands], [taken, other]))


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Leaves) -> tuple[Any, ...]:
    """`while_loop_op` in a trace: the body runs once more than the loop."""
    *condition, proceeds = _graph_of("while_loop", cond_fn, carried)
    if proceeds[0].dim() != 0 or proceeds[0].dtype != wt.bool:
        raise RuntimeError(
            f"while_loop: cond_fn must return a boolean scalar tensor or a boolean but got {proceeds[0]}"
        )
    *body, results = _graph_of("while_loop", body_fn, carried)
    check_alike("while_loop: the results of body_fn and the carried values", results, carried)
    return tuple(_C._tracer().control("while_loop", [carried, []], [condition, body]))


def scan(combine_fn: Callable[..., Any], init: Leaves, xs: Leaves) -> tuple[tuple[Any, ...], list[Any]]:
    """`scan_op` in a trace: combine_fn runs once more than the scan."""
    *body, results = _graph_of("scan", combine_fn, (*init, *[x[0] for x in xs]))
    check_alike("scan: the carry that combine_fn returns and init", results[: len(init)], init)
    out = _C._tracer().control("scan", [init, xs, []], [body])
    return tuple(out[: len(init)]), out[len(init) :]
