"""Pruning by masks: a parameter becomes `name_orig` times a buffer `name_mask`, before each forward pass.

Gradients and optimizers see `name_orig`. Masks make nothing smaller: `torch.ao.shrink` does.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

from warptape import core as wt

from ...core import Tensor
from ..modules.module import Module

__all__ = [
    "BasePruningMethod",
    "CustomFromMask",
    "Identity",
    "L1Unstructured",
    "LnStructured",
    "PruningContainer",
    "RandomStructured",
    "RandomUnstructured",
    "custom_from_mask",
    "global_unstructured",
    "identity",
    "is_pruned",
    "l1_unstructured",
    "ln_structured",
    "random_structured",
    "random_unstructured",
    "remove",
]


def _hook_of(module: Module, name: str) -> tuple[int, BasePruningMethod] | None:
    """The key and the method of the hook that prunes this parameter, if one does."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
            return key, hook
    return None


def pruned_names(module: Module) -> list[str]:
    """The names of the parameters of a module that masks prune.

    Args:
        module: alone, without those within it.
    """
    hooks = module._forward_pre_hooks.values()
    return [hook._tensor_name for hook in hooks if isinstance(hook, BasePruningMethod)]


class BasePruningMethod(ABC):
    """What a method of pruning has in common: a subclass has PRUNING_TYPE and `compute_mask`.

    PRUNING_TYPE is "unstructured" (single elements), "structured" (slices along a dim) or "global". An
    instance is the hook that computes the masked parameter before a module's forward pass.
    """

    _tensor_name: str
    PRUNING_TYPE: Literal["unstructured", "structured", "global"]

    def __call__(self, module: Module, inputs: Any) -> None:
        """Computes the masked parameter."""
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The mask of `t`, an importance for each element, which is 0 at least where default_mask is.

        Args:
            t: importances, of the parameter's shape.
            default_mask: what earlier pruning left, of the same shape.
        """

    def apply_mask(self, module: Module) -> Tensor:
        """`name_orig` times `name_mask`.

        Args:
            module: the one that holds both.

        Raises: AssertionError where the module is not pruned.
        """
        name = getattr(self, "_tensor_name", None)
        if name is None or not hasattr(module, name + "_mask"):
            raise AssertionError(f"Module {module} has to be pruned")
        original, mask = getattr(module, name + "_orig"), getattr(module, name + "_mask")
        return mask.to(dtype=original.dtype) * original

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Tensor | None = None, **kwargs: Any
    ) -> BasePruningMethod:
        """Prunes a parameter by cls(*args, **kwargs), on top of what it was pruned by before.

        Raises: ValueError, TypeError for arguments that do not fit; the module is then as it was.
        """
        method: Any = cls(*args, **kwargs)
        method._tensor_name = name
        old = _hook_of(module, name)
        original = getattr(module, name if old is None else name + "_orig", None)
        if not isinstance(original, Tensor):
            raise AttributeError(f"prune: {type(module).__name__} has no parameter {name!r}")
        if importance_scores is None:
            importance_scores = original
        elif importance_scores.shape != original.shape:
            raise ValueError(
                f"prune: expected importance_scores of shape {list(original.shape)}, as the parameter "
                f"{name} has, got {list(importance_scores.shape)}"
            )
        if old is not None:
            container = PruningContainer()
            container._tensor_name = name
            for each in old[1] if isinstance(old[1], PruningContainer) else [old[1]]:
                container.add_pruning_method(each)
            container.add_pruning_method(method)
            method = container
            default = getattr(module, name + "_mask").detach().clone()
        else:
            default = wt.ones_like(original)
        with wt.no_grad():
            mask = method.compute_mask(importance_scores, default_mask=default)
        if mask.shape != original.shape:
            raise ValueError(f"prune: the mask has shape {list(mask.shape)}, {name} {list(original.shape)}")
        if old is not None:
            del module._forward_pre_hooks[old[0]]
        else:
            module.register_parameter(name + "_orig", module._parameters.pop(name))
        module.register_buffer(name + "_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """`t` times the mask that its elements, or `importance_scores` of its shape, ask for.

        Neither tensor is changed.

        Args:
            t: what is pruned.
            default_mask: ones if None.
            importance_scores: what the mask is chosen by; `t` if None.

        Raises: ValueError for scores of another shape.
        """
        if importance_scores is None:
            importance_scores = t
        elif importance_scores.shape != t.shape:
            raise ValueError(
                f"prune: expected importance_scores of shape {list(t.shape)}, "
                f"got {list(importance_scores.shape)}"
            )
        default_mask = wt.ones_like(t) if default_mask is None else default_mask
        return t * self.compute_mask(importance_scores, default_mask=default_mask)

    def remove(self, module: Module) -> None:
        """Makes the pruning permanent: the parameter is there again, with its zeros.

        Args:
            module: loses `name_orig`, `name_mask` and the hook.

        Raises: AssertionError where the module is not pruned.
        """
        name = self._tensor_name
        if name is None or not hasattr(module, name + "_mask"):
            raise AssertionError(f"Module {module} has to be pruned before pruning can be removed")
        weight = self.apply_mask(module)
        if hasattr(module, name):
            delattr(module, name)
        original = module._parameters.pop(name + "_orig")
        original.data = weight.data
        del module._buffers[name + "_mask"]
        module.register_parameter(name, original)


class PruningContainer(BasePruningMethod):
    """The methods by which one parameter is pruned, one after the other.

    Args:
        *args: methods, or one iterable of them, all of one parameter.
    """

    def __init__(self, *args: Any) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if len(args) == 1 and not isinstance(args[0], Iterable):
            self._tensor_name = args[0]._tensor_name
            self.add_pruning_method(args[0])
        else:
            for method in args[0] if len(args) == 1 else args:
                self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod | None) -> None:
        """Appends a method. Raises: TypeError for anything else, ValueError for one of another parameter."""
        if method is None:
            return
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if getattr(self, "_tensor_name", method._tensor_name) != method._tensor_name:
            raise ValueError(
                f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to "
                f"PruningContainer {self}. Found '{method._tensor_name}'"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Any:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: int) -> Any:
        return self._pruning_methods[idx]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """`default_mask`, and what the last method prunes of what it leaves.

        Args:
            t: importances, of the parameter's shape.
            default_mask: what earlier methods left.
        """
        method = self._pruning_methods[-1]
        mask = default_mask.to(dtype=t.dtype).clone()
        kind = method.PRUNING_TYPE
        part: Any
        if kind == "unstructured":
            part = mask == 1
        elif kind == "structured":
            dim = method.dim + t.ndim if method.dim < 0 else method.dim  # type: ignore[attr-defined]
            others = [d for d in range(t.ndim) if d != dim]
            kept = (mask.sum(dim=others) if others else mask) != 0
            part = tuple(kept if d == dim else slice(None) for d in range(t.ndim))
        elif kind == "global":
            part = (slice(None),) * t.ndim
        else:
            raise ValueError(f"Unrecognized PRUNING_TYPE {kind}")
        mask[part] = method.compute_mask(t[part], default_mask=mask[part]).to(mask.dtype)
        return mask


class Identity(BasePruningMethod):
    """Prunes nothing, but with a mask of ones.

    It prepares a parameter for masks that are set later.
    """

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """`default_mask`."""
        return default_mask


class RandomUnstructured(BasePruningMethod):
    """Prunes single elements, by chance.

    Args:
        amount: how many: an int, or a share from 0.0 to 1.0.
    """

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: float) -> None:
        _check_amount(amount)
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """A mask of t's shape.

        Args:
            t: gives the shape alone.
            default_mask: zeros in it stay.
        """
        count = _number_to_prune(self.amount, t.nelement())
        return _without(default_mask, -wt.rand_like(t), count)  # PyTorch takes the largest


class L1Unstructured(BasePruningMethod):
    """Prunes the elements that are least in absolute value.

    Args:
        amount: how many: an int, or a share from 0.0 to 1.0.
    """

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: float) -> None:
        _check_amount(amount)
        self.amount = amount

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """A mask of t's shape.

        Args:
            t: the smallest absolute values are pruned.
            default_mask: zeros in it stay.
        """
        count = _number_to_prune(self.amount, t.nelement())
        return _without(default_mask, t.abs(), count)


class RandomStructured(BasePruningMethod):
    """Prunes slices along a dim, by chance.

    Args:
        amount: how many slices: an int, or a share from 0.0 to 1.0.
    """

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, dim: int = -1) -> None:
        _check_amount(amount)
        self.amount, self.dim = amount, dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """A mask of t's shape, which has at least two dims.

        Args:
            t: gives the shape alone.
            default_mask: zeros in it stay.
        """
        dim = _check_structured(t, self.dim)
        size = t.shape[dim]
        count = _number_to_prune(self.amount, size)
        if count == 0:
            return default_mask
        chance = wt.rand(size, device=t.device)
        kept = chance > wt.kthvalue(chance, k=count).values
        return default_mask * _along(kept, t.ndim, dim).to(default_mask.dtype)


class LnStructured(BasePruningMethod):
    """Prunes the slices along a dim that have the least norm.

    Args:
        amount: how many slices: an int, or a share from 0.0 to 1.0.
        n: of the norm: a number, inf, -inf, "fro" or "nuc".
    """

    PRUNING_TYPE = "structured"

    def __init__(self, amount: float, n: int | float | str, dim: int = -1) -> None:
        _check_amount(amount)
        self.amount, self.n, self.dim = amount, n, dim

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """A mask of t's shape, which has at least two dims.

        Args:
            t: the slices of smallest norm are pruned.
            default_mask: zeros in it stay.
        """
        dim = _check_structured(t, self.dim)
        size = t.shape[dim]
        count = _number_to_prune(self.amount, size)
        if count == 0:
            return default_mask
        norm = wt.norm(t, p=self.n, dim=[d for d in range(t.ndim) if d != dim])
        kept = wt.zeros_like(norm)
        kept[wt.topk(norm, k=size - count, largest=True).indices] = 1
        return default_mask * _along(kept, t.ndim, dim).to(default_mask.dtype)


class CustomFromMask(BasePruningMethod):
    """Prunes by a mask that is given.

    Args:
        mask: of the parameter's shape; zeros are pruned.
    """

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """`default_mask` times the mask.

        Args:
            t: not looked at.
            default_mask: of the mask's shape.

        Raises: ValueError for another shape.
        """
        if default_mask.shape != self.mask.shape:
            raise ValueError(
                f"custom_from_mask: expected a mask of shape {list(default_mask.shape)}, "
                f"got {list(self.mask.shape)}"
            )
        return default_mask * self.mask.to(dtype=default_mask.dtype)


def identity(module: Module, name: str) -> Module:
    """Gives a parameter a mask of ones.

    Args:
        module: changed in place and returned.
        name: of a parameter.
    """
    Identity.apply(module, name)
    return module


def random_unstructured(module: Module, name: str, amount: float) -> Module:
    """Prunes `amount` (an int, or a share) of a parameter's elements, by chance; returns the module.

    Args:
        module: changed in place.
        name: of a parameter.
        amount: a number of elements, or a share between 0 and 1.

    >>> layer = nn.utils.prune.random_unstructured(nn.Linear(4, 2), "weight", amount=3)
    >>> int((layer.weight == 0).sum())
    3
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(
    module: Module, name: str, amount: float, importance_scores: Tensor | None = None
) -> Module:
    """Prunes `amount` (an int, or a share) of a parameter's elements, the least in absolute value, or in
    that of `importance_scores`; returns the module."""
    L1Unstructured.apply(module, name, amount, importance_scores=importance_scores)
    return module


def random_structured(module: Module, name: str, amount: float, dim: int) -> Module:
    """Prunes `amount` (an int, or a share) of a parameter's slices along dim; returns the module.

    Args:
        module: changed in place.
        name: of a parameter of at least two dimensions.
        amount: a number of slices, or a share between 0 and 1.
        dim: the dimension along which slices are counted.
    """
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: Module,
    name: str,
    amount: float,
    n: int | float | str,
    dim: int,
    importance_scores: Tensor | None = None,
) -> Module:
    """Prunes `amount` (an int, or a share) of a parameter's slices along dim, those of the least n-norm;
    returns the module."""
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: type[BasePruningMethod],
    importance_scores: dict[Any, Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Prunes several parameters as if they were one.

    Args:
        parameters: pairs (module, name).
        pruning_method: a class of PRUNING_TYPE "unstructured", made of kwargs (`amount`).
        importance_scores: by pair, of the parameters' shapes.

    Raises: TypeError for other arguments; nothing is pruned then.
    """
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    pairs: list[Any] = [tuple(pair) for pair in parameters]
    if importance_scores is not None and not isinstance(importance_scores, dict):
        raise TypeError("global_unstructured(): importance_scores must be of type dict")
    scores = importance_scores or {}
    if getattr(pruning_method, "PRUNING_TYPE", None) != "unstructured":
        raise TypeError(
            'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. '
            f"Found method {pruning_method} of type {getattr(pruning_method, 'PRUNING_TYPE', None)}"
        )
    if not pairs:
        raise ValueError("global_unstructured(): expected at least one pair (module, name), got none")
    each = [scores.get(pair, getattr(*pair)) for pair in pairs]
    for pair, score in zip(pairs, each):
        if score.shape != getattr(*pair).shape:
            raise ValueError(
                f"global_unstructured(): expected scores of shape {list(getattr(*pair).shape)} for "
                f"{pair[1]} of {type(pair[0]).__name__}, got {list(score.shape)}"
            )
    default = [getattr(m, n + "_mask", wt.ones_like(getattr(m, n))) for m, n in pairs]
    container = PruningContainer()
    container._tensor_name = "temp"
    method = pruning_method(**kwargs)
    method._tensor_name = "temp"
    container.add_pruning_method(method)
    with wt.no_grad():
        flat = wt.cat([t.detach().reshape(-1) for t in each])
        mask = container.compute_mask(flat, wt.cat([m.reshape(-1) for m in default]))
    at = 0
    for module, name in pairs:
        shape = getattr(module, name).shape
        custom_from_mask(module, name, mask=mask[at : at + shape.numel()].view(shape))
        at += shape.numel()


def custom_from_mask(module: Module, name: str, mask: Tensor) -> Module:
    """Prunes a parameter where a mask of its shape is 0; returns the module.

    Args:
        module: changed in place.
        name: of a parameter.
        mask: of the parameter's shape.

    >>> layer = nn.utils.prune.custom_from_mask(nn.Linear(2, 1), "weight", torch.tensor([[1, 0]]))
    >>> (layer.weight == 0).tolist()
    [[False, True]]
    """
    CustomFromMask.apply(module, name, mask)
    return module


def remove(module: Module, name: str) -> Module:
    """Makes the pruning of a parameter permanent: it is there again, with its zeros, without mask or hook.

    Raises: ValueError for a parameter that is not pruned.
    """
    hook = _hook_of(module, name)
    if hook is None:
        raise ValueError(
            f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed"
        )
    hook[1].remove(module)
    del module._forward_pre_hooks[hook[0]]
    return module


def is_pruned(module: Module) -> bool:
    """Whether a parameter of the module, or of one below it, is pruned.

    >>> nn.utils.prune.is_pruned(nn.utils.prune.identity(nn.Linear(2, 1), "weight"))
    True
    """
    return any(
        isinstance(hook, BasePruningMethod)
        for each in module.modules()
        for hook in each._forward_pre_hooks.values()
    )


def _check_amount(amount: int | float) -> None:
    if not isinstance(amount, numbers.Real) or isinstance(amount, bool):
        raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
    if float(amount) < 0 or (not isinstance(amount, numbers.Integral) and not float(amount) <= 1):
        raise ValueError(
            f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer"
        )


def _number_to_prune(amount: int | float, size: int) -> int:
    if not isinstance(amount, numbers.Integral):
        return round(amount * size)
    if int(amount) > size:
        raise ValueError(f"amount={amount} should be smaller than the number of parameters to prune={size}")
    return int(amount)


def _check_structured(t: Tensor, dim: int) -> int:
    """The dim, counted from the front."""
    if t.ndim < 2:
        raise ValueError(
            "Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
            f"{list(t.shape)} with {t.ndim} dims"
        )
    if not -t.ndim <= dim < t.ndim:
        raise IndexError(f"Invalid index {dim} for tensor of size {list(t.shape)}")
    return dim % t.ndim


def _without(mask: Tensor, score: Tensor, count: int) -> Tensor:
    """The mask, contiguous, with zeros at the `count` least scores."""
    out = mask.clone(memory_format=wt.contiguous_format)
    if count:
        out.view(-1)[wt.topk(score.reshape(-1), k=count, largest=False).indices] = 0
    return out


def _along(kept: Tensor, ndim: int, dim: int) -> Tensor:
    return kept.reshape([-1 if d == dim else 1 for d in range(ndim)])
