"""The op table: `ROWS` has one row an op, gathered from rows/, one file a family."""

import importlib
import pkgutil

from . import rows
from .table import Op

FAMILIES: dict[str, tuple[Op, ...]] = {
    module.name: tuple(importlib.import_module(f"{rows.__name__}.{module.name}").ROWS)
    for module in pkgutil.iter_modules(rows.__path__)
}
ROWS: tuple[Op, ...] = tuple(op for family in FAMILIES.values() for op in family)

_seen: set[str] = set()
for _op in ROWS:
    if _op.id in _seen:
        raise ValueError(f"op table: two rows are called {_op.id!r}; give one a label")
    _seen.add(_op.id)
