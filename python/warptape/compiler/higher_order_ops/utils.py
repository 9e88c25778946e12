"""What control flow asks of the functions that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warptape import _C
from warptape import core as wt
from warptape.core import DeviceError, Tensor
from warptape.core.overrides import TorchFunctionMode
from warptape.core.pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

Leaves = Sequence[Any]


class Flat:
    """A function of trees as one of leaves; `out_spec` is how its last result was made of its leaves."""

    def __init__(self, function: Callable[..., Any], in_spec: TreeSpec) -> None:
        self.function, self.in_spec = function, in_spec
        self.out_spec: Any = None  # until the first call

    def __call__(self, *leaves: Any) -> tuple[Any, ...]:
        """The leaves of what the function returns for arguments with these leaves."""
        result = self.function(*tree_unflatten(leaves, self.in_spec))
        outputs, self.out_spec = tree_flatten(result)
        return tuple(outputs)


def call(name: str, function: Callable[..., tuple[Any, ...]], inputs: Leaves) -> tuple[Any, ...]:
    """function(*inputs), which must leave its inputs as they are and return new tensors.

    Raises:
        RuntimeError: it wrote to one, or returned an input, one tensor twice, or a view of these. What
            shares memory by detach() or .data goes unnoticed.
    """
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    versions = [x._version for x in tensors]
    outputs = function(*inputs)
    if [x._version for x in tensors] != versions:
        raise RuntimeError(f"{name}: a function writes to one of its inputs; let it clone() that first")
    taken = [_base(x) for x in tensors]
    for base in (_base(x) for x in outputs if isinstance(x, Tensor)):
        if any(base is other for other in taken):
            raise RuntimeError(
                f"{name}: a function returns one of its inputs, a tensor twice, or a view of these; "
                "let it return a clone()"
            )
        taken.append(base)
    return outputs


def _base(x: Tensor) -> Tensor:
    return x if x._base is None else x._base


def check_alike(what: str, first: Leaves, second: Leaves, sizes: bool = True) -> None:
    """Leaves of two trees must agree in number, kind, dtype and number of dims, with `sizes` also in shape
    and device. Raises RuntimeError."""
    of_first, of_second = ([_metadata(x, sizes) for x in leaves] for leaves in (first, second))
    if of_first != of_second:
        texts = (", ".join(" ".join(map(str, leaf)) for leaf in leaves) for leaves in (of_first, of_second))
        raise RuntimeError(f"{what} differ: ({next(texts)}) and ({next(texts)})")


def _metadata(x: object, sizes: bool) -> tuple[Any, ...]:
    if not isinstance(x, Tensor):
        return ("int" if isinstance(x, int) else type(x).__name__,)
    return (x.dtype, x.shape, x.device) if sizes else (x.dtype, x.dim(), "dims")


def stacked(name: str, rows: Sequence[Leaves], kinds: Any = Tensor) -> list[Any]:
    """The leaves of all steps, each stacked along a new first dim; None stays None."""
    for x in rows[0]:
        if not isinstance(x, kinds):
            raise RuntimeError(f"{name}: a function must return tensors, got {type(x).__name__}")
    return [None if column[0] is None else wt.stack(column) for column in zip(*rows, strict=True)]


class _OnMeta(TorchFunctionMode):
    """Ops on stand-ins of tensors on the meta device, whatever tensors a function brings along."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}  # by id, with the tensor that has it

    def of(self, x: object) -> Any:
        """The stand-in of a tensor; all else as it is."""
        if not isinstance(x, Tensor) or x.is_meta:
            return x
        if id(x) not in self._made:
            options: dict[str, Any] = {"dtype": x.dtype, "device": "meta", "requires_grad": x.requires_grad}
            self._made[id(x)] = x, wt.empty_strided(x.shape, x.stride(), **options)
        return self._made[id(x)][1]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = tree_map(self.of, (args, kwargs or {}))
        if "device" in kwargs:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def on_meta(function: Callable[..., tuple[Any, ...]], inputs: Leaves) -> tuple[Any, ...] | None:
    """What a function returns for tensors without values or memory; None where it depends on values. Neither
    what it captured nor the generator changes."""
    mode, device = _OnMeta(), wt.get_default_device()
    metas, state = [mode.of(x) for x in inputs], wt.get_rng_state()
    _C._set_default_device("meta")
    try:
        with mode:
            return function(*metas)
    except (DeviceError, NotImplementedError):
        return None
    finally:
        _C._set_default_device(device)
        wt.set_rng_state(state)
