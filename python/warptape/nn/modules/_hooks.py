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

from warptape.core import Tensor
from warptape.core.hooks import RemovableHandle, add_hook

from ._backward_gate import BackwardGate


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
    _compiled_call_impl: Callable[..., Any] | None = None  # of Module.compile()
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
        marks = ((self._forward_pre_hooks_with_kwargs, with_kwargs),)
        return add_hook(self._forward_pre_hooks, hook, prepend, marks)

    def register_forward_hook(
        self, hook: Callable, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Runs `hook(module, args, output)` after each forward; what it returns, if not None, replaces the
        output.

        With `with_kwargs` it is `hook(module, args, kwargs, output)`; with `always_call` it runs, too, when
        the forward raised.

        >>> model = nn.ReLU()
        >>> handle = model.register_forward_hook(lambda module, args, output: output + 1)
        >>> model(torch.tensor([-1.0, 2.0]))
        tensor([1., 3.])
        >>> handle.remove()
        """
        self.__dict__["_hooked"] = True
        marks = (
            (self._forward_hooks_with_kwargs, with_kwargs),
            (self._forward_hooks_always_called, always_call),
        )
        return add_hook(self._forward_hooks, hook, prepend, marks)

    def register_full_backward_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Runs `hook(module, grad_output)` before the module's backward; a tuple replaces grad_output."""
        self.__dict__["_hooked"] = True
        return add_hook(self._backward_pre_hooks, hook, prepend)

    def register_full_backward_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """Runs `hook(module, grad_input, grad_output)` once the gradients of the module's inputs are there.

        Both are tuples with None where there is no tensor that requires grad, keyword arguments left out. A
        returned tuple replaces grad_input.
        """
        self._use_backward_hooks(full=True)
        return add_hook(self._backward_hooks, hook, prepend)

    def register_backward_hook(self, hook: Callable) -> RemovableHandle:
        """Deprecated: `hook(module, grad_input, grad_output)` of the last op; use the full backward hook."""
        self._use_backward_hooks(full=False)
        return add_hook(self._backward_hooks, hook)

    def _use_backward_hooks(self, *, full: bool) -> None:
        if self._is_full_backward_hook is (not full):
            where = "as a global Module hook" if self is _global else "on a single Module"
            raise RuntimeError(
                f"Cannot use both regular backward hooks and full backward hooks {where}. "
                "Please use only one of them."
            )
        self.__dict__.update(_is_full_backward_hook=full, _hooked=True)

    def _call_hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._compiled_call_impl or self._call_impl
        return call(*args, **kwargs)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        if not (self._has_hooks() or any_global_hook):  # the last one was removed, or the module is compiled
            self.__dict__["_hooked"] = self._compiled_call_impl is not None
            return self.forward(*args, **kwargs)  # type: ignore[attr-defined]
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
        hooks = [
            (hook, key in owner._forward_pre_hooks_with_kwargs)
            for owner in (_global, self)
            for key, hook in owner._forward_pre_hooks.items()
        ]
        for hook, with_kwargs in hooks:
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
        """(id, hook, with_kwargs, always_call) in the order they run: of all modules, then this one's."""
        for own in (_global, self):
            for key, hook in list(own._forward_hooks.items()):
                yield (
                    key,
                    hook,
                    key in own._forward_hooks_with_kwargs,
                    key in own._forward_hooks_always_called,
                )

    def _run_always_called(self, args: tuple, kwargs: dict[str, Any], result: Any, done: set[int]) -> None:
        for key, hook, with_kwargs, always in self._all_forward_hooks():
            if not always or key in done:
                continue
            try:
                hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            except Exception as error:
                warnings.warn(
                    "module forward hook with ``always_call=True`` raised an exception that was silenced as "
                    f"another error was raised in forward: {error}",
                    stacklevel=2,
                )

    def _backward_gate(self) -> BackwardGate | None:
        hooks = self._all_backward_hooks(full=True)
        pre_hooks = [*_global._backward_pre_hooks.values(), *self._backward_pre_hooks.values()]
        return BackwardGate(self, hooks, pre_hooks) if hooks or pre_hooks else None

    def _all_backward_hooks(self, *, full: bool) -> list[Callable]:
        owners = [own for own in (_global, self) if own._is_full_backward_hook is full]
        return [hook for own in owners for hook in own._backward_hooks.values()]

    def _hook_last_op(self, result: Any) -> None:
        """The deprecated backward hooks sit on the node of the (first) result."""
        hooks = self._all_backward_hooks(full=False)
        if not hooks:
            return
        while not isinstance(result, Tensor):
            result = next(iter(result.values())) if isinstance(result, dict) else result[0]
        if result.grad_fn is not None:
            for hook in hooks:
                result.grad_fn.register_hook(lambda gi, go, hook=hook: hook(self, gi, go))

    def _has_hooks(self) -> bool:
        return bool(
            self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        )

    def _forget_if_unhooked(self) -> None:
        if not (self._has_hooks() or self._compiled_call_impl):
            self.__dict__["_hooked"] = False
        if any_global_hook and not _global._has_hooks():
            any_global_hook.clear()


_global = HookMixin()  # the hooks of all modules together
_global._init_hooks()
any_global_hook: list[bool] = []  # truthy from the first registration on; Module.__call__ tests it


def register_module_forward_pre_hook(hook: Callable) -> RemovableHandle:
    """Runs `hook(module, args)` before the forward of every module."""
    any_global_hook[:] = [True]
    return _global.register_forward_pre_hook(hook)


def register_module_forward_hook(
    hook: Callable, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Runs `hook(module, args, output)` after the forward of every module, before the module's own hooks."""
    any_global_hook[:] = [True]
    return _global.register_forward_hook(hook, with_kwargs=with_kwargs, always_call=always_call)


def register_module_full_backward_pre_hook(hook: Callable) -> RemovableHandle:
    """Runs `hook(module, grad_output)` before the backward of every module."""
    any_global_hook[:] = [True]
    return _global.register_full_backward_pre_hook(hook)


def register_module_full_backward_hook(hook: Callable) -> RemovableHandle:
    """Runs `hook(module, grad_input, grad_output)` after the backward of every module."""
    any_global_hook[:] = [True]
    return _global.register_full_backward_hook(hook)


def register_module_backward_hook(hook: Callable) -> RemovableHandle:
    """Deprecated: as `Module.register_backward_hook`, for every module."""
    any_global_hook[:] = [True]
    return _global.register_backward_hook(hook)
