"""Tensors that the tape has saved and a program then changes in place: backward sees the earlier values."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

from warptape import core as wt

from .. import _C
from ..core.pytree import tree_leaves
from ._python_dispatch import TorchDispatchMode

__all__ = ["allow_mutation_on_saved_tensors"]


class _Saved:
    """What the tape keeps of a saved tensor: the tensor, until it is about to be changed; then a copy."""

    def __init__(self, tensor: wt.Tensor) -> None:
        self.tensor, self.version = tensor.detach(), tensor._version
        self.is_copy = False

    def copy(self) -> None:
        if not self.is_copy and self.tensor._version == self.version:
            self.tensor, self.is_copy = self.tensor.clone(), True


class _Context:
    """What `allow_mutation_on_saved_tensors` gives: the saved tensors by their memory."""

    def __init__(self) -> None:
        self._by_memory: dict[int, weakref.WeakSet[_Saved]] = {}
        self._active = True

    def clear(self) -> None:
        """Forgets which tensors are saved: later changes copy none of them.

        Tensors that were copied stay copied.
        """
        self._by_memory.clear()

    def _pack(self, tensor: wt.Tensor) -> _Saved:
        saved = _Saved(tensor)
        self._by_memory.setdefault(_C._storage_address(tensor), weakref.WeakSet()).add(saved)
        return saved

    def _unpack(self, saved: _Saved) -> Any:
        if not self._active:
            raise RuntimeError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which the "
                "graph was originally recorded."
            )
        if not saved.is_copy and saved.tensor._version != saved.version:
            raise RuntimeError(
                "allow_mutation_on_saved_tensors: a saved tensor was changed in place in a way that this "
                f"context does not see (version {saved.tensor._version}, saved at {saved.version}); change "
                "it by ops without out="
            )
        return saved.tensor

    def _before_change(self, tensor: wt.Tensor) -> None:
        with wt.no_grad():
            for saved in self._by_memory.pop(_C._storage_address(tensor), ()):
                saved.copy()


def _changed(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensors that a call of an op changes."""
    if (name.rstrip("_") != name and not name.startswith("__")) or any(
        x is True for x in (*args[1:], *kwargs.values())
    ):
        yield from (x for x in tree_leaves(args[:1]) if isinstance(x, _C.TensorBase))
    if name in _CHANGES_MORE:
        yield from (x for x in tree_leaves((args, kwargs)) if isinstance(x, _C.TensorBase))
    yield from (x for x in tree_leaves(kwargs.get("out")) if isinstance(x, _C.TensorBase))


# Running statistics, the rows of a table that max_norm scales.
_CHANGES_MORE = frozenset(["batch_norm", "embedding", "embedding_bag", "instance_norm", "native_batch_norm"])


class _CopyBeforeChange(TorchDispatchMode):
    def __init__(self, context: _Context) -> None:
        super().__init__()
        self._context = context

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _changed(func.__name__.partition(".")[0], args, kwargs):
            self._context._before_change(tensor)
        return func(*args, **kwargs)


class allow_mutation_on_saved_tensors:
    """Within it tensors may be changed in place although the tape has saved them.

    A saved tensor is copied right before its first change by an op, so that backward uses the values that it
    was saved with. Forward and backward must both run in the context.

    Raises:
        RuntimeError: backward after the end of the context, or of a tensor that an op's `out=` changed;
            entered twice.

    >>> x = torch.ones(2, requires_grad=True)
    >>> with torch.autograd.graph.allow_mutation_on_saved_tensors():
    ...     y = x * 2
    ...     z = (y * y).sum()
    ...     _ = y.zero_()
    ...     z.backward()
    >>> x.grad
    tensor([8., 8.])
    """

    _running = False

    def __enter__(self) -> _Context:
        if allow_mutation_on_saved_tensors._running:
            raise RuntimeError("allow_mutation_on_saved_tensors contexts cannot be nested")
        self._context = _Context()
        self._mode = _CopyBeforeChange(self._context)
        self._mode.__enter__()
        _C._push_saved_tensor_hooks(self._context._pack, self._context._unpack)
        allow_mutation_on_saved_tensors._running = True
        return self._context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        allow_mutation_on_saved_tensors._running = False
        _C._pop_saved_tensor_hooks()
        self._mode.__exit__(kind, error, trace)
        self._context._active = False
        self._context.clear()
