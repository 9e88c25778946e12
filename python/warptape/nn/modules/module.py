"""Module: what every layer and model derives from.

Note [own parameters]: `self.weight` comes to `__getattr__` only after Python has failed to find it elsewhere,
which costs more than a small layer's arithmetic. A small layer's forward therefore reads `self._parameters`
first. KeyError means that the name is no parameter any more, as when the weight is computed from others; then
the attribute is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from warptape import _C
from warptape.core import Tensor, offered

from ..parameter import Buffer, Parameter
from ._hooks import (
    HookMixin,
    any_global_hook,
    register_module_backward_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from .cast import CastMixin
from .state import EXTRA_STATE as _EXTRA_STATE_KEY_SUFFIX  # noqa: F401  transformers reads it
from .state import StateMixin, _IncompatibleKeys  # noqa: F401 - libraries name it in annotations

__all__ = [
    "Module",
    "register_module_backward_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
]

Self = TypeVar("Self", bound="Module")


class Module(HookMixin, StateMixin, CastMixin):
    """A callable with parameters, buffers and other modules as attributes; a subclass writes `forward`.

    Parameters, tensors registered as buffers and modules live in dictionaries of their own, `_parameters`,
    `_buffers` and `_modules`, whichever way they are assigned; every other attribute is a plain one.

    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = nn.Linear(2, 3)
    ...     def forward(self, x):
    ...         return self.linear(x).relu()
    >>> Net()(torch.ones(4, 2)).shape
    torch.Size([4, 3])
    """

    call_super_init: bool = False
    #: Whether layers such as Dropout and BatchNorm behave as in training; `train()` and `eval()` set it.
    training: bool = True
    #: Attributes that `extra_repr` shows.
    _shown: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.call_super_init and (args or kwargs):
            name = type(self).__name__
            if kwargs:
                raise TypeError(
                    f"{name}.__init__() got an unexpected keyword argument '{next(iter(kwargs))}'"
                )
            raise TypeError(f"{name}.__init__() takes 1 positional argument but {len(args) + 1} were given")
        self.__dict__.update(
            training=True, _parameters={}, _buffers={}, _non_persistent_buffers_set=set(), _modules={}
        )
        self._init_hooks()
        self._init_state_hooks()
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    # --- calling ---

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._hooked or any_global_hook:  # Note [the cheap call] in _hooks.py
            return self._call_hooked(args, kwargs)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's result; every subclass overrides it.

        >>> nn.Linear(2, 3).forward(torch.ones(2)).shape
        torch.Size([3])
        """
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the module's calls as warptape.compile does, with its hooks; the module stays itself.

        Args:
            *args, **kwargs: what `warptape.compile` takes beside the model.
        """
        self.__dict__["_compiled_call_impl"] = offered("compile")(self._call_impl, *args, **kwargs)
        self.__dict__["_hooked"] = True

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_compiled_call_impl", None)
        return state

    # --- attributes ---

    def __getattr__(self, name: str) -> Any:
        # Reached only when neither the instance nor its class has the attribute.
        state = self.__dict__
        if "_parameters" in state:
            if name in (kind := state["_modules"]):
                return kind[name]
            if name in (kind := state["_parameters"]):
                return kind[name]
            if name in (kind := state["_buffers"]):
                return kind[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __setattr__(self, name: str, value: object) -> None:
        state = self.__dict__
        if state.get(name, state) is not value:
            _C._module_changed()  # for calls that are replayed
        is_tensor = isinstance(value, Tensor)
        if is_tensor and isinstance(value, Parameter):
            self._take_name(name, "parameter", but="_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._take_name(name, "module", but="_modules")
            state["_modules"][name] = value
        elif is_tensor and isinstance(value, Buffer):
            self._take_name(name, "buffer", but="_buffers")
            self.register_buffer(name, value, value.persistent)
        elif name in state.get("_parameters", ()):
            if value is not None:
                raise _wrong_kind(value, "as parameter", name, "warptape.nn.Parameter or None expected")
            state["_parameters"][name] = None
        elif name in state.get("_modules", ()):
            if value is not None:
                raise _wrong_kind(value, "as child module", name, "warptape.nn.Module or None expected")
            state["_modules"][name] = None
        elif name in state.get("_buffers", ()):
            if value is not None and not is_tensor:
                raise _wrong_kind(
                    value, "as buffer", name, "warptape.nn.Buffer, warptape.Tensor or None expected"
                )
            state["_buffers"][name] = value
        else:
            super().__setattr__(name, value)

    def _take_name(self, name: str, kind: str, but: str) -> None:
        """Drops what else goes by `name`, so that the dictionary `but` can have it."""
        state = self.__dict__
        if "_parameters" not in state:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        for home in (state, *(state[d] for d in ("_parameters", "_buffers", "_modules") if d != but)):
            home.pop(name, None)
        state["_non_persistent_buffers_set"].discard(name)

    def __delattr__(self, name: str) -> None:
        _C._module_changed()
        for kind in (self._parameters, self._buffers, self._modules):
            if name in kind:
                del kind[name]
                self._non_persistent_buffers_set.discard(name)
                return
        super().__delattr__(name)

    def __dir__(self) -> list[str]:
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[0].isdigit())

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Hook dictionaries first: what was pickled by an older version may lack the newer ones.
        self._init_hooks()
        self._init_state_hooks()
        self.__dict__.update(state)

    # --- registration ---

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter under `name`; None reserves the name and stays out of `state_dict`.

        >>> module = nn.Module()
        >>> module.register_parameter("scale", nn.Parameter(torch.ones(1)))
        >>> list(module.state_dict())
        ['scale']
        """
        self._check_name(name, "parameter", self.__dict__.get("_parameters"))
        if param is not None and not isinstance(param, Parameter):
            raise _wrong_kind(param, "object to parameter", name, "warptape.nn.Parameter or None required")
        if param is not None and param.grad_fn is not None:
            raise ValueError(
                f"Cannot assign non-leaf Tensor to parameter '{name}'. Model parameters must be created "
                f"explicitly. To express '{name}' as a function of another Tensor, compute the value in the "
                "forward() method."
            )
        _C._module_changed()
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Adds a tensor that is no parameter; with `persistent` it is part of `state_dict`.

        >>> module = nn.Module()
        >>> module.register_buffer("mean", torch.zeros(2))
        >>> module.mean
        tensor([0., 0.])
        """
        self._check_name(name, "buffer", self.__dict__.get("_buffers"))
        if tensor is not None and not isinstance(tensor, Tensor):
            raise _wrong_kind(tensor, "object to buffer", name, "warptape Tensor or None required")
        _C._module_changed()
        self._buffers[name] = tensor
        if persistent:
            self._non_persistent_buffers_set.discard(name)
        else:
            self._non_persistent_buffers_set.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a child module under `name`.

        >>> module = nn.Sequential()
        >>> module.add_module("act", nn.ReLU())
        >>> module
        Sequential(
          (act): ReLU()
        )
        """
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"{_typename(module)} is not a Module subclass")
        self._check_name(name, "module", self.__dict__.get("_modules"))
        _C._module_changed()
        self._modules[name] = module

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as `add_module`.

        Args:
            name: of the attribute, without dots.
            module: what is put there; None reserves the name.
        """
        self.add_module(name, module)

    def _check_name(self, name: Any, kind: str, home: dict[str, Any] | None) -> None:
        if home is None:
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {_typename(name)}")
        if hasattr(self, name) and name not in home:
            raise KeyError(f"attribute '{name}' already exists")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got: {name}')
        if name == "":
            raise KeyError(f'{kind} name can\'t be empty string ""')

    # --- look-up by dotted path ---

    def get_submodule(self, target: str) -> Module:
        """The module at the dotted path `target`, "" this one. AttributeError where the path ends.

        >>> nn.Sequential(nn.Sequential(nn.ReLU())).get_submodule("0.0")
        ReLU()
        """
        module: Any = self
        for item in target.split(".") if target else ():
            if not hasattr(module, item):
                raise AttributeError(f"{module._get_name()} has no attribute `{item}`")
            module = getattr(module, item)
            if not isinstance(module, Module):
                raise AttributeError(f"`{item}` is not an nn.Module")
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Puts `module` at the dotted path `target`; with `strict` only where there is one already.

        Args:
            target: a path like "layers.0.norm".
            module: what is put there.
            strict: whether something must be there already.

        Raises: ValueError for an empty path, AttributeError for a path that does not exist.
        """
        if target == "":
            raise ValueError("Cannot set the submodule without a target name!")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict and not hasattr(parent, name):
            raise AttributeError(f"{parent._get_name()} has no attribute `{name}`")
        if hasattr(parent, name) and not isinstance(getattr(parent, name), Module):
            raise AttributeError(f"`{name}` is not an nn.Module")
        if not isinstance(module, Module):
            raise ValueError(f"`module` is not an nn.Module, found {type(module)}")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at the dotted path `target`.

        Args:
            target: a path like "layers.0.weight".

        Raises: AttributeError where it does not exist or is no parameter.
        """
        return self._get_tensor(
            target, lambda module, name: isinstance(getattr(module, name), Parameter), "an nn.Parameter"
        )

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at the dotted path `target`.

        Args:
            target: a path like "layers.0.running_mean".

        Raises: AttributeError where it does not exist or is no buffer.
        """
        return self._get_tensor(target, lambda module, name: name in module._buffers, "a buffer")

    def _get_tensor(self, target: str, fits: Callable[[Module, str], bool], kind: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        if not hasattr(module, name):
            raise AttributeError(f"{module._get_name()} has no attribute `{name}`")
        if not fits(module, name):
            raise AttributeError(f"`{name}` is not {kind}")
        return getattr(module, name)

    # --- walking the tree ---

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(dotted name, module) of this module and all inside it, parents first, each once by default.

        >>> [name for name, _ in nn.Sequential(nn.Linear(2, 3), nn.ReLU()).named_modules()]
        ['', '0', '1']
        """
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                inner = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(memo, inner, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all inside it.

        >>> len(list(nn.Sequential(nn.Linear(2, 3), nn.ReLU()).modules()))
        3
        """
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of the modules directly inside this one, each once.

        >>> dict(nn.Sequential(nn.ReLU(), nn.Tanh()).named_children())
        {'0': ReLU(), '1': Tanh()}
        """
        seen = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The modules directly inside this one.

        >>> list(nn.Sequential(nn.ReLU(), nn.Tanh()).children())
        [ReLU(), Tanh()]
        """
        for _, child in self.named_children():
            yield child

    def _named_members(
        self, get_members_fn: Callable, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        seen = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in modules:
            for name, member in get_members_fn(module):
                if member is None or member in seen:
                    continue
                if remove_duplicate:
                    seen.add(member)
                yield (f"{path}.{name}" if path else name), member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter), of this module alone unless `recurse`; a shared one once.

        >>> [name for name, _ in nn.Sequential(nn.Linear(2, 3)).named_parameters()]
        ['0.weight', '0.bias']
        """
        return self._named_members(lambda m: m._parameters.items(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """What an optimizer takes: the parameters of this module and, with `recurse`, all inside it.

        >>> [p.shape for p in nn.Linear(2, 3).parameters()]
        [torch.Size([3, 2]), torch.Size([3])]
        """
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """(dotted name, buffer), of this module alone unless `recurse`; a shared one once.

        >>> [name for name, _ in nn.BatchNorm1d(2).named_buffers()]
        ['running_mean', 'running_var', 'num_batches_tracked']
        """
        return self._named_members(lambda m: m._buffers.items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module and, with `recurse`, of all inside it.

        Each tensor comes once, even if several modules hold it.

        Args:
            recurse: whether the modules inside count, too.
        """
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def apply(self: Self, fn: Callable[[Module], Any]) -> Self:
        """Runs `fn` on every module inside this one, children first, then on this one; returns this one.

        >>> def start(module):
        ...     if isinstance(module, nn.Linear):
        ...         nn.init.zeros_(module.bias)
        >>> nn.Sequential(nn.Linear(2, 3)).apply(start)[0].bias.tolist()
        [0.0, 0.0, 0.0]
        """
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # --- modes and gradients ---

    def train(self: Self, mode: bool = True) -> Self:
        """Sets `training`, here and in all modules inside: dropout and batch norm look at it.

        >>> nn.Dropout().train().training
        True
        """
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: Self) -> Self:
        """The same as `train(False)`.

        >>> nn.Dropout().eval()(torch.ones(3))
        tensor([1., 1., 1.])
        """
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Says of every parameter whether gradients are wanted.

        Used to freeze parts of a model.

        Args:
            requires_grad: False leaves the parameters out of the next backward.

        Returns: the module.
        """
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradient of every parameter, or fills it with zeros if not `set_to_none`.

        >>> model = nn.Linear(2, 1)
        >>> model(torch.ones(2)).sum().backward()
        >>> model.zero_grad()
        >>> model.weight.grad is None
        True
        """
        for parameter in self.parameters():
            if parameter.grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                parameter.grad = parameter.grad.detach()
                parameter.grad.zero_()

    # --- text ---

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """What stands between the parentheses of this module's own line.

        A layer of one's own overrides it to show its sizes; by default the attributes named in `_shown` are
        shown.
        """
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)

    def __repr__(self) -> str:
        extra = self.extra_repr()
        extra_lines = extra.split("\n") if extra else []
        child_lines = [f"({name}): {_indent(repr(child))}" for name, child in self._modules.items()]
        if not child_lines and len(extra_lines) <= 1:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join(extra_lines + child_lines) + "\n)"

    def _repr_html_(self) -> str:
        from ...core.rich import module_html

        return module_html(self)


_C._compare_by_identity(Module)


class Plain(Module):
    """A layer that is `_function` of its input and of the attributes `_shown`, in that order.

    An elementwise layer of one's own needs no forward then; lists of arguments that are not attributes need
    one.
    """

    _function: Any

    def forward(self, input: Tensor) -> Tensor:
        """The function's result."""
        return self._function(input, *[getattr(self, name) for name in self._shown])


def _indent(text: str) -> str:
    """Indents all lines but the first."""
    return text.replace("\n", "\n  ")


def _typename(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _wrong_kind(value: object, where: str, name: str, wanted: str) -> TypeError:
    return TypeError(f"cannot assign '{_typename(value)}' {where} '{name}' ({wanted})")
