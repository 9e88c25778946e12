"""torch._dynamo's names that programs use beside torch.compile: see `warptape.compiler`."""

from typing import Any

from .._missing import lookup as _lookup
from ..compiler import allow_in_graph, disable, is_compiling, reset
from . import config


def graph_break(msg: str = "") -> None:
    """Nothing: there is no graph."""


def mark_dynamic(t: Any, index: Any, **options: Any) -> None:
    """Nothing: shapes may change from call to call."""


mark_static = maybe_mark_dynamic = mark_dynamic

__getattr__ = _lookup(__name__)
