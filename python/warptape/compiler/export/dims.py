"""Sizes of inputs that vary: how a user names them, and where they are in the inputs."""

from __future__ import annotations

from typing import Any

from warptape import core as wt

from ...core import Tensor
from ...core.pytree import tree_flatten


class _Hint:
    """A size that is to be found out."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Dim.{self.name}"


class Dim:
    """A size that may be anything from `min` to `max`, with a name.

    Used twice it is one size; `2 * d + 1` is one that follows from it. `Dim.DYNAMIC` and `Dim.AUTO` stand for
    one of its own, `Dim.STATIC` for the size of the example.

    Raises:
        ValueError: an empty range, or a name that is none.
    """

    AUTO, DYNAMIC, STATIC = _Hint("AUTO"), _Hint("DYNAMIC"), _Hint("STATIC")

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not name.isidentifier() or name in ("inf", "nan", "complex", "True", "False", "None"):
            raise ValueError(f"Dim: {name!r} is no name")
        self.min = 0 if min is None else min
        self.max = (1 << 63) - 1 if max is None else max
        if not 0 <= self.min <= self.max:
            raise ValueError(f"Dim: expected 0 <= min <= max for {name}, got min={min}, max={max}")
        self.__name__ = name
        self.root, self.factor, self.offset = self, 1, 0

    def _line(self, factor: int, offset: int) -> Dim:
        out = Dim(self.root.__name__, min=self.root.min, max=self.root.max)
        out.root, out.factor, out.offset = self.root, self.factor * factor, self.offset * factor + offset
        if out.factor <= 0:
            raise NotImplementedError(f"Dim: a size must grow with {out.root.__name__}")
        out.__name__ = f"{out.factor}*{self.root.__name__}" + (f" + {out.offset}" if out.offset else "")
        return out

    def __mul__(self, factor: int) -> Dim:
        return self._line(factor, 0)

    __rmul__ = __mul__

    def __add__(self, offset: int) -> Dim:
        return self._line(1, offset)

    __radd__ = __add__

    def __sub__(self, offset: int) -> Dim:
        return self._line(1, -offset)

    def __repr__(self) -> str:
        return f"Dim('{self.__name__}', min={self.min}, max={self.max})"


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """Makes several Dims of one range.

    Args:
        *names: of the Dims.
        min, max: the range; open where it is None.

    >>> batch, length = torch.export.dims("batch", "length", max=64)
    """
    return tuple(Dim(name, min=min, max=max) for name in names)


class ShapesCollection:
    """Says which sizes vary, tensor by tensor: `shapes[x] = {0: batch}`.

    It goes to `torch.export.export` as `dynamic_shapes`.
    """

    def __init__(self) -> None:
        self._of: dict[int, Any] = {}

    def __setitem__(self, t: Tensor, shape: Any) -> None:
        self._of[id(t)] = shape

    def __getitem__(self, t: Tensor) -> Any:
        return self._of.get(id(t))

    def dynamic_shapes(
        self, m: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """The entries for the tensors of a call.

        Args:
            m: not looked at.
            args, kwargs: of the call.

        Returns:
            One entry for each tensor of (args, kwargs), in order; None of one that was not set.
        """
        return [self._of.get(id(x)) for x in tree_flatten((args, kwargs or {}))[0] if isinstance(x, Tensor)]


def spread(spec: Any, tree: Any, where: str = "dynamic_shapes") -> list[Any]:
    """What `spec` says of each leaf of `tree`: None, {dim: Dim} or one Dim for each dim.

    Raises:
        ValueError: a spec that is not nested as the tree.
    """
    if isinstance(tree, Tensor):
        return [spec]
    if spec is None or isinstance(spec, ShapesCollection):
        return [None] * len(tree_flatten(tree)[0])
    if isinstance(tree, dict):
        if not isinstance(spec, dict) or spec.keys() != tree.keys():
            raise ValueError(f"{where}: expected an entry for each of {list(tree)}, got {spec}")
        return [x for key in tree for x in spread(spec[key], tree[key], f"{where}[{key!r}]")]
    if isinstance(tree, (tuple, list)):
        if not isinstance(spec, (tuple, list)) or len(spec) != len(tree):
            raise ValueError(f"{where}: expected {len(tree)} entries, got {spec}")
        return [x for i, part in enumerate(tree) for x in spread(spec[i], part, f"{where}[{i}]")]
    raise ValueError(f"{where}: expected None for an argument that is no tensor, got {spec}")


class Sizes:
    """Which sizes of which inputs vary, and with which symbol: input's and dim's place -> Dim."""

    def __init__(self, tensors: list[Tensor], specs: list[Any]) -> None:
        self.places: dict[tuple[int, int], Dim] = {}
        self.symbols: list[Dim] = []
        self.examples: list[int] = []
        for i, (t, spec) in enumerate(zip(tensors, specs, strict=True)):
            items = spec.items() if isinstance(spec, dict) else enumerate(spec or ())
            for dim, of in items:
                if not -t.dim() <= dim < t.dim():
                    raise ValueError(f"dynamic_shapes: input {i} of shape {list(t.shape)} has no dim {dim}")
                self._add(i, dim % t.dim(), of, t.shape[dim])

    def _add(self, i: int, dim: int, of: Any, size: int) -> None:
        if of is None or of is Dim.STATIC or (isinstance(of, int) and of == size):
            return
        if isinstance(of, _Hint):
            of = Dim(f"s{len(self.symbols)}")
        if not isinstance(of, Dim):
            raise ValueError(f"dynamic_shapes: expected a Dim for dim {dim} of input {i}, got {of!r}")
        root, (value, rest) = of.root, divmod(size - of.offset, of.factor)
        if rest or not root.min <= value <= root.max:
            raise ValueError(
                f"dynamic_shapes: size {size} of dim {dim} of input {i} is no {of.__name__} with "
                f"{root.__name__} in [{root.min}, {root.max}]"
            )
        known = next((s for s, d in enumerate(self.symbols) if d.__name__ == root.__name__), None)
        if known is None:
            self.symbols.append(root)
            self.examples.append(value)
        elif self.examples[known] != value or (self.symbols[known].min, self.symbols[known].max) != (
            root.min,
            root.max,
        ):
            raise ValueError(
                f"dynamic_shapes: {root.__name__} is {self.examples[known]} and, in dim {dim} of input {i}, "
                f"{value}"
            )
        self.places[i, dim] = of

    def second(self, s: int) -> list[int]:
        """What symbol `s` may be beside the example's size: multiples come first, as what must be divisible
        stays so.

        Raises:
            ValueError: nothing.
        """
        d, n = self.symbols[s], self.examples[s]
        tried = (2 * n, 3 * n, 4 * n, n + 1, n + 2, n - 1, n - 2, n // 2)
        fit = [x for x in dict.fromkeys(tried) if x != n and x > 0 and d.min <= x <= d.max]
        if not fit:
            raise ValueError(f"dynamic_shapes: {d.__name__} can be {n} alone; leave it out")
        return fit

    def checked(self, high: list[int], tensors: list[Tensor], thorough: bool) -> list[list[int]]:
        """Sizes of all symbols to check what was recorded at the example's and at `high`: a multiple, and if
        `thorough` some that divide nothing, and the upper end where that is near."""
        columns = []
        largest = max([t.numel() for t in tensors], default=1)
        for s, (d, n, h) in enumerate(zip(self.symbols, self.examples, high, strict=True)):
            more = [n + 1, n + 3, h + 1, 2 * h + 5] if thorough else [n + 1]
            if thorough and d.max * max(largest // max(n, 1), 1) <= 1 << 22:
                more.append(d.max)
            fit = [x for x in (*self.second(s), *more) if x not in (n, h) and d.min <= x <= d.max]
            multiple = [x for x in fit if x in self.second(s)][:1]
            columns.append([*multiple, *(x for x in more if x in fit and x not in multiple)] or [h])
        rows = max(map(len, columns), default=0)
        return [[c[min(k, len(c) - 1)] for c in columns] for k in range(rows)]

    def low_ends(self) -> list[tuple[int, list[int]]]:
        """(symbol, sizes of all) with one symbol at 1, then 0, where these are in its range."""
        return [
            (s, [size if k == s else n for k, n in enumerate(self.examples)])
            for s, d in enumerate(self.symbols)
            for size in (1, 0)
            if d.min <= size < self.examples[s]
        ]

    def resized(self, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
        """The inputs with other sizes, their values repeated as often as they are needed."""
        of = {d.__name__: n for d, n in zip(self.symbols, sizes, strict=True)}
        out = list(tensors)
        for (i, dim), d in self.places.items():
            n = d.factor * of[d.root.__name__] + d.offset
            index = wt.arange(n, device=out[i].device) % max(tensors[i].shape[dim], 1)
            out[i] = out[i].detach().index_select(dim, index)
        return out
