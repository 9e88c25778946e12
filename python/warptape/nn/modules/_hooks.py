"""A module's hooks on forward and backward, and those of all modules together.

Note [the cheap call]: `Module.__call__` looks at `_hooked` and at `any_global_hook` alone. Registration sets
them; the hooked call, when it finds nothing left to run, clears `_hooked` again. So hooks must be registered,
not written into the dictionaries.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from warptape import Tensor
from warptape.utils.hooks import RemovableHandle

from ._backward_gate import BackwardGate

__all__ = [
    "register_module_backward_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
]


def _add(
    hooks: OrderedDict, hook: Callable, prepend: bool, *marks: tuple[OrderedDict, bool]
) -> RemovableHandle:
    """Puts `hook` in `hooks`, at its front or end, and its id in each marking dictionary whose flag is
    set."""
    handle = RemovableHandle(hooks, extra_dict=[mark for mark, _ in marks])
    hooks[handle.id] = hook
    for mark, wanted in marks:
        if wanted:
            mark[handle.id] = True
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle


class HookMixin:
    """The part of Module that registers hooks and runs them around `forward`."""

    _forward_pre_hooks: OrderedDict[int, Callable]
    _forward_pre_hooks_with_kwargs: OrderedDict[int, bool]
    _forward_hooks: OrderedDict[int, Callable]
    _forward_hooks_with_kwargs: OrderedDict[int, bool]
    _forward_hooks_always_called: OrderedDict[int, bool]
    _backward_pre_hooks: OrderedDict[int, Callable]
    _backward_hooks: OrderedDict[int, Callable]
    _is_full_backward_hook: bool | None  # of what kind _backward_hooks are; None before the first
    _hooked = False  # an instance attribute once a hook is registered: Note [the cheap call]

    def _init_hooks(self) -> None:
        state = self.__dict__
        state["_is_full_backward_hook"] = None
        for name in (
            "_backward_pre_hooks",
            "_backward_hooks",
            "_forward_hooks",
            "_forward_hooks_with_kwargs",
            "_forward_hooks_always_called",
            "_forward_pre_hooks",
            "_forward_pre_hooks_with_kwargs",
        ):
            state[name] = OrderedDict()

    def register_forward_pre_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Runs `hook(module, args)` before each forward; what it returns, if not None, replaces the
        arguments.

        With `with_kwargs` it is `hook(module, args, kwargs)` and returns None or a pair (args, kwargs).
        """
        self.__dict__["_hooked"] = True
        return _add(
            self._forward_pre_hooks, hook, prepend, (self._forward_pre_hooks_with_kwargs, with_kwargs)
        )

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Runs `hook(module, args, output)` after each forward; what it returns, if not None, replaces the
        output.

        With `with_kwargs` it is `hook(module, args, kwargs, output)`; with `always_call` it runs, too, when
        the forward raised.
        """
        self.__dict__["_hooked"] = True
        return _add(
            self._forward_hooks,
            hook,
            prepend,
            (self._forward_hooks_with_kwargs, with_kwargs),
            (self._forward_hooks_always_called, always_call),
        )

    def register_full_backward_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Runs `hook(module, grad_output)` before the module's backward; a returned tuple replaces
        grad_output."""
        self.__dict__["_hooked"] = True
        return _add(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Runs `hook(module, grad_input, grad_output)` once the gradients of the module's inputs are there.

        Both are tuples with None where there is no tensor that requires grad, keyword arguments left out. A
        returned tuple replaces grad_input.
        """
        self._use_backward_hooks(full=True)
        return _add(self._backward_hooks, hook, prepend)

    def register_backward_hook(self, hook: Callable) -> RemovableHandle:
        """Deprecated: `hook(module, grad_input, grad_output)` of the last op alone; use the full backward
        hook."""
        self._use_backward_hooks(full=False)
        return _add(self._backward_hooks, hook, prepend=False)

    def _use_backward_hooks(self, *, full: bool) -> None:
        if self._is_full_backward_hook is (not full):
            raise RuntimeError(
                "Cannot use both regular backward hooks and full backward hooks on a single Module. "
                "Please use only one of them."
            )
        self.__dict__.update(_is_full_backward_hook=full, _hooked=True)

    def _call_hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = None
        done: set[int] = set()
        try:
            args, kwargs = self._run_forward_pre_hooks(args, kwargs)
            gate = self._backward_gate()
            if gate is not None:
                args = gate.enter(args)
            result = self.forward(*args, **kwargs)  # type: ignore[attr-defined]
            for key, hook, with_kwargs, _ in self._all_forward_hooks():
                done.add(key)
                changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
                result = result if changed is None else changed
            if gate is not None:
                result = gate.leave(result)
            self._hook_last_op(result)
        except Exception:
            self._run_always_called(args, kwargs, result, done)
            raise
        self._forget_if_unhooked()
        return result

    def _run_forward_pre_hooks(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        own = self._forward_pre_hooks_with_kwargs
        hooks = [(hook, False) for hook in _global.forward_pre_hooks.values()]
        for hook, with_kwargs in hooks + [
            (hook, key in own) for key, hook in self._forward_pre_hooks.items()
        ]:
            if with_kwargs:
                changed = hook(self, args, kwargs)
                if changed is None:
                    continue
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(
                        "forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got "
                        f"{changed}."
                    )
                args, kwargs = changed
            else:
                changed = hook(self, args)
                if changed is not None:
                    args = changed if isinstance(changed, tuple) else (changed,)
        return args, kwargs

    def _all_forward_hooks(self) -> Iterator[tuple[int, Callable, bool, bool]]:
        """(id, hook, with_kwargs, always_call) in the order they run: those of all modules, then this
        one's."""
        for key, hook in list(_global.forward_hooks.items()):
            yield (
                key,
                hook,
                key in _global.forward_hooks_with_kwargs,
                key in _global.forward_hooks_always_called,
            )
        for key, hook in list(self._forward_hooks.items()):
            yield key, hook, key in self._forward_hooks_with_kwargs, key in self._forward_hooks_always_called

    def _run_always_called(self, args: tuple, kwargs: dict[str, Any], result: Any, done: set[int]) -> None:
        for key, hook, with_kwargs, always in self._all_forward_hooks():
            if not always or key in done:
                continue
            try:
                hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            except Exception as error:
                warnings.warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as "
                    "another "
                    f"error was raised in forward: {error}",
                    stacklevel=2,
                )

    def _backward_gate(self) -> BackwardGate | None:
        hooks: list[Callable] = []
        pre_hooks = [*_global.backward_pre_hooks.values(), *self._backward_pre_hooks.values()]
        if _global.is_full_backward_hook is True:
            hooks += _global.backward_hooks.values()
        if self._is_full_backward_hook is True:
            hooks += self._backward_hooks.values()
        return BackwardGate(self, hooks, pre_hooks) if hooks or pre_hooks else None

    def _hook_last_op(self, result: Any) -> None:
        """The deprecated backward hooks sit on the node of the (first) result."""
        hooks: list[Callable] = []
        if _global.is_full_backward_hook is False:
            hooks += _global.backward_hooks.values()
        if self._is_full_backward_hook is False:
            hooks += self._backward_hooks.values()
        if not hooks:
            return
        while not isinstance(result, Tensor):
            result = next(iter(result.values())) if isinstance(result, dict) else result[0]
        if result.grad_fn is not None:
            for hook in hooks:
                result.grad_fn.register_hook(lambda gi, go, hook=hook: hook(self, gi, go))

    def _forget_if_unhooked(self) -> None:
        if not (
            self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        ):
            self.__dict__["_hooked"] = False
        if any_global_hook and not _global.any():
            any_global_hook.clear()


class _GlobalHooks:
    def __init__(self) -> None:
        self.forward_pre_hooks: OrderedDict = OrderedDict()
        self.forward_hooks: OrderedDict = OrderedDict()
        self.forward_hooks_with_kwargs: OrderedDict = OrderedDict()
        self.forward_hooks_always_called: OrderedDict = OrderedDict()
        self.backward_pre_hooks: OrderedDict = OrderedDict()
        self.backward_hooks: OrderedDict = OrderedDict()
        self.is_full_backward_hook: bool | None = None

    def any(self) -> bool:
        return bool(
            self.forward_pre_hooks or self.forward_hooks or self.backward_pre_hooks or self.backward_hooks
        )


_global = _GlobalHooks()
any_global_hook: list[bool] = []  # truthy from the first registration on; Module.__call__ tests it


def register_module_forward_pre_hook(hook: Callable) -> RemovableHandle:
    """Runs `hook(module, args)` before the forward of every module."""
    any_global_hook[:] = [True]
    return _add(_global.forward_pre_hooks, hook, prepend=False)


def register_module_forward_hook(
    hook: Callable, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Runs `hook(module, args, output)` after the forward of every module, before the module's own hooks."""
    any_global_hook[:] = [True]
    return _add(
        _global.forward_hooks,
        hook,
        False,
        (_global.forward_hooks_with_kwargs, with_kwargs),
        (_global.forward_hooks_always_called, always_call),
    )


def register_module_full_backward_pre_hook(hook: Callable) -> RemovableHandle:
    """Runs `hook(module, grad_output)` before the backward of every module."""
    any_global_hook[:] = [True]
    return _add(_global.backward_pre_hooks, hook, prepend=False)


def register_module_full_backward_hook(hook: Callable) -> RemovableHandle:
    """Runs `hook(module, grad_input, grad_output)` after the backward of every module."""
    return _register_global_backward(hook, full=True)


def register_module_backward_hook(hook: Callable) -> RemovableHandle:
    """Deprecated: as `Module.register_backward_hook`, for every module."""
    return _register_global_backward(hook, full=False)


def _register_global_backward(hook: Callable, *, full: bool) -> RemovableHandle:
    if _global.is_full_backward_hook is (not full):
        raise RuntimeError(
            "Cannot use both regular backward hooks and full backward hooks as a global Module hook. "
            "Please use only one of them."
        )
    _global.is_full_backward_hook = full
    any_global_hook[:] = [True]
    return _add(_global.backward_hooks, hook, prepend=False)
