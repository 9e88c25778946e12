"""The op table's vocabulary: one `Op` is one row, and says all that the drivers need to know of it.

Samples are written as NumPy arrays and Python values. A float64 array stands for "a tensor of the dtype under
test" and is cast to it; an integer or boolean array is an index or a mask and keeps its dtype. References are
NumPy or SciPy functions; they see the same arguments, rounded to the tested dtype and widened again to
float64, int64 or bool.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
SIGNED = FLOATS + INTS[:-1]
NUMERIC = FLOATS + INTS
INTEGRAL = (*INTS, "bool")
ALL = (*NUMERIC, "bool")

# (relative, absolute) per dtype of the result. Inputs are rounded first: only the op's own error counts.
TOLERANCE: Mapping[str, tuple[float, float]] = {
    "float64": (1e-12, 1e-12),
    "float32": (3e-6, 3e-6),
    "float16": (2e-3, 2e-3),
    "bfloat16": (1.6e-2, 1.6e-2),
}
LAYOUTS = ("transposed", "stepped", "offset", "expanded")


@dataclasses.dataclass(frozen=True)
class D:
    """A dtype among a sample's arguments, by name: `D("float64")` becomes `warptape.float64`."""

    name: str


@dataclasses.dataclass(frozen=True)
class Under:
    """The dtype under test among a sample's arguments."""


@dataclasses.dataclass(frozen=True)
class Sample:
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dtypes: tuple[str, ...] | None = None  # None: all dtypes of the row
    grad: bool = (
        True  # False: a point where the op has no derivative (a kink, an integer, an empty reduction)
    )


def S(*args: Any, **kwargs: Any) -> Sample:
    """One call of the op. `only=`: in some dtypes alone; `grad=False`: not in gradient checks."""
    only, grad = kwargs.pop("only", None), kwargs.pop("grad", True)
    return Sample(args, kwargs, only, grad)


@dataclasses.dataclass(frozen=True)
class Err:
    """A call that must be refused: its arguments, the class of the error, a pattern for the message."""

    kind: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    match: str | None
    dtype: str
    stricter: bool  # PyTorch accepts the call, and gives numbers without meaning
    host: bool  # found by looking at values, which other devices than the CPU do not do


def E(kind: str, *args: Any, **kwargs: Any) -> Err:
    """An error case; `kind` may be several classes, as "A|B". `match=` replaces the op's name as the pattern,
    `dtype=` is what float arrays become, `stricter=` marks what PyTorch lets pass, `host=`
    what only the CPU finds."""
    match, dtype = kwargs.pop("match", None), kwargs.pop("dtype", "float32")
    stricter, host = kwargs.pop("stricter", False), kwargs.pop("host", False)
    return Err(kind, args, kwargs, match, dtype, stricter, host)


@dataclasses.dataclass(frozen=True)
class Op:
    """One row. `name` is the path below the package: "add", "nn.functional.softmax", "Tensor.view"."""

    name: str
    samples: Callable[[Rng], Sequence[Sample]]
    ref: Callable[..., Any] | None  # None: random or uninitialised; `check` judges the result instead
    call: Callable[..., Any] | None = None  # call(runtime, *args); default: the attribute `name` itself
    check: Callable[..., None] | None = None  # check(result as NumPy, *args)
    label: str | None = None  # tells rows of one op apart: "max" and "max with dim"
    dtypes: tuple[str, ...] = FLOATS
    result: str | Callable[[str], str] | tuple[str, ...] = "same"
    grad: bool = True
    second: bool = True
    nograd: tuple[int | str, ...] = ()  # positions or keywords whose tensors take no gradient
    method: bool = False  # x.op(...) exists as well
    inplace: str | None = None  # the in-place twin's method name
    aliases: tuple[str, ...] = ()  # other paths of the op; a name that ends in _ is its in-place form
    out: bool = False  # accepts out=
    out_casts: bool = False  # out= may be of a narrower kind, for it says the dtype to compute in
    broadcast: int = 0  # so many leading tensors broadcast against each other
    exact: bool = False  # moves values only: equal to the bit in every dtype
    tol: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    view: bool = False  # the result aliases the first argument
    layouts: tuple[str, ...] = LAYOUTS
    meta: bool | None = (
        True  # False: the result depends on data, and on meta it must be refused; None: not asked
    )
    factory: bool = False  # takes device=; makes a tensor of nothing
    seeded: bool = False  # the same seed must give the same result
    errors: tuple[Err, ...] = ()
    peer: tuple[str, ...] = ()  # checks in which PyTorch itself fails or differs by design
    peer_reason: str = ""  # why; asked where a comparison with PyTorch is expected to fail
    python: bool = False  # a Python function by design (no generic argument-type errors are asked of it)

    @property
    def id(self) -> str:
        return self.label or self.name

    @property
    def short(self) -> str:
        """The name as an error message must have it."""
        return self.name.rpartition(".")[2]

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every other path by which the op is reached: its method, its in-place method, its aliases."""
        found = (f"Tensor.{self.short}",) * self.method + self.aliases
        found += (f"Tensor.{self.inplace}",) if self.inplace else ()
        return tuple(dict.fromkeys(path for path in found if path != self.name))

    def tolerance(self, dtype: str) -> tuple[float, float]:
        """(relative, absolute) for a result of `dtype`."""
        if self.exact or dtype not in TOLERANCE:
            return (0.0, 0.0)
        return self.tol.get(dtype, TOLERANCE[dtype])

    def rng(self) -> Rng:
        """The row's own generator: samples do not depend on which other rows were run."""
        return Rng(zlib.crc32(self.id.encode()))


class Rng:
    """Draws sample arrays that stay clear of kinks, so that finite differences are meaningful."""

    def __init__(self, seed: int):
        self.np = np.random.default_rng(seed)
        self.draws = 0

    def __call__(self, *shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
        """Distinct values in [low, high], at least 0.05 from every multiple of one half. Successive draws
        lie on shifted grids, so that two tensors of one shape have no value in common."""
        count = math.prod(shape)
        phase = (0.15, 0.4, 0.65, 0.9)[self.draws % 4]
        self.draws += 1
        grid = np.linspace(low, high, count + 2)[:-2] * 2 + (1 + phase) * 2 * (high - low) / (count + 3)
        cell = np.floor(grid)
        values = (cell + 0.1 + 0.8 * (grid - cell)) / 2
        return self.np.permutation(values).reshape(shape)

    def positive(self, *shape: int, low: float = 0.5, high: float = 3.0) -> np.ndarray:
        """Values that may be divided by, or taken the logarithm of."""
        return self(*shape, low=low, high=high)

    def unit(self, *shape: int) -> np.ndarray:
        """Values inside (-0.9, 0.9)."""
        return self(*shape, low=-0.9, high=0.9)

    def prob(self, *shape: int) -> np.ndarray:
        """Values inside (0.05, 0.95)."""
        return np.asarray(self.np.uniform(0.05, 0.95, shape))

    def distinct(self, *shape: int) -> np.ndarray:
        """Values that differ in every dtype (n halves and a quarter): for sorting and arg-reductions."""
        count = math.prod(shape)
        return np.asarray(self.np.permutation(count) / 2 + 0.25).reshape(shape)

    def index(self, *shape: int, high: int, low: int = 0) -> np.ndarray:
        """Indices in [low, high)."""
        return np.asarray(self.np.integers(low, high, shape, dtype=np.int64))

    def mask(self, *shape: int) -> np.ndarray:
        """Booleans, mixed."""
        return np.asarray(self.np.random(shape) < 0.5)


def writes(path: str) -> bool:
    """True for the path of an in-place op: "abs_", not "__add__"."""
    return path.endswith("_") and not path.endswith("__")


def twins(*names: str) -> tuple[str, ...]:
    """For names of a function: function and method, each out of place and in place."""
    return tuple(f"{where}{name}{end}" for name in names for where in ("", "Tensor.") for end in ("", "_"))


def tree_map(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies `function` to the leaves of nested lists, tuples and dicts of arguments."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(tree_map(function, item) for item in value)
    if isinstance(value, dict):
        return {key: tree_map(function, item) for key, item in value.items()}
    return function(value)


def expected_dtype(rule: str | Callable[[str], str], dtype: str) -> str:
    """The dtype of a result for inputs of `dtype`: a rule, a dtype's name, or a function."""
    if callable(rule):
        return rule(dtype)
    if rule == "same":
        return dtype
    if rule == "float":
        return dtype if dtype in FLOATS else "float32"
    if rule == "sum":
        return dtype if dtype in FLOATS else "int64"
    return rule
