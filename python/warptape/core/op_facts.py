"""What C++ declares of ops, by their names, and tables of rules that are keyed by it.

A rule that holds for every op of a kind stands in its table once, under the fact that these ops declare
(csrc/op/facts.h), so that a new op of the kind needs no entry. An op of which it does not hold has one by its
name, which goes before.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from .. import _C

Rule = TypeVar("Rule")
_PLACES = (_C._functions, _C.TensorBase, _C._nn, _C._linalg, _C._special, _C._fft, _C._private)
_OP: type = type(_C._functions.add)


@functools.cache
def op_named(name: str) -> Any:
    """The op that C++ declares by a name, or None: of those of one name a function, a method, one of nn ..

    Args:
        name: as in C++, in-place forms with their underscore.
    """
    candidates = (vars(place).get(name) for place in _PLACES)
    return next((op for op in candidates if isinstance(op, _OP)), None)


@functools.cache
def facts_of(name: str) -> tuple[str, ...]:
    """What an op declares, as keys of a table: "aliasing=view", "copies", "role=product", in this order.

    Args:
        name: of the op, or of its in-place form.

    >>> from warptape.core.op_facts import facts_of
    >>> facts_of("addmm_"), facts_of("double"), facts_of("softmax")
    (('role=add_product',), ('aliasing=conversion', 'role=pointwise'), ())
    """
    op = op_named(name.removesuffix("_")) or op_named(name)
    if op is None:
        return ()
    stated = [f"aliasing={op._aliasing}", "copies" if op._is_copy else "", f"role={op._role}"]
    return tuple(fact for fact in stated if fact not in ("aliasing=none", "", "role=opaque"))


class OpTable(dict[str, Rule]):
    """Rules by the name of an op, or by a fact that its declaration states."""

    def find(self, name: str) -> Rule | None:
        """The rule of an op: by its name, by that of the op whose in-place form it is, or by a fact.

        Args:
            name: of the op.
        """
        keys = name, *((name.removesuffix("_"),) if not name.startswith("__") else ()), *facts_of(name)
        return next((self[key] for key in keys if key in self), None)
