"""Modules wrapped so that their activations are computed again in backward: see warptape.utils.checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any

from warptape.nn import Module
from warptape.utils.checkpoint import checkpoint

__all__ = [
    "ActivationWrapper",
    "CheckpointImpl",
    "CheckpointWrapper",
    "apply_activation_checkpointing",
    "checkpoint_wrapper",
]


class CheckpointImpl(Enum):
    """How backward reaches the second run; one way serves both."""

    REENTRANT = auto()
    NO_REENTRANT = auto()


class NamelessWrapper(Module):
    """Holds a module; parameters and checkpoints have the names that they would have without the wrapper."""

    _held: str  # the attribute that has the module

    def __init__(self, module: Module) -> None:
        super().__init__()
        setattr(self, self._held, module)
        self._register_state_dict_hook(self._drop_prefix)
        self._register_load_state_dict_pre_hook(self._add_prefix)

    @classmethod
    def _drop_prefix(cls, module: Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        start = f"{prefix}{cls._held}."
        for key in [key for key in state if key.startswith(start)]:
            state[prefix + key.removeprefix(start)] = state.pop(key)

    @classmethod
    def _add_prefix(cls, state: dict[str, Any], prefix: str, *_: Any) -> None:
        start = f"{prefix}{cls._held}."
        for key in [key for key in state if key.startswith(prefix) and not key.startswith(start)]:
            state[start + key.removeprefix(prefix)] = state.pop(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__(self._held), name)

    def __getitem__(self, key: Any) -> Any:
        return super().__getattr__(self._held)[key]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """As the held module's."""
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name.replace(f"{self._held}.", ""), parameter


class ActivationWrapper(NamelessWrapper):
    """What wraps a module to change what is kept of its activations."""

    _held = "_checkpoint_wrapped_module"


class CheckpointWrapper(ActivationWrapper):
    """Runs its module under `checkpoint_fn`, by default warptape.utils.checkpoint.checkpoint."""

    def __init__(
        self,
        mod: Module,
        checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
        checkpoint_fn: Callable[..., Any] | None = None,
        **checkpoint_fn_kwargs: Any,
    ) -> None:
        super().__init__(mod)
        self.checkpoint_impl, self.checkpoint_fn = checkpoint_impl, checkpoint_fn or checkpoint
        if checkpoint_fn is None:
            checkpoint_fn_kwargs["use_reentrant"] = checkpoint_impl is CheckpointImpl.REENTRANT
        self._options = checkpoint_fn_kwargs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        module = self._checkpoint_wrapped_module
        return self.checkpoint_fn(lambda *a: module(*a, **kwargs), *args, **self._options)


def checkpoint_wrapper(
    module: Module,
    checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
    checkpoint_fn: Callable[..., Any] | None = None,
    **checkpoint_fn_kwargs: Any,
) -> Module:
    """A module that keeps only its inputs for backward, and else is `module`."""
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = lambda _: True,
    auto_wrap_policy: Any = None,
) -> None:
    """Wraps, in place, every module inside `model` for which `check_fn` is True; `model` itself stays.

    Raises:
        NotImplementedError: an `auto_wrap_policy`.
    """
    if auto_wrap_policy is not None:
        raise NotImplementedError(
            "apply_activation_checkpointing: expected a check_fn, got an auto_wrap_policy"
        )
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if check_fn(child) and not isinstance(parent, ActivationWrapper):
                setattr(parent, name, checkpoint_wrapper_fn(child))
