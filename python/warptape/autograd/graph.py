"""Looking into the graph: nodes, saved-tensor hooks."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .. import _C
from .._missing import install_getattr as _install_getattr
from ..core import offered
from ..core.grad_mode import _Mode
from ..core.hooks import RemovableHandle, add_hook

if TYPE_CHECKING:
    from warptape.core import Tensor

__all__ = [
    "Node",
    "disable_saved_tensors_hooks",
    "draw",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]

Node = _C.Node


def _register_hook(self: Any, fn: Callable[..., Any]) -> RemovableHandle:
    """Calls `fn(grad_inputs, grad_outputs)` after the node ran; a tuple it returns replaces grad_inputs."""
    return add_hook(self._post_hook_dict(), fn)


def _register_prehook(self: Any, fn: Callable[..., Any]) -> RemovableHandle:
    """Calls `fn(grad_outputs)` before the node runs; a tuple that it returns replaces grad_outputs."""
    return add_hook(self._pre_hook_dict(), fn)


# The type is made in C++, the handles of hooks are Python's.
setattr(Node, "register_hook", _register_hook)  # noqa: B010
setattr(Node, "register_prehook", _register_prehook)  # noqa: B010


class saved_tensors_hooks:
    """Inside, tensors saved for backward are kept as pack_hook(tensor), read by unpack_hook(packed).

    Args:
        pack_hook: of a tensor; returns any object.
        unpack_hook: of that object; returns the tensor.

    >>> sizes = []
    >>> x = torch.ones(3, requires_grad=True)
    >>> with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t):
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> sizes
    [3, 3]
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook

    def __enter__(self) -> None:
        _C._push_saved_tensor_hooks(self.pack_hook, self.unpack_hook)

    def __exit__(self, *error: Any) -> None:
        _C._pop_saved_tensor_hooks()


class disable_saved_tensors_hooks(_Mode):
    """Inside, saved-tensor hooks are refused with this message; RuntimeError if there are some already.

    Args:
        error_message: of the error.
    """

    def __init__(self, error_message: str) -> None:
        self.error_message = error_message

    def clone(self) -> disable_saved_tensors_hooks:
        """A fresh context with the same message."""
        return disable_saved_tensors_hooks(self.error_message)

    def __enter__(self) -> None:
        self._before = _C._refuse_saved_tensor_hooks(self.error_message)

    def __exit__(self, *error: Any) -> None:
        _C._refuse_saved_tensor_hooks(self._before)


class save_on_cpu(saved_tensors_hooks):
    """Keeps saved tensors in host memory.

    Args:
        pin_memory: whether the copies are page-locked, which is faster to copy back.
        device_type: without effect.
    """

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        def pack(t: Tensor) -> Any:
            host = t.cpu()
            return t.device, host.pin_memory() if pin_memory and t.is_cuda else host

        super().__init__(pack, lambda packed: packed[1].to(packed[0], non_blocking=pin_memory))


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Says that a tensor, or each of several, was changed in place by what the runtime does not see.

    Raises:
        RuntimeError: an inference tensor, outside of inference mode.

    >>> x = torch.ones(2)
    >>> torch.autograd.graph.increment_version(x)
    >>> x._version
    1
    """
    for t in (tensor,) if isinstance(tensor, _C.TensorBase) else tensor:
        if t.is_inference():
            if not _C.is_inference_mode_enabled():
                raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed.")
        else:
            _C._increment_version(t)


class _Gathered:
    """The gradients of one backward pass, whose end calls this if not all are there before; lives as long."""

    def __init__(self, count: int, fn: Callable[[Any], Any]) -> None:
        self.found: list[Any] = [None] * count
        self.missing, self.fn = set(range(count)), fn

    def add(self, place: int, gradient: Tensor | None) -> None:
        self.found[place] = gradient
        self.missing.discard(place)
        if not self.missing:
            self()

    def __call__(self) -> None:
        fn, self.fn = self.fn, lambda found: None
        fn(self.found)


class _Handles:
    """The handle of hooks on several tensors."""

    def __init__(self, handles: tuple[RemovableHandle, ...]) -> None:
        self.handles = handles

    def remove(self) -> None:
        """Removes the hooks."""
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[[Any], Any], *, mode: str = "all"
) -> _Handles:
    """Calls `fn` once per backward pass in which a gradient of one of `tensors` is computed.

    Args:
        fn: with mode "all", called with a list of the gradients when all are there; where a tensor gets
            none, at the end of the pass, with None for it. With mode "any", called with the first gradient.

    Returns:
        A handle whose `remove()` removes the hook.

    Raises:
        ValueError: another mode.
        RuntimeError: a tensor that does not require gradients.

    >>> a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    >>> handle = torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: print(len(grads)))
    >>> (a * b).sum().backward()
    2
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    tensors = tuple(tensors)
    passing: Callable[[], _Gathered | None] = lambda: None

    def hook(gradient: Tensor | None, place: int) -> None:
        nonlocal passing
        gathered = passing()
        if first := gathered is None:
            gathered = _Gathered(len(tensors), fn if mode == "all" else lambda found: None)
            passing = weakref.ref(gathered)
            _C._queue_callback(gathered)
        gathered.add(place, gradient)
        if first and mode == "any":
            fn(gradient)

    return _Handles(tuple(t.register_hook(functools.partial(hook, place=i)) for i, t in enumerate(tensors)))


def draw(tensors: object, params: dict[str, Any] | None = None) -> Any:
    """The picture of the tape behind a tensor or several: a node for each recorded op, and what it has saved.

    Saved tensors are read as backward reads them, through the hooks that packed them, if there are any.

    Args:
        tensors: a tensor, or a list of them; arrows lead from them to the leaves, as gradients go.
        params: names of leaves: `dict(model.named_parameters())`.

    Returns:
        A Drawing: `svg()`, which notebooks show, `dot()` for Graphviz, which is not needed, and `save(path)`.

    Raises:
        TypeError: no tensor.

    >>> model = torch.nn.Linear(3, 2)
    >>> drawing = torch.autograd.graph.draw(model(torch.ones(4, 3)).sum(), dict(model.named_parameters()))
    >>> [node.lines for node in drawing.graph.nodes[2:]]
    [['LinearBackward0', 'saved float32[4, 3]'], ['weight [2, 3]'], ['bias [2]']]
    """
    draw_tape = offered("pictures").draw_tape

    roots: list[Any] = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    if not roots or not all(isinstance(t, _C.TensorBase) for t in roots):
        raise TypeError(f"autograd.graph.draw: expected a tensor or a list of them, got {tensors!r}")
    return draw_tape(roots, params)


_install_getattr(__name__, allow_mutation_on_saved_tensors=lambda: offered("allow_mutation_on_saved_tensors"))
