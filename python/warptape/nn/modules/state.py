"""A module's state_dict: what it holds, how it is loaded, and the hooks on both."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from typing import Any

from warptape import core as wt
from warptape.core import Tensor
from warptape.core.hooks import RemovableHandle, add_hook
from warptape.core.placed import Placed
from warptape.core.swap import swap_tensors

from ..parameter import Parameter
from . import cast as _cast

EXTRA_STATE = "_extra_state"


class _IncompatibleKeys(namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"])):
    """What a load with strict=False skipped."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()

    __str__ = __repr__


class _ModuleHook:
    """A hook that is given the module first; a module's copy or pickle carries it with the module it belongs
    to."""

    def __init__(self, hook: Callable, module: Any) -> None:
        self.hook, self.module = hook, module

    def __call__(self, *args: Any) -> Any:
        return self.hook(self.module, *args)


class _Assigned:
    """The tensors that load_state_dict(assign=True) puts in place of a module's; what modules shared, they
    share again."""

    def __init__(self) -> None:
        # By the tensor before, or what came in its place; both are kept.
        self.places: dict[int, tuple[list[Tensor], list[tuple[Any, str]]]] = {}

    def put(self, module: Any, name: str, before: Tensor, new: Tensor) -> None:
        """Of several entries for one tensor the last counts, as where values are copied."""
        kept, places = self.places.setdefault(id(before), ([before], []))
        self.places[id(new)] = kept, places
        kept.append(new)
        places.append((module, name))
        for each, its_name in places:
            setattr(each, its_name, new)


class StateMixin:
    """The part of Module that saves and loads its tensors.

    `state_dict` and `load_state_dict` are its two ends; hooks run before and after each.
    """

    _version: int = 1
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _non_persistent_buffers_set: set[str]
    _state_dict_pre_hooks: OrderedDict[int, Callable]
    _state_dict_hooks: OrderedDict[int, Callable]
    _load_state_dict_pre_hooks: OrderedDict[int, Callable]
    _load_state_dict_post_hooks: OrderedDict[int, Callable]

    def _init_state_hooks(self) -> None:
        for name in (
            "_state_dict_pre_hooks",
            "_state_dict_hooks",
            "_load_state_dict_pre_hooks",
            "_load_state_dict_post_hooks",
        ):
            self.__dict__[name] = OrderedDict()

    def get_extra_state(self) -> Any:
        """What the state_dict keeps besides tensors.

        A subclass overrides it together with `set_extra_state`.

        Raises:
            RuntimeError: it is not overridden.
        """
        raise RuntimeError(
            "Reached a code path in Module.get_extra_state() that should never be called. Please override it."
        )

    def set_extra_state(self, state: Any) -> None:
        """Takes back what `get_extra_state` returned.

        Args:
            state: what was saved.

        Raises:
            RuntimeError: it is not overridden.
        """
        raise RuntimeError(
            "Reached a code path in Module.set_extra_state() that should never be called. Please override it."
        )

    def _has(self, method: str) -> bool:
        return getattr(type(self), method) is not getattr(StateMixin, method)

    def register_state_dict_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Registers a hook that runs before this module's part of a state_dict is made.

        Args:
            hook: hook(module, prefix, keep_vars).

        Returns:
            A handle whose `remove()` takes the hook off.
        """
        return add_hook(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Callable) -> RemovableHandle:
        """Registers a hook that runs after this module's part of a state_dict was made.

        Args:
            hook: hook(module, state_dict, prefix, local_metadata); it may change `state_dict` in place.

        Returns:
            A handle whose `remove()` takes the hook off.
        """
        hook._from_public_api = True  # type: ignore[attr-defined]
        return add_hook(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook: Callable) -> RemovableHandle:
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError(
                "Cannot register the same function as the state dict post hook that was previously "
                "registered via register_state_dict_post_hook"
            )
        return add_hook(self._state_dict_hooks, hook)

    def register_load_state_dict_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Runs `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
        error_msgs)` before this module loads its own tensors."""
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(
        self, hook: Callable, with_module: bool = False
    ) -> RemovableHandle:
        hook = _ModuleHook(hook, self) if with_module else hook
        return add_hook(self._load_state_dict_pre_hooks, hook)

    def register_load_state_dict_post_hook(self, hook: Callable) -> RemovableHandle:
        """Registers a hook that runs after a load.

        Args:
            hook: hook(module, incompatible_keys); it may edit the two lists of keys.

        Returns:
            A handle whose `remove()` takes the hook off.
        """
        return add_hook(self._load_state_dict_post_hooks, hook)

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> OrderedDict[str, Any]:
        """Name -> tensor of every parameter and persistent buffer, of this module and all inside it.

        The tensors share storage with the module's and are detached unless `keep_vars`. `prefix` starts every
        name; entries go into `destination` when it is given.

        >>> list(nn.Linear(2, 3).state_dict())
        ['weight', 'bias']
        """
        if args:  # the positional form of old
            destination = args[0] if destination is None else destination
            prefix = args[1] if len(args) > 1 and prefix == "" else prefix
            keep_vars = args[2] if len(args) > 2 and keep_vars is False else keep_vars
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()
        local_metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = local_metadata
        for hook in self._state_dict_pre_hooks.values():
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in self._state_dict_hooks.values():
            result = hook(self, destination, prefix, local_metadata)
            if getattr(hook, "_from_public_api", False):
                if result is not None:
                    raise RuntimeError("state_dict post-hook must return None")
            elif result is not None:
                destination = result
        return destination

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Puts this module's own tensors, not its children's, into `destination`."""
        for name, tensor in self._own_tensors():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()
        if self._has("get_extra_state"):
            destination[prefix + EXTRA_STATE] = self.get_extra_state()

    def _own_tensors(self) -> list[tuple[str, Tensor]]:
        transient = self._non_persistent_buffers_set
        named = [*self._parameters.items(), *(b for b in self._buffers.items() if b[0] not in transient)]
        return [(name, tensor) for name, tensor in named if tensor is not None]

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Copies a state_dict into this module's tensors, or with `assign` takes its tensors themselves.

        Returns the lists missing_keys and unexpected_keys. Raises RuntimeError, which lists every fault, when
        a shape differs or, with `strict`, when a key is missing or unexpected; what fitted has then been
        copied.

        >>> nn.Linear(2, 3).load_state_dict(nn.Linear(2, 3).state_dict())
        <All keys matched successfully>
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        missing: list[str] = []
        unexpected: list[str] = []
        errors: list[str] = []
        metadata = getattr(state_dict, "_metadata", None)
        state_dict = OrderedDict(state_dict)  # pre-hooks may rename entries: not in the caller's
        if metadata is not None:
            state_dict._metadata = metadata  # type: ignore[attr-defined]
        assigned = _Assigned() if assign else False
        self._load_tree(state_dict, "", metadata or {}, strict, assigned, missing, unexpected, errors)
        if strict:
            for fault, keys in (("Unexpected", unexpected), ("Missing", missing)):
                if keys:
                    listed = ", ".join(f'"{key}"' for key in keys)
                    errors.insert(0, f"{fault} key(s) in state_dict: {listed}. ")
        if errors:
            listed = "\n\t".join(errors)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t{listed}")
        return _IncompatibleKeys(missing, unexpected)

    def _load_tree(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Mapping[str, Any],
        strict: bool,
        assign: _Assigned | bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """Loads this module, then its children, each with the entries under its own prefix."""
        local_metadata = dict(metadata.get(prefix[:-1], {}))  # not the caller's, for hooks may write to it
        if assign is not False:
            local_metadata["assign_to_params_buffers"] = assign
        self._load_from_state_dict(state_dict, prefix, local_metadata, True, missing, unexpected, errors)
        for name, child in self._modules.items():
            if child is not None:
                inner = f"{prefix}{name}."
                entries = {key: value for key, value in state_dict.items() if key.startswith(inner)}
                child._load_tree(entries, inner, metadata, strict, assign, missing, unexpected, errors)
        keys = _IncompatibleKeys(missing, unexpected)
        for hook in self._load_state_dict_post_hooks.values():
            if hook(self, keys) is not None:
                raise AssertionError(
                    "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return "
                    "new values, if incompatible_keys need to be modified, it should be done inplace."
                )

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Loads this module's own tensors, records what did not fit; overridden to read an older version."""
        for hook in self._load_state_dict_pre_hooks.values():
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name, tensor in self._own_tensors():
            key = prefix + name
            if key in state_dict:
                self._load_one(name, key, tensor, state_dict[key], assign, error_msgs)
            elif strict:
                missing_keys.append(key)
        self._load_extra_state(state_dict, prefix + EXTRA_STATE, strict, missing_keys, unexpected_keys)
        if strict:
            own = {EXTRA_STATE, *(name for name, _ in self._own_tensors())}
            for key in state_dict:
                head, *rest = key[len(prefix) :].split(".")
                if key.startswith(prefix) and head not in (self._modules if rest else own):
                    unexpected_keys.append(key)

    def _load_extra_state(
        self, state_dict: dict[str, Any], key: str, strict: bool, missing: list[str], unexpected: list[str]
    ) -> None:
        if self._has("set_extra_state"):
            if key in state_dict:
                self.set_extra_state(state_dict[key])
            elif strict:
                missing.append(key)
        elif strict and key in state_dict:
            unexpected.append(key)

    def _load_one(
        self, name: str, key: str, tensor: Tensor, value: Any, assign: bool, errors: list[str]
    ) -> None:
        if not isinstance(value, Tensor):
            errors.append(
                f'While copying the parameter named "{key}", expected warptape.Tensor or Tensor-like object '
                "from "
                f"checkpoint but received {type(value)}"
            )
            return
        if tensor.dim() == 0 and value.dim() == 1 and value.shape[0] == 1:
            value = value[0]  # checkpoints of old kept scalars as one element
        if isinstance(tensor, Placed) and value.shape == tensor.shape:  # a DTensor
            value = tensor.like_full(value)
        if value.shape != tensor.shape:
            errors.append(
                f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, "
                f"the shape in current model is {tensor.shape}."
            )
            return
        if tensor.is_meta and not value.is_meta and not assign:
            warnings.warn(
                f"for {key}: copying from a non-meta parameter in the checkpoint to a meta parameter in the "
                "current model, which is a no-op. (Did you mean to pass `assign=True`?)",
                stacklevel=2,
            )
        try:
            with wt.no_grad():
                if _cast.swap:
                    _swap_in(tensor, value, bool(assign))
                elif assign:
                    new = _assigned(tensor, value)
                    if isinstance(assign, _Assigned):
                        assign.put(self, name, tensor, new)
                    else:
                        setattr(self, name, new)
                else:
                    tensor.copy_(value)
        except Exception as error:
            errors.append(
                f'While {"swapping" if _cast.swap else "copying"} the parameter named "{key}", '
                f"whose dimensions in the model are {tensor.shape} and "
                f"whose dimensions in the checkpoint are {value.shape}, an exception occurred : {error.args}."
            )


def _swap_in(tensor: Tensor, value: Tensor, assign: bool) -> None:
    """Gives the module's tensor what its `module_load` makes of the checkpoint's."""
    new = tensor.module_load(value, assign=assign)
    if new is value or new is tensor:
        raise RuntimeError(
            "module_load returned one of self or other, please .detach() the result if returning one of the "
            "inputs in module_load"
        )
    if isinstance(tensor, Parameter):
        if isinstance(new, Parameter):
            new.requires_grad_(tensor.requires_grad)
        else:
            new = Parameter(new, tensor.requires_grad)
    swap_tensors(tensor, new)


def _assigned(tensor: Tensor, value: Tensor) -> Tensor:
    """The checkpoint's tensor, made a parameter where the module's is one."""
    if not isinstance(tensor, Parameter):
        return value
    from ...core.coded import CodedTensor

    grad = tensor.requires_grad and not isinstance(value, CodedTensor)  # those in few bits have none
    return value.requires_grad_(grad) if isinstance(value, Parameter) else Parameter(value, grad)
