"""Ops on tensors of classes that implement `__torch_dispatch__`.

C++ calls `call` in the place of an op that has such a tensor among its arguments. An op that PyTorch composes
of others is taken apart first (subclass_composed). For each op that is left the class is called below the
tape, and the tape gets a node whose backward is made of ops again (subclass_gradients).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from .. import _C
from ..core import Tensor, no_grad, offered
from ..core.by_name import tells_facts, tensors_in
from ..core.pytree import tree_map
from . import subclass_composed, subclass_gradients, subclass_native, subclass_optimizers
from .op_names import own_op, resolve
from .ops import OpOverload
from .subclass_gradients import Formula

aten = offered("ops").aten
# Ops of which only the first result has a gradient.
_FIRST = frozenset(["native_batch_norm", "native_dropout", "native_layer_norm", "nll_loss_forward"])
# Kernels that no op of aten stands for, or not with these arguments: the class is asked for them so.
_WHOLE = frozenset(
    ["cross_entropy", "ctc_loss", "fold", "grid_sample", "interpolate", "logsigmoid", "nll_loss", "unfold"]
)
_HOLE = object()  # in the place of a tensor among arguments
_RECURRENT = frozenset(["gru", "lstm", "rnn_relu", "rnn_tanh"])


_off = threading.local()  # how many DisableTorchDispatch are entered


class DisableTorchDispatch:
    """A context in which no class is asked: ops read the tensor's own memory, which a wrapper has none of."""

    def __enter__(self) -> None:
        _off.depth = getattr(_off, "depth", 0) + 1

    def __exit__(self, *error: Any) -> None:
        _off.depth -= 1


def call(place: str, name: str, args: Any, kwargs: Any) -> Any:
    """What an op gives; NotImplemented where its own code is to run.

    Args:
        place: "nn", "linalg", "special", "fft" or nothing.
        name: the op's, in C++.
        args, kwargs: of its declaration.
    """
    if getattr(_off, "depth", 0):
        return NotImplemented
    rule = subclass_composed.RULES.get(f"{place}_{name}" if place in ("linalg", "special", "fft") else name)
    rule = rule or (subclass_optimizers.rule_of(name) if name.startswith("_f") else None)
    if rule is not None:
        out = rule(*args, **kwargs)
        return run(own_op(place, name), args, kwargs) if out is NotImplemented and name in _WHOLE else out
    if tells_facts(name):
        return NotImplemented
    func, args, kwargs = resolve(place, name, args, kwargs)
    if (
        func.namespace == "warptape" and name not in _WHOLE
    ) or func.overloadpacket.__name__ in subclass_composed.COMPOSED:
        return NotImplemented
    return run(func, args, kwargs)


def call_overload(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """What an overload of torch.ops gives for such a tensor; NotImplemented as in `call`.

    Args:
        func: the overload that a program calls.
        args, kwargs: of the call.
    """
    name = func.overloadpacket.__name__
    if getattr(_off, "depth", 0) or func.overloadpacket._by_overload:  # one that a program made asks itself
        return NotImplemented
    if func.namespace == "aten" and (name in subclass_composed.COMPOSED or tells_facts(name)):
        return NotImplemented
    return run(func, args, kwargs)


def ask(func: OpOverload, args: Any, kwargs: Any) -> Any:
    """What the classes give for an op that records itself; NotImplemented where none is to be asked.

    Args:
        func: an op that a program made.
        args, kwargs: of the call.

    Raises:
        TypeError: all classes returned NotImplemented.
    """
    if getattr(_off, "depth", 0):
        return NotImplemented
    return _ask(func, list(tensors_in((args, kwargs))), args, kwargs)


def run(func: OpOverload, args: Any, kwargs: Any = None) -> Any:
    """Asks the classes, and records the op where a gradient is wanted.

    Args:
        func: an op that is not composed of others.
        args, kwargs: its arguments.

    Raises:
        TypeError: all classes returned NotImplemented.
        RuntimeError: a leaf that requires a gradient would be changed in place.
    """
    kwargs = kwargs or {}
    name = func.overloadpacket.__name__
    changed = args[0] if name.endswith("_") and not name.endswith("__") and args else None
    base = name.rstrip("_") if changed is not None else name
    tensors = list(tensors_in((args, kwargs)))
    wanted = _C.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if not wanted or _has_no_gradient(func, tensors, args, kwargs):
        out = _ask(func, tensors, args, kwargs)
        if changed is not None:
            _C._increment_version(changed)
        elif is_view(func):
            _note_views(out, args[0], False)
        return out
    given = args
    if changed is not None:
        if changed.requires_grad and changed.is_leaf:
            raise RuntimeError(
                f"{name}: a leaf Variable that requires grad is being used in an in-place operation. Use "
                "torch.no_grad() or operate on t.detach()."
            )
        if base not in subclass_gradients.FORGETFUL:
            with no_grad():
                given = (changed.clone(), *args[1:])
    out = _ask(func, tensors, args, kwargs)
    return _record(base, out, changed, tensors, given, kwargs, func)


def fact(func: OpOverload, name: str) -> Any:
    """What the declaration of an op in C++ states; False where it has none.

    Args:
        func: an overload of torch.ops.
        name: of an attribute of functions that are ops, as "_is_random".
    """
    return getattr(func.overloadpacket._function, name, False)


def _has_no_gradient(func: OpOverload, tensors: list[Tensor], args: Any, kwargs: Any) -> bool:
    """Whether an op is declared to have no gradient where it records nothing, and does so in this call."""
    if not fact(func, "_has_no_gradient"):
        return False
    return fact(func, "_is_random") or not subclass_native.records(func, tensors, args, kwargs)


def is_view(func: OpOverload) -> bool:
    """Whether an op's result is its first argument's memory in another geometry.

    Args:
        func: an overload of torch.ops.
    """
    return fact(func, "_aliasing") in ("view", "reshape")


def _draws(func: OpOverload, base: str, args: Any, kwargs: Any) -> bool:
    """Whether an op would draw other numbers when it runs again."""
    if base == "scaled_dot_product_attention":
        return bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0))
    if base in _RECURRENT:  # (input, hx, weights, has_biases, num_layers, dropout, train, ..)
        numbers = [v for v in (*args, *kwargs.values()) if isinstance(v, float)]
        return any(v > 0 for v in numbers)
    return bool(fact(func, "_is_random"))


def _native_formula(
    func: OpOverload, base: str, changes: bool, need: list[bool], out: Any, args: Any, kwargs: Any
) -> Any:
    """What a formula of subclass_gradients gives, of an op that has none there; None where there is none."""
    if changes:  # the gradient of the op that leaves its arguments as they are
        packet = getattr(aten, base, None) if func.namespace == "aten" else None
        func = getattr(packet, func._overloadname, None) if packet is not None else None  # type: ignore[assignment]
    if func is None or _draws(func, base, args, kwargs):
        return None
    several = isinstance(out, (list, tuple))
    tensors = list(tensors_in((args, kwargs)))
    tape = subclass_native.record(func, tensors, args, kwargs)
    if tape is not None:
        groups = {"in": tensors, "out": list(tensors_in(out))}
        saved = tuple(groups[kind][number] for kind, number in tape.places)
        return saved, lambda g, *kept: tape.backward(g if several else (g,), kept)

    def back(g: Any, *kept: Any) -> Any:
        subclass_native.refuse_second(base, (*(g if several else (g,)), *kept))
        order = iter(kept)
        again = tree_map(lambda v: next(order) if v is _HOLE else v, shape)
        op = subclass_native.backward_of(func)
        return op(list(g) if several else [g], need, *again[0], **again[1])

    # The tape keeps the tensors, and would not free what this function held too.
    shape = tree_map(lambda v: _HOLE if isinstance(v, Tensor) else v, (args, kwargs))
    args = kwargs = None
    return tuple(tensors), back


def _ask(func: OpOverload, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
    classes: list[Any] = []
    for t in tensors:
        cls: Any = type(t)
        if cls in classes or not asks(cls):
            continue
        place = next((i for i, other in enumerate(classes) if issubclass(cls, other)), len(classes))
        classes.insert(place, cls)
    with no_grad():
        for cls in classes:
            out = cls.__torch_dispatch__(func, tuple(classes), args, kwargs)
            if out is not NotImplemented:
                return out
    raise TypeError(
        f"Multiple dispatch failed for 'torch.ops.{func}'; all __torch_dispatch__ handlers returned "
        f"NotImplemented: {[f'{cls.__module__}.{cls.__qualname__}' for cls in classes]}"
    )


def asks(cls: type) -> bool:
    """Whether ops on tensors of a class are calls of the class.

    Args:
        cls: a class of tensors.
    """
    own = getattr(cls, "__torch_dispatch__", None)
    return own is not None and own is not _C._disabled_torch_dispatch_impl


def _note_views(out: Any, of: Tensor, recorded: bool) -> None:
    for view in tensors_in(out):
        if view is not of and asks(type(view)) and asks(type(of)):
            _C._note_view(view, of, recorded)


def accumulate(leaf: Tensor, old: Any, gradient: Tensor) -> Tensor:
    """What a leaf's gradient becomes with another.

    Args:
        leaf: gets the gradient.
        old: what it has, or None.
        gradient: is added.
    """
    if old is not None:
        return old + gradient if _C.is_grad_enabled() else old.add_(gradient)
    if _C.is_grad_enabled():
        return gradient
    if gradient.stride() == leaf.stride():
        return gradient.detach()
    sizes = list(leaf.shape), list(leaf.stride())
    return aten.new_empty_strided.default(gradient, *sizes).copy_(gradient)


def ones_like(root: Tensor) -> Tensor:
    """The gradient of a root of a backward pass.

    Args:
        root: of one element.
    """
    return run(aten.ones_like.default, (root,))


class _BackwardNode:
    """What the tape calls for the gradients of one recorded op."""

    def __init__(self, name: str, several: bool) -> None:
        self._name, self._several = name, several
        self._node: Any = None
        self._formula: Callable[..., Any] | None = None

    def _backward(self, gradients: tuple[Any, ...], wanted: tuple[bool, ...]) -> tuple[Any, ...]:
        if self._formula is None:
            raise NotImplementedError(
                f"the derivative of aten::{self._name} for classes with __torch_dispatch__ is not "
                "implemented; write the op with others, or as an autograd.Function"
            )
        saved = _C._function_saved(self._node)
        grads = self._formula(gradients if self._several else gradients[0], *saved)
        grads = grads if isinstance(grads, (list, tuple)) else (grads,)
        return tuple(g if want and g is not False else None for g, want in zip(grads, wanted, strict=True))


def _record(
    base: str, out: Any, changed: Any, tensors: list[Tensor], args: Any, kwargs: Any, func: OpOverload
) -> Any:
    """`out`, of which the tape knows how it came to be."""
    outputs = [t for t in tensors_in(out) if t.dtype.is_floating_point or t.dtype.is_complex]
    outputs = outputs[:1] if base in _FIRST else outputs
    fresh = [t for t in outputs if not any(t is known for known in tensors)]
    if changed is None and not fresh:
        return out
    several = isinstance(out, (list, tuple)) and base not in _FIRST
    node = _BackwardNode(base, several)
    need = [t.requires_grad for t in tensors]
    rule: Formula | None = subclass_gradients.FORMULAS.get(base)
    saved: tuple[Any, ...] = ()
    if rule is not None:
        saved, node._formula = rule(need, out, *args, **kwargs)
    elif (formula := _native_formula(func, base, changed is not None, need, out, args, kwargs)) is not None:
        saved, node._formula = formula
    node._node = _C._function_record(
        node,
        f"{base.strip('_').title().replace('_', '')}Backward0",
        tuple(tensors),
        changed,
        tuple(fresh),
        tuple(s if isinstance(s, Tensor) else None for s in saved),
    )
    if changed is None and is_view(func):
        _note_views(out, tensors[0], True)
    return out
