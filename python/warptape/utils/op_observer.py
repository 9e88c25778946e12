"""OpObserver: what flop counters, rooflines and memory timelines are told of every op, backward included.

A mode of `__torch_function__` sees the calls of the forward pass. The nodes that a call adds to the tape get
hooks, by which its backward is seen too, whenever and however often it runs while the observer is entered.
What an op calls within C++ belongs to the op, and so does what a backward with create_graph records.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from .. import _C
from ..core import Tensor
from ..core.by_name import tensors_in
from ..core.overrides import TorchFunctionMode

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def shapes_of(value: object) -> Any:
    """The same arguments with the shape of each tensor in its place.

    Args:
        value: a tensor, or lists, tuples and dicts of tensors and anything else.
    """
    if isinstance(value, Tensor):
        return value.shape
    if isinstance(value, (list, tuple)):
        return type(value)(map(shapes_of, value)) if type(value) in (list, tuple) else value
    return {k: shapes_of(v) for k, v in value.items()} if isinstance(value, dict) else value


def storage_of(t: Tensor) -> tuple[int, int]:
    """Where a tensor's memory lies.

    Args:
        t: any tensor.

    Returns:
        Address and bytes of its storage; (0, 0) of a tensor that has none, such as a sparse one.
    """
    try:
        storage = t.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError, ValueError):  # sparse, or a lazy module's parameter
        return 0, 0


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """The bytes that reading or writing all of the tensors moves.

    A region of memory counts once, and an expanded tensor counts by the memory that it has.

    Args:
        tensors: any tensors.
    """
    sizes: dict[tuple[int, int], int] = {}
    for t in tensors:
        address, held = storage_of(t)
        size = t.numel() * t.element_size()
        key = (address, t.storage_offset()) if address else (0, id(t))
        sizes[key] = max(min(size, held) if address else size, sizes.get(key, 0))
    return sum(sizes.values())


def call_site() -> str:
    """The innermost line outside of this package that is being executed.

    Returns:
        File, line and function, as "train.py:12 in step".
    """
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"


def _nodes_of(value: object) -> set[Any]:
    """The nodes that recorded the tensors, and those that they are views of."""
    tensors = list(tensors_in(value))
    tensors += [base for t in tensors if (base := t._base) is not None]
    return {node for t in tensors if (node := t.grad_fn) is not None}


class OpCall:
    """One call: of tensors only shapes are kept, so that none lives longer for being looked at.

    Attributes:
        func, name: the function called, and its `__name__` without the underscore of an in-place form.
        in_place: whether it is one.
        args, kwargs: as given, with the shape of each tensor in its place.
        out_shape: the shape of the result, or what has the shapes of several.
        needs_grad: by positional argument, whether it is a tensor that requires grad.
        memo: the observer's own.
    """

    def __init__(self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.func = func
        name = getattr(func, "__name__", type(func).__name__)
        self.in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        self.name = name[:-1] if self.in_place and not name.endswith("__") else name
        self.args, self.kwargs = shapes_of(tuple(args)), shapes_of(kwargs)
        values = (*args, *kwargs.values())
        self.needs_grad = [isinstance(a, Tensor) and a.requires_grad for a in values]
        self.out_shape: Any = None
        self.memo: Any = None
        self.last_pass: object = None  # the backward pass in which a node of it ran


class _Pass:
    """A backward pass. What is called at its end holds it, so that it is gone, too, where the pass fails."""


def _nothing() -> None:
    """In the place of a reference to a pass."""


class OpObserver(TorchFunctionMode):
    """Subclasses override what they want to be told of; calls nest, and each `before` has its `after`.

    `looks_after_backward`: whether `after_backward` is wanted. The hook for it makes a node's gradients live
    until it is over, so that the engine writes into fewer of them.
    """

    looks_after_backward = False

    def __init__(self) -> None:
        super().__init__()
        self._entered: object = None  # this time; hooks of an earlier one do nothing
        self._running: Callable[[], _Pass | None] = _nothing  # the backward pass

    def before_op(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Is called before each function of tensors.

        Args:
            call: what is known of the call.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """

    def after_op(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> None:
        """Is called after each function of tensors.

        Args:
            call: the one that `before_op` got.
            args: its positional arguments.
            kwargs: its keyword arguments.
            out: its result; None where it raised.
        """

    def before_backward(self, call: OpCall, node: str, first: bool, gradients: tuple[Any, ...]) -> None:
        """Is called before a node of the tape runs that a seen call recorded.

        Args:
            call: the call that recorded it.
            node: the node's name.
            first: whether it is the call's first in this backward pass.
            gradients: those of the node's outputs.
        """

    def after_backward(self, call: OpCall, saved: int, inputs: tuple[Any, ...]) -> None:
        """The node has computed the gradients of its inputs from those of its results and from `saved` bytes
        (0 where hooks hold what was saved)."""

    def after_pass(self) -> None:
        """Is called after a backward pass in which a node of a seen call ran.

        The base class does nothing.
        """

    def sees_as_one(self, func: Callable[..., Any]) -> bool:
        """Whether a function that is written in Python counts as one op, instead of the ops that it calls.

        Args:
            func: the function.

        Returns:
            False; a subclass may say otherwise.
        """
        return False

    def __enter__(self) -> Any:
        self._entered, self._running = object(), _nothing
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._entered = None
        super().__exit__(*error)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls the function between `before_op` and `after_op`."""
        kwargs = kwargs or {}
        inside = getattr(func, "__wrapped__", None)
        if inside is not None and not types and not self.sees_as_one(func):
            _C._push_torch_function_mode(self)
            try:
                return inside(*args, **kwargs)
            finally:
                _C._pop_torch_function_mode()
        if getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        call = OpCall(func, args, kwargs)
        known = _nodes_of((args, kwargs))
        self.before_op(call, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            self.after_op(call, args, kwargs, None)
            raise
        call.out_shape = shapes_of(out)
        self.after_op(call, args, kwargs, out)
        self._watch(call, _nodes_of((out, args)), known)
        return out

    def _watch(self, call: OpCall, found: set[Any], known: set[Any]) -> None:
        """Hooks on the nodes between the results and the arguments."""
        seen, waiting = known, found - known
        while waiting:
            seen = seen | waiting
            for node in waiting:
                self._hook(call, node)
            following = {n for node in waiting for n, _ in node.next_functions if n is not None}
            waiting = {n for n in following - seen if n.variable is None}

    def _hook(self, call: OpCall, node: Any) -> None:
        entered, name = self._entered, node.name()

        def before(gradients: tuple[Any, ...]) -> None:
            if self._entered is not entered:
                return
            running = self._running()
            if running is None:
                running = _Pass()
                self._running = weakref.ref(running)
                _C._queue_callback(functools.partial(self._end_pass, running))
            first, call.last_pass = call.last_pass is not self._running, self._running
            with _C.DisableTorchFunction():  # what the observer asks of tensors is no op of the program
                self.before_backward(call, name, first, gradients)

        node.register_prehook(before)
        if not self.looks_after_backward:
            return

        saved = 0 if _C._has_saved_tensor_hooks() else bytes_of(tensors_in(node.saved_tensors))

        def after(inputs: tuple[Any, ...], _: object) -> None:
            if self._entered is entered:
                with _C.DisableTorchFunction():
                    self.after_backward(call, saved, inputs)

        node.register_hook(after)

    def _end_pass(self, _: _Pass) -> None:
        self._running = _nothing
        if self._entered is not None:
            self.after_pass()
