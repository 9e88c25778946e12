"""Finding faults in a program: the op that first made NaN, what keeps a tensor alive, tensors left behind.

`autograd.detect_anomaly` names the forward line of a backward call that returned NaN; this is for the rest.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ..core import Tensor, is_complex, is_floating_point, isinf, isnan
from ..core.by_name import tensors_in
from ..core.overrides import TorchFunctionMode, resolve_name

__all__ = ["Leaks", "detect_nan", "find_leaks", "holders", "live_tensors"]


def _tensors(value: object) -> Iterator[Tensor]:
    """Floating-point tensors among (nested) arguments or results."""
    return (t for t in tensors_in(value) if is_floating_point(t) or is_complex(t))


class detect_nan(TorchFunctionMode):
    """Within it, the first op that returns NaN raises RuntimeError, on the line that called the op.

    Each result is read once more, and with `inf` infinite values count as well (masks hold them on purpose).
    Ops of the backward pass are seen by `autograd.detect_anomaly` instead.

    >>> import warptape
    >>> from warptape.utils.debugging import detect_nan
    >>> with detect_nan():
    ...     warptape.tensor([1.0, -1.0]).log()
    Traceback (most recent call last):
    RuntimeError: Tensor.log returned nan at 1 of 2 positions, first at [1], from inputs without nan
    """

    def __init__(self, *, inf: bool = False) -> None:
        super().__init__()
        self._inf = inf

    def _bad(self, t: Tensor) -> Tensor:
        return isnan(t) | isinf(t) if self._inf else isnan(t)

    def __torch_function__(
        self, func: Callable[..., Any], types: Collection[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        """Calls `func` and reads what it returns."""
        kwargs = kwargs or {}
        clean = not any(self._bad(t).any() for t in _tensors([args, kwargs]))
        result = func(*args, **kwargs)
        for t in _tensors(result):
            bad = self._bad(t.detach())
            if bad.any():
                name = str(resolve_name(func) or getattr(func, "__name__", ""))
                raise RuntimeError(self._message(name.removeprefix("torch."), bad, clean))
        return result

    def _message(self, name: str, bad: Tensor, clean: bool) -> str:
        kind = "nan or inf" if self._inf else "nan"
        first = bad.nonzero()[0].tolist()
        source = f"from inputs without {kind}" if clean else f"from inputs that held {kind} already"
        where = f"at {int(bad.sum())} of {bad.numel()} positions, first at {first}"
        return f"{name} returned {kind} {where}, {source}"


def live_tensors() -> list[Tensor]:
    """Every tensor that Python objects hold, largest storage (in bytes) first.

    Tensors that only the tape or another C++ object holds are not among them: `holders` looks there.
    """
    tensors = [obj for obj in gc.get_objects() if isinstance(obj, Tensor)]
    return sorted(tensors, key=lambda t: -_bytes(t))


def _storage(t: Tensor) -> int:
    try:
        return t.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError, ValueError):
        return -id(t)  # no other tensor's


def _bytes(t: Tensor) -> int:
    try:
        return t.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, or a lazy module's parameter
        return 0


def _saved_by(tensor: Tensor, roots: list[Tensor]) -> Iterator[str]:
    """Backward nodes, reachable from `roots`, that saved the storage of `tensor`."""
    seen: set[Any] = set()
    wanted = _storage(tensor)
    for root in roots:
        waiting = [root.grad_fn] if root.grad_fn is not None else []
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            try:
                saved = [t for t in node.saved_tensors if isinstance(t, Tensor)]
            except (
                Exception
            ):  # freed by backward, a node that saves none, or what a hook of the user's raises
                saved = []
            if any(_storage(t) == wanted for t in saved):
                shape = tuple(root.shape)
                yield f"{node.name()} saved it for backward, in the graph of a tensor of shape {shape}"
            waiting += [nxt for nxt, _ in node.next_functions]


def _name_in(owner: Any, value: Any) -> str:
    """Under which key or index `owner` holds `value`. No comprehension: its closure would hold it."""
    if isinstance(owner, (list, tuple)):
        for i, item in enumerate(owner):
            if item is value:
                return f"[{i}]"
        return ""
    named = isinstance(owner, dict)
    for key, item in (owner if named else vars(owner)).items():
        if item is value:
            return f"[{key!r}]" if named else f".{key}"
    return ""


def _frames() -> Iterator[types.FrameType]:
    """Frames of all threads but those of this file; the collector does not list frames that run."""
    for top in sys._current_frames().values():
        frame: types.FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename != __file__:
                yield frame
            frame = frame.f_back


def _locals_that_are(value: Any, path: str) -> Iterator[str]:
    for frame in _frames():
        if frame.f_locals is frame.f_globals:  # a module's: among the globals
            continue
        for name, local in frame.f_locals.items():
            if local is value:
                code = frame.f_code
                yield f"local variable {name}{path} of {code.co_name} ({code.co_filename}:{frame.f_lineno})"


def _paths(value: Any, path: str, depth: int, ignore: set[int]) -> Iterator[str]:
    """How Python reaches `value`: names from a module's globals, a frame's locals or an object downwards."""
    yield from _locals_that_are(value, path)
    modules = {id(vars(m)): n for n, m in list(sys.modules.items()) if isinstance(m, types.ModuleType)}
    ignore = ignore | {id(value)}
    referrers = gc.get_referrers(value)
    ignore.add(id(referrers))
    for owner in referrers:
        if id(owner) in ignore or isinstance(owner, types.FrameType):
            continue
        if id(owner) in modules:
            yield f"global variable {modules[id(owner)]}.{_name_in(owner, value)[2:-2]}{path}"
        elif isinstance(owner, types.CellType):
            yield f"a closure's variable{path}"
        elif isinstance(owner, (dict, list, tuple)) or hasattr(owner, "__dict__"):
            if getattr(owner, "__dict__", None) is value:  # [name] of its dict is .name of the object
                key, _, rest = path.partition("]")
                longer = f".{key[2:-1]}{rest}"
            else:
                longer = _name_in(owner, value) + path
                if longer == path:  # a generator's internals
                    continue
            above = list(_paths(owner, longer, depth - 1, ignore)) if depth else []
            yield from above or [f"{type(owner).__name__}{longer}"]


def holders(tensor: Tensor, *, depth: int = 4) -> list[str]:
    """What keeps the memory of `tensor`, a line each: variables, containers, modules, tensors, the tape.

    Args:
        tensor: its own references count, so a caller sees its own variable too.
        depth: how many containers above the tensor are named.

    Returns:
        Lines in no order; empty where only C++ holds the memory, for example a pending collective.
    """
    gc.collect()
    everyone = live_tensors()
    lines: list[str] = []
    ignore = {id(everyone), id(lines), *(id(f.f_locals) for f in _frames() if f.f_locals is not f.f_globals)}
    for other in everyone:
        if other is tensor:
            continue
        if _storage(other) == _storage(tensor) and other.numel():
            lines.append(f"a view or alias of shape {tuple(other.shape)} shares its storage")
        if getattr(other, "grad", None) is tensor:
            lines.append(f"it is the gradient of a tensor of shape {tuple(other.shape)}")
    del other
    lines += _paths(tensor, "", depth, ignore)
    lines += _saved_by(tensor, everyone)
    return list(dict.fromkeys(lines))


class Leaks(list):
    """The tensors that `find_leaks` found; `report()` says what holds each.

    It is a list, so that a test may ask for its length.
    """

    def report(self) -> str:
        """A paragraph a tensor: shape, dtype, bytes, holders.

        Holders are variables, containers and objects that keep the tensor alive.
        """
        out = []
        for t in self:
            out.append(f"{tuple(t.shape)} {t.dtype}, {_bytes(t)} bytes")
            out += [f"  {line}" for line in holders(t) if "Leaks" not in line]
        return "\n".join(out)


@contextmanager
def find_leaks() -> Iterator[Leaks]:
    """Fills the list that it gives with the tensors that were made within it and are alive at its end.

    >>> import warptape
    >>> from warptape.utils.debugging import find_leaks
    >>> kept = []
    >>> with find_leaks() as leaks:
    ...     kept.append(warptape.zeros(3))
    ...     _ = warptape.zeros(4).sum().item()
    >>> [tuple(t.shape) for t in leaks]
    [(3,)]
    """
    gc.collect()
    before = {id(t) for t in live_tensors()}
    leaks = Leaks()
    yield leaks
    gc.collect()
    leaks += [t for t in live_tensors() if id(t) not in before]
