"""Formulas as text: what is computed is what is printed.

A cost model is a list of terms in order; a formula reads inputs and the terms before it. Inputs may be
numbers or NumPy arrays with one element a layout, so one evaluation serves a hundred thousand layouts, and
the same evaluation of one layout is its explanation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any

import numpy as np

_NAME = re.compile(r"[A-Za-z_]\w*")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "max": np.maximum,
    "min": np.minimum,
    "ceil": np.ceil,
    "floor": np.floor,
    "log2": np.log2,
    "where": np.where,
}


@dataclass(frozen=True)
class Term:
    """One term: name = formula, in a unit ("B", "s", "FLOP" or ""), and what it is in words.

    Args:
        formula: an expression of Python, of other terms and inputs.
    """

    name: str
    unit: str
    formula: str
    what: str

    @cached_property
    def code(self) -> CodeType:
        """The formula, compiled. It is text of this package, never of a user."""
        return compile(self.formula, f"<{self.name}>", "eval")

    @property
    def reads(self) -> list[str]:
        """The names in the formula, each once."""
        return [n for n in dict.fromkeys(_NAME.findall(self.formula)) if n not in FUNCTIONS]


@dataclass(frozen=True)
class CostModel:
    """Terms, and functions that formulas may call besides those of `FUNCTIONS`.

    Args:
        terms: each may use those before it.
        functions: by name.
    """

    terms: Sequence[Term]
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def evaluate(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs and all terms by name.

        Args:
            inputs: numbers or arrays by name.
        """
        values = dict(inputs)
        scope = {"__builtins__": {}, **FUNCTIONS, **self.functions}
        with np.errstate(divide="ignore", invalid="ignore"):
            for term in self.terms:
                values[term.name] = eval(term.code, scope, values)
        return values


def terms(text: str) -> list[Term]:
    """Terms of lines "name [unit] = formula"; indented lines go on, and what is after # is what the term
    is in words. Lines that begin with # belong to none."""
    taken: list[list[str]] = []  # of each term: formula, words
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        formula, _, words = line.partition("#")
        if line[0] != " ":
            taken.append(["", ""])
        taken[-1][0] += " " + formula.strip()
        taken[-1][1] += " " + words.strip()
    out = []
    for formula, words in taken:
        head, _, rest = formula.partition("=")
        name, _, unit = head.partition("[")
        out.append(Term(name.strip(), unit.strip(" ]"), " ".join(rest.split()), " ".join(words.split())))
    return out
