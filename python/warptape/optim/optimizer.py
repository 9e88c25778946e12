"""The base of all optimizers: parameter groups, per-parameter state, hooks and the state_dict layout.

Layout of ``state_dict()``: ``{"state": {index: {...}}, "param_groups": [{..., "params": [index, ...]}]}``,
where a parameter's index is its position counted over all groups. It is PyTorch's, so files go both ways.
"""

from __future__ import annotations

import copy
import functools
import operator
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Literal, TypeAlias

from warptape import _C
from warptape import core as wt
from warptape.core import Tensor

from ..autograd.ranges import is_recording, record_function
from ..core.hooks import RemovableHandle, add_hook
from ..core.placed import is_gathered
from ._split import update_full_tensors, update_shards
from ._state_dict import cast_state

__all__ = [
    "Optimizer",
    "ParamsT",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "required",
]

ParamsT: TypeAlias = "Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]"

_global_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
_global_post_hooks: OrderedDict[int, Callable] = OrderedDict()


class _Required:
    """Marks an option in ``defaults`` that every parameter group must give."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _Required()


def register_optimizer_step_pre_hook(hook: Callable) -> RemovableHandle:
    """Registers ``hook(optimizer, args, kwargs)`` to run before ``step`` of every optimizer.
    Returns a handle whose `remove()` takes the hook away."""
    return add_hook(_global_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Callable) -> RemovableHandle:
    """Registers ``hook(optimizer, args, kwargs)`` to run after ``step`` of every optimizer.
    Returns a handle whose `remove()` takes the hook away."""
    return add_hook(_global_post_hooks, hook)


def _with_hooks(step: Callable) -> Callable:
    """Wraps a class's ``step``: runs the step hooks and records the call for the schedulers' order check."""

    @functools.wraps(step)
    def hooked_step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if "_in_hooked_step" not in self.__dict__:  # a wrapper of an optimizer that calls no __init__
            return step(self, *args, **kwargs)
        _C._refuse_replay("it calls an optimizer")
        if (
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_pre_hooks
            or _global_post_hooks
            or is_recording()
        ) and not self._in_hooked_step:
            result = self._step_with_hooks(step, args, kwargs)
        else:
            result = step(self, *args, **kwargs)
        self._opt_called = True
        return result

    hooked_step.hooked = True  # type: ignore[attr-defined]
    return hooked_step


class Optimizer:
    """Base class of all optimizers.

    Args:
        params: tensors, ``(name, tensor)`` pairs, or dicts with ``"params"`` and options of that group.
        defaults: options for groups that do not give them.

    Raises:
        TypeError: ``params`` is one tensor, a set, or holds something that is no tensor.
        ValueError: no parameters, a tensor that is no leaf, or one that is in two groups.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.5}])
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """

    #: A dict per group: "params", its tensors, and its options, which may be changed between steps.
    param_groups: list[dict[str, Any]]  # no default: a wrapper finds its own by __getattr__
    #: What the update of an element reads: "element", its own gradient and state alone, as SGD and Adam;
    #: "parameter", all elements of its parameter, as Muon's orthogonalisation or a norm of the parameter;
    #: "all", other parameters, as LBFGS. It says how ``BucketOptimizer`` updates DTensors: by elements on
    #: this rank's shards, else on full tensors. ``step`` of any other class sees DTensors, whose ops are of
    #: the whole.
    update_scope: Literal["element", "parameter", "all"] = "element"
    # What GradScaler sets around a step: the gradients' scale, and whether one of them is inf or nan.
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    _reads_scale = False
    _takes_complex = True

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        if isinstance(params, wt.Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                f"but got {type(params).__name__}; put the tensor into a list"
            )
        self.defaults = defaults
        self._init_hooks()
        self.state: defaultdict[Any, Any] = defaultdict(dict)
        self.param_groups = []
        groups: list[Any] = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        step = cls.__dict__.get("step")
        if callable(step) and not getattr(step, "hooked", False):
            cls.step = _with_hooks(step)  # type: ignore[method-assign]

    def _init_hooks(self) -> None:
        self._optimizer_step_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._optimizer_step_post_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._optimizer_state_dict_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._optimizer_state_dict_post_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._optimizer_load_state_dict_pre_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._optimizer_load_state_dict_post_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._in_hooked_step = False
        self._opt_called = False
        self._plans: dict[int, _GroupBuckets] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_optimizer_step_pre_hooks" not in self.__dict__:
            self._init_hooks()
        self.__dict__.update(state)
        self._plans = {}
        newer = self._newer_options()
        for group in self.param_groups:
            for name, value in newer.items():
                group.setdefault(name, value)

    def _newer_options(self) -> dict[str, Any]:
        """Options that groups of older files lack."""
        return {}

    def __repr__(self) -> str:
        groups = [
            "\n".join(
                [f"Parameter Group {i}", *(f"    {k}: {group[k]}" for k in sorted(group) if k != "params")]
            )
            for i, group in enumerate(self.param_groups)
        ]
        return f"{type(self).__name__} (\n" + "\n\n".join(groups) + "\n)"

    # Parameter groups -------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group: a dict with ``"params"`` and any options that differ from the defaults.

        Raises:
            TypeError: no dict, a set of parameters, or something that is no tensor.
            ValueError: a non-leaf tensor, a missing option, names given for some only, or a parameter of
                another group.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, wt.Tensor):
            params = [params]
        elif isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of "
                "tensors in sets will change between runs. Please use a list instead."
            )
        group = {**param_group, **_split_names(list(params))}
        self._check_params(group["params"])
        for name, default in self.defaults.items():
            if default is required and name not in group:
                raise ValueError(
                    f"parameter group didn't specify a value of required optimization parameter {name}"
                )
            group.setdefault(name, default)
        if self.param_groups and ("param_names" in group) != ("param_names" in self.param_groups[0]):
            which = "without" if "param_names" in self.param_groups[0] else "with"
            raise ValueError(
                "all optimizer param groups should be with/without names. "
                f"cannot add param group {which} names to the optimizer"
            )
        param_group.update(group)
        self.param_groups.append(param_group)

    def _check_params(self, params: list[Any]) -> None:
        for p in params:
            if not isinstance(p, wt.Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}"
                )
            if is_gathered(p):
                raise ValueError(
                    "can't optimize a parameter that fully_shard has gathered for a pass; call reshard() of "
                    "the sharded modules, and take their parameters then"
                )
            if p.is_complex() and not self._takes_complex:
                raise wt.DtypeError(f"{type(self).__name__} does not support complex parameters")
            if not self.defaults.get("differentiable") and not (p.is_leaf or p.retains_grad):
                raise ValueError(
                    "can't optimize a non-leaf Tensor; pass the leaf it was computed from, or detach it"
                )
        own = {id(p) for p in params}
        if len(own) != len(params):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this will cause "
                "an error",
                stacklevel=4,
            )
        if any(id(p) in own for group in self.param_groups for p in group["params"]):
            raise ValueError("some parameters appear in more than one parameter group")

    # The step ---------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters once from their gradients.

        Args:
            closure: computes the loss again (with gradients enabled) and returns it.

        >>> weight = torch.ones(1, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> (3 * weight).sum().backward()
        >>> optimizer.step()
        >>> weight
        tensor([-0.5000], requires_grad=True)
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step()")

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether `step` reads `grad_scale` and `found_inf`, which GradScaler sets."""
        return self._reads_scale and bool(self.defaults.get("fused"))

    def _step_with_hooks(self, step: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        # One flag keeps a subclass whose step() calls super().step() from running the hooks twice.
        call_args: tuple = (self, *args)
        self._in_hooked_step = True
        try:
            for hook in chain(_global_pre_hooks.values(), self._optimizer_step_pre_hooks.values()):
                changed = hook(self, call_args, kwargs)
                if changed is None:
                    continue
                if not isinstance(changed, tuple) or len(changed) != 2:
                    raise RuntimeError(
                        f"{hook} must return None or a tuple of (new_args, new_kwargs), but got {changed}."
                    )
                call_args, kwargs = changed
            with record_function(f"Optimizer.step#{type(self).__name__}.step"):
                result = step(*call_args, **kwargs)
            for hook in chain(self._optimizer_step_post_hooks.values(), _global_post_hooks.values()):
                hook(self, call_args, kwargs)
        finally:
            self._in_hooked_step = False
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears every parameter's gradient.

        Args:
            set_to_none: drop the gradients (saves memory). False fills them with zeros in place.

        >>> weight = torch.ones(1, requires_grad=True)
        >>> (3 * weight).sum().backward()
        >>> torch.optim.SGD([weight], lr=0.5).zero_grad()
        >>> weight.grad is None
        True
        """
        _C._refuse_replay("it calls an optimizer")
        if set_to_none:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None
            return
        for group in self.param_groups:
            by_kind: dict[Any, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.grad_fn is not None:
                    p.grad.detach_()
                else:
                    p.grad.requires_grad_(False)
                if p.grad.is_sparse:
                    p.grad.zero_()
                else:
                    by_kind.setdefault((p.grad.device, p.grad.dtype), []).append(p.grad)
            for grads in by_kind.values():
                wt._foreach_zero_(grads)

    # Saving and loading -----------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state as plain dicts; tensors in it are the live ones, not copies.

        >>> list(torch.optim.SGD([torch.ones(1)]).state_dict())
        ['state', 'param_groups']
        """
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        index: dict[int, int] = {}
        for group in self.param_groups:
            for p in group["params"]:
                index.setdefault(id(p), len(index))
        groups = [{**group, "params": [index[id(p)] for p in group["params"]]} for group in self.param_groups]
        state = {
            index[id(key)] if isinstance(key, wt.Tensor) else key: value for key, value in self.state.items()
        }
        packed: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in self._optimizer_state_dict_post_hooks.values():
            changed = hook(self, packed)
            if changed is not None:
                packed = changed
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the state and options of ``state_dict``.

        State tensors are copied to their parameter's device and dtype; ``step`` stays float32. NumPy arrays
        and tensors of other libraries are taken, too.

        Raises:
            ValueError: the number of groups, or of parameters in a group, differs.

        >>> first, second = (torch.optim.SGD([torch.ones(1)], lr=lr) for lr in (0.1, 0.2))
        >>> second.load_state_dict(first.state_dict())
        >>> second.param_groups[0]["lr"]
        0.1
        """
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            if changed is not None:
                state_dict = changed
        saved = copy.deepcopy(list(state_dict["param_groups"]))
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        for current, loaded in zip(self.param_groups, saved):
            if len(current["params"]) != len(loaded["params"]):
                raise ValueError(
                    "loaded state dict contains a parameter group that doesn't match the size of "
                    "optimizer's group"
                )
        param_of = {
            key: p
            for current, loaded in zip(self.param_groups, saved)
            for key, p in zip(loaded["params"], current["params"])
        }
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, value in state_dict["state"].items():
            p = param_of.get(key)
            state[key if p is None else p] = copy.deepcopy(value) if p is None else cast_state(p, value)
        for current, loaded in zip(self.param_groups, saved):
            loaded["params"] = current["params"]
            if "param_names" in current:
                loaded.setdefault("param_names", current["param_names"])
        self.__setstate__({"state": state, "param_groups": saved})
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    # Hooks ------------------------------------------------------------------------------------------

    def register_step_pre_hook(self, hook: Callable) -> RemovableHandle:
        """``hook(optimizer, args, kwargs)`` runs before ``step``; may return ``(new_args, new_kwargs)``.
        Returns a handle whose `remove()` takes the hook away."""
        return add_hook(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Callable) -> RemovableHandle:
        """``hook(optimizer, args, kwargs)`` runs after ``step``.
        Returns a handle whose `remove()` takes the hook away."""
        return add_hook(self._optimizer_step_post_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """``hook(optimizer)`` runs before ``state_dict`` is written.
        `prepend` puts it before other hooks. Returns a handle, whose `remove()` takes it away."""
        return add_hook(self._optimizer_state_dict_pre_hooks, hook, prepend=prepend)

    def register_state_dict_post_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """``hook(optimizer, state_dict)`` runs after ``state_dict`` is written; it may return another one.
        `prepend` puts it before other hooks. Returns a handle, whose `remove()` takes it away."""
        return add_hook(self._optimizer_state_dict_post_hooks, hook, prepend=prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """``hook(optimizer, state_dict)`` runs before loading; it may return another state dict.
        `prepend` puts it before other hooks. Returns a handle, whose `remove()` takes it away."""
        return add_hook(self._optimizer_load_state_dict_pre_hooks, hook, prepend=prepend)

    def register_load_state_dict_post_hook(self, hook: Callable, prepend: bool = False) -> RemovableHandle:
        """``hook(optimizer)`` runs after loading.
        `prepend` puts it before other hooks. Returns a handle, whose `remove()` takes it away."""
        return add_hook(self._optimizer_load_state_dict_post_hooks, hook, prepend=prepend)


class _GroupBuckets:
    """What a group's last step found, so that the next one need not sort its parameters again."""

    __slots__ = ("buckets", "dtypes", "params", "types", "whole")

    def __init__(self, params: list[Tensor], types: list[type], dtypes: list[Any]) -> None:
        self.params, self.types, self.dtypes = list(params), types, dtypes
        by_kind: dict[tuple[Any, Any, bool], list[int]] = {}
        for i, (p, kind) in enumerate(zip(params, types)):
            if kind is not _NoneType:
                sparse = kind is not wt.Tensor and p.grad.is_sparse  # type: ignore[union-attr]
                by_kind.setdefault((p.device, dtypes[i], sparse), []).append(i)
        # The plain case: every parameter has a gradient and all are of one kind.
        self.whole = len(by_kind) == 1 and _NoneType not in types and not next(iter(by_kind))[2]
        self.buckets = [(index, [params[i] for i in index], kind[2]) for kind, index in by_kind.items()]

    def fits(self, params: list[Tensor], types: list[type], dtypes: list[Any]) -> bool:
        """Whether these are the same parameters, with gradients of the same types, and of the same dtypes."""
        return self.types == types and self.dtypes == dtypes and all(map(operator.is_, self.params, params))


_NoneType = type(None)


class BucketOptimizer(Optimizer):
    """One whose step is ``_update(group, params, grads)`` on buckets: parameters of one device and dtype.

    A subclass writes `_update`; buckets let one kernel take many parameters, instead of one call for each.
    """

    _laid_as_parameter: tuple[str, ...] = (
        "master_param",
    )  # the state that has an element for each of the parameter's

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters once. Returns ``closure()``'s loss, or None.

        Args:
            closure: computes the loss anew, with gradients; called once, before the update.
        """
        loss = None
        if closure is not None:
            with wt.enable_grad():
                loss = closure()
        if self.found_inf is not None and not self.found_inf.is_cuda and self.found_inf.item():
            return loss
        # no_grad() by hand: the context manager would be a fifth of a small model's step.
        recording = wt.is_grad_enabled()
        _C._set_grad_enabled(recording and self.defaults.get("differentiable", False))
        try:
            for group in self.param_groups:
                for params, grads, sparse in self._buckets(group):
                    if sparse:
                        self._update_sparse(group, params, grads)
                        continue
                    if self.update_scope == "parameter":
                        params, grads = update_full_tensors(self, group, params, grads)
                    update_shards(self, group, params, grads)
        finally:
            _C._set_grad_enabled(recording)
        return loss

    def _scaling(self, param: Tensor) -> dict[str, Any]:
        """What GradScaler says of the gradients, as the fused updates take it."""
        scaling = {"grad_scale": self.grad_scale, "found_inf": self.found_inf}
        return {name: t.to(param.device).reshape(()) for name, t in scaling.items() if t is not None}

    def _master_params(self, params: list[Tensor]) -> list[Tensor] | None:
        """float32 copies of float16 or bfloat16 ``params``, all of one dtype, made where there are none.

        The rest of the state becomes float32, too. None for other dtypes.
        """
        if params[0].dtype.itemsize != 2:
            return None
        states = [self.state[p] for p in params]
        for p, state in zip(params, states):
            if "master_param" not in state:
                state |= {k: v.float() for k, v in state.items() if k != "step" and v is not None}
                state["master_param"] = p.detach().float()
        return [state["master_param"] for state in states]

    def _update(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        raise NotImplementedError

    def _update_sparse(self, group: dict[str, Any], params: list[Tensor], grads: list[Any]) -> None:
        """`_update` of parameters whose gradients are sparse."""
        raise RuntimeError(
            f"{type(self).__name__} does not support sparse gradients, please consider SparseAdam instead"
        )

    def _buckets(self, group: dict[str, Any]) -> list[tuple[list[Tensor], list[Any], bool]]:
        """The group's parameters that have a gradient, with it, as one pair of lists per device and dtype;
        and whether these gradients are sparse."""
        params = group["params"]
        grads = [p.grad for p in params]
        types, dtypes = [*map(type, grads)], [p.dtype for p in params]
        plan = self._plans.get(id(group))
        if plan is None or not plan.fits(params, types, dtypes):
            plan = self._plans[id(group)] = _GroupBuckets(params, types, dtypes)
        if plan.whole:
            return [(params, grads, False)]
        return [(some, [grads[i] for i in index], sparse) for index, some, sparse in plan.buckets]


def as_real(t: Tensor) -> Any:
    """A complex tensor [*] as a view of pairs [*, 2]: to an optimizer both parts are parameters of their own.
    Other objects pass."""
    return wt.view_as_real(t) if isinstance(t, wt.Tensor) and t.is_complex() else t


def rate_of(lr: float | Tensor, param: Tensor) -> dict[str, Any]:
    """The learning rate as a fused update takes it. One that lies on the parameters' device stays there, so
    that a captured step reads it at each replay."""
    if type(lr) is float:
        return {"lr": lr}
    on_device = isinstance(lr, wt.Tensor) and lr.is_cuda and param.is_cuda
    return {"lr": 0.0, "lr_tensor": lr} if on_device else {"lr": float(lr)}


def _split_names(params: list[Any]) -> dict[str, Any]:
    """``{"params": [...]}``, and ``"param_names"`` too if ``params`` are ``(name, tensor)`` pairs."""
    named = [isinstance(p, tuple) for p in params]
    if not any(named):
        return {"params": params}
    if not all(named):
        raise ValueError("all optimizer params should be with/without names. Some param names are missing")
    return {"params": [p for _, p in params], "param_names": [name for name, _ in params]}


def options(given: dict[str, Any], *but: str) -> dict[str, Any]:
    """The options among a constructor's ``locals()``, `given`: all but itself, ``params`` and the names
    `but`."""
    left_out = ("self", "params", "__class__", *but)
    return {name: value for name, value in given.items() if name not in left_out}


def check_common_options(
    lr: float | Tensor,
    weight_decay: float | Tensor,
    differentiable: bool,
    foreach: bool | None,
    fused: bool | None,
) -> None:
    """Refuses option values that no optimizer here can serve.

    Raises:
        ValueError: a negative learning rate or weight decay, or an ``lr`` tensor of more than one element.
        RuntimeError: ``fused`` together with ``foreach`` or ``differentiable``.
    """
    if isinstance(lr, wt.Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not weight_decay >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {weight_decay}")
    if fused and foreach:
        raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
    if fused and differentiable:
        raise RuntimeError("`fused` does not support `differentiable`")


def check_range(name: str, value: float, low: float = 0.0, below: float = float("inf")) -> None:
    """ValueError unless low <= value < below; `name` is what the error calls the option."""
    if not low <= value < below:
        raise ValueError(f"Invalid {name}: {value}")


def check_betas(betas: tuple[Any, Any]) -> None:
    """ValueError unless both decays of Adam and its kin lie in [0, 1)."""
    for i, beta in enumerate(betas):
        check_range(f"beta parameter at index {i}", beta, below=1.0)
