"""torch._dynamo's names that programs use beside torch.compile: see `warptape.compiler`."""

from collections.abc import Callable
from typing import Any

from warptape.compiler import (
    Explanation,
    allow_in_graph,
    assume_constant_result,
    disable,
    is_compiling,
    reset,
)
from warptape.compiler import compile as _compile
from warptape.compiler.eval_frame import OptimizedModule

from . import config, exc


def graph_break(msg: str = "") -> None:
    """Nothing: a compiled function goes on as it was written."""


def explain(f: Callable[..., Any]) -> Callable[..., Explanation]:
    """What compiling `f` does: call the result with `f`'s arguments."""

    def call(*args: Any, **kwargs: Any) -> Explanation:
        compiled = _compile(f)
        compiled(*args, **kwargs)
        return compiled.explain()

    return call


def mark_dynamic(t: Any, index: Any, **options: Any) -> None:
    """Nothing: shapes may change from call to call."""


def mark_static_address(t: Any, guard: bool = True) -> None:
    """Nothing: a program takes its tensors' addresses anew at each run."""


mark_static = maybe_mark_dynamic = mark_dynamic
