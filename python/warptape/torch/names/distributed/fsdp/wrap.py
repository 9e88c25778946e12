"""Which modules are wrapped by themselves: torch.distributed.fsdp.wrap's policies.

A policy is called as policy(module, recurse, nonwrapped_numel): with recurse=True it says whether to look
inside a module, with False whether to wrap it, which has `nonwrapped_numel` elements that no module inside
took.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from warptape import nn

Policy = Callable[..., bool]
_wrapping = threading.local()


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Wraps everything.

    Args:
        *args, **kwargs: what every policy gets.
    """
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Wraps what lambda_fn says.

    Args:
        module: asked about.
        recurse: whether the question is for the modules inside.
        nonwrapped_numel: elements not wrapped yet.
        lambda_fn: says whether a module is wrapped.
    """
    return True if recurse else lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: Iterable[type]
) -> bool:
    """Wraps modules of these classes.

    Args:
        module: asked about.
        recurse: whether the question is for the modules inside.
        nonwrapped_numel: elements not wrapped yet.
        transformer_layer_cls: classes.
    """
    return True if recurse else isinstance(module, tuple(transformer_layer_cls))


_module_wrap_policy = transformer_auto_wrap_policy


def _or_policy(module: nn.Module, recurse: bool, nonwrapped_numel: int, policies: Sequence[Policy]) -> bool:
    """Wraps what any of them does."""
    return any(
        policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel) for policy in policies
    )


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type] | None = None,
    exclude_wrap_modules: set[type] | None = None,
) -> bool:
    """Wraps modules that still have as many elements; never lists of modules, and nothing in attention.

    Args:
        module: asked about.
        recurse: whether the question is for the modules inside.
        nonwrapped_numel: elements not wrapped yet.
        min_num_params: elements from which on a module is wrapped.
        force_leaf_modules: classes inside which nothing is wrapped.
        exclude_wrap_modules: classes that are never wrapped.
    """
    own: Any = size_based_auto_wrap_policy
    leaves = own.FORCE_LEAF_MODULES if force_leaf_modules is None else force_leaf_modules
    excluded = own.EXCLUDE_WRAP_MODULES if exclude_wrap_modules is None else exclude_wrap_modules
    large = nonwrapped_numel >= min_num_params
    return large and not isinstance(module, tuple(leaves if recurse else excluded))


size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES = {nn.ModuleList, nn.ModuleDict}  # type: ignore[attr-defined]
size_based_auto_wrap_policy.FORCE_LEAF_MODULES = {nn.MultiheadAttention}  # type: ignore[attr-defined]


class ModuleWrapPolicy:
    """Wraps modules of some classes.

    Args:
        module_classes: classes.
    """

    def __init__(self, module_classes: Iterable[type]) -> None:
        self._module_classes = set(module_classes)

    def __call__(self, module: nn.Module, recurse: bool, *args: Any, **kwargs: Any) -> bool:  # noqa: D102
        return recurse or isinstance(module, tuple(self._module_classes))


class CustomPolicy:
    """Wraps what lambda_fn(module) says: True, or a dict of arguments for the wrapper.

    Args:
        lambda_fn: asked once for each module.
    """

    def __init__(self, lambda_fn: Callable[[nn.Module], bool | dict[str, Any]]) -> None:
        self._lambda_fn = lambda_fn

    def __call__(self, module: nn.Module, recurse: bool, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
        return True if recurse else self._lambda_fn(module)


def _recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Policy,
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wraps modules from the innermost out, in place; returns the module, wrapped or not, and how many
    elements it holds that were wrapped."""
    known = isinstance(wrapper_cls, type)
    for name, child in module.named_modules():
        if child is not module and known and isinstance(child, wrapper_cls):  # type: ignore[arg-type]
            raise ValueError(f"the modules are wrapped already: {name}")
    own = {id(p): p.numel() for p in module.parameters() if not any(p is q for q in ignored_params)}
    total = sum(own.values())
    if not auto_wrap_policy(module=module, recurse=True, nonwrapped_numel=total):
        return module, 0
    wrapped = 0
    for name, child in module.named_children():
        if child in ignored_modules:
            continue
        wrapper, count = _recursive_wrap(
            child, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, **kwargs
        )
        setattr(module, name, wrapper)
        wrapped += count
    left = total - wrapped
    if only_wrap_children:
        return module, wrapped
    said: Any = auto_wrap_policy(module=module, recurse=False, nonwrapped_numel=left)
    if not said:
        return module, wrapped
    more = said if isinstance(said, dict) else {}
    return wrapper_cls(module, **{**kwargs, **more}), total


@contextlib.contextmanager
def enable_wrap(*, wrapper_cls: Any, **wrapper_kwargs: Any) -> Iterator[None]:
    """Within it, wrap() wraps by this class.

    Args:
        wrapper_cls: as FullyShardedDataParallel.
        **wrapper_kwargs: of its constructor.
    """
    before = getattr(_wrapping, "how", None)
    _wrapping.how = wrapper_cls, wrapper_kwargs
    try:
        yield
    finally:
        _wrapping.how = before


def wrap(module: nn.Module, **wrap_overrides: Any) -> nn.Module:
    """The module, wrapped within enable_wrap(), else as it is.

    Args:
        module: what is wrapped.
        **wrap_overrides: in place of enable_wrap's.
    """
    how = getattr(_wrapping, "how", None)
    if how is None:
        return module
    return how[0](module, **{**how[1], **wrap_overrides})
