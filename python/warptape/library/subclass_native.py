"""Gradients of ops without a formula of aten's, for classes that implement `__torch_dispatch__`.

Where an op's own backward is made of ops in C++, these ask the class: the op runs once on tensors without
data in place of its arguments, and the tape records it. In the backward pass the recorded nodes get the true
gradients, and the true tensors where they had saved some. Where it is a kernel, the class is asked for an op
of its own, `<op>_backward`, of the gradients and the op's arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .. import _C
from ..autograd.graph import saved_tensors_hooks
from ..core import Tensor, enable_grad, no_grad
from ..core.pytree import tree_leaves, tree_map
from ..core.wrappers import make_wrapper_subclass
from .ops import OpOverload, OpOverloadPacket
from .subclass_gradients import _sum_to

Gradients = tuple[Tensor | None, ...]


# What ops say that get a tensor without memory and do not ask its class.
_NO_DATA = ("cannot read the data", "outlived its function transform")


class _Stopped(Exception):
    """The node needs a tensor that is neither an argument nor a result."""


class NativeTape:
    """What the tape recorded of an op on tensors without data.

    Attributes:
        places: of what it saved, in order: ("in" or "out", number), or None for what only it knows.
    """

    places: list[Any]

    def __init__(self, name: str, inputs: list[Tensor], outputs: list[Tensor], kept: list[Tensor]) -> None:
        self._name, self._inputs, self._outputs = name, inputs, outputs
        self._nodes = _nodes_behind([t.grad_fn for t in outputs if t.grad_fn is not None])
        self.places = [_place(t, inputs, outputs) for t in kept]
        self._given: Sequence[Tensor | None] = ()

    def saved(self, at: int) -> Tensor:
        """What a node is given back in a backward pass.

        Args:
            at: its number.

        Raises:
            RuntimeError: no backward pass is under way.
        """
        if not self._given:
            raise RuntimeError(f"{self._name}: what it saved is there within a backward pass alone")
        value = self._given[at]
        if value is None:
            raise _Stopped
        return value

    def backward(self, gradients: Gradients, saved: Sequence[Tensor | None]) -> Gradients:
        """The gradients of the inputs.

        Args:
            gradients: of the results that have some; None for those that no one asked for.
            saved: the true tensors at `places`.

        Raises:
            NotImplementedError: a second derivative is wanted, or the backward is no longer made of ops.
        """
        slopes = [t for t in self._outputs if t.dtype.is_floating_point or t.dtype.is_complex]
        pairs = [(t, g) for t, g in zip(slopes, gradients) if g is not None and t.grad_fn is not None]
        refuse_second(self._name, (*gradients, *saved))
        self._given = saved
        try:
            return self._run(pairs)
        except (_Stopped, RuntimeError) as error:
            if not isinstance(error, _Stopped) and not any(text in str(error) for text in _NO_DATA):
                raise
            raise NotImplementedError(f"{self._name}: its backward reads a tensor without memory") from None
        finally:
            self._given = ()

    def probed(self) -> bool:
        """Whether the backward is made of ops, which a class can be asked for."""
        saved = [_Probe.of(_without_data(self._inputs[n] if k == "in" else self._outputs[n]))
                 for k, n in self.places]  # fmt: skip
        slopes = [t for t in self._outputs if t.dtype.is_floating_point or t.dtype.is_complex]
        try:
            with no_grad():
                self.backward(tuple(_Probe.of(_without_data(t)) for t in slopes), saved)
        except (NotImplementedError, RuntimeError, TypeError):
            return False
        return True

    def _run(self, pairs: list[tuple[Tensor, Tensor]]) -> Gradients:
        """A pass of which the engine sees tensors without data: in front of each node they are replaced by
        the true gradients, and behind it these are kept for the nodes that come next."""
        waiting: dict[tuple[int, int], Tensor] = {}

        def keep(node: Any, number: int, gradient: Tensor) -> None:
            before = waiting.get((id(node), number))
            waiting[id(node), number] = gradient if before is None else before + gradient

        def give(node: Any, empty: Sequence[Any]) -> tuple[Any, ...]:
            true = [waiting.get((id(node), number)) for number in range(len(empty))]
            return tuple(e if g is None else _sum_to(g, e.shape) for g, e in zip(true, empty))

        def take(node: Any, found: Sequence[Any]) -> tuple[Any, ...]:
            for (after, number), gradient in zip(node.next_functions, found):
                if after is not None and gradient is not None:
                    keep(after, number, gradient)
            return tuple(None if g is None else _without_data(g) for g in found)

        for t, gradient in pairs:
            keep(t.grad_fn, t.output_nr, gradient)
        hooks = []
        for node in self._nodes:
            if node.variable is None:
                hooks.append(node.register_prehook(functools.partial(give, node)))
                hooks.append(node.register_hook(lambda found, _, node=node: take(node, found)))
        try:
            _pass([t for t, _ in pairs], [t for t in self._inputs if t.requires_grad])
        finally:
            for hook in hooks:
                hook.remove()
        leaves = {id(node.variable): node for node in self._nodes if node.variable is not None}
        return tuple(waiting.get((id(leaves.get(id(t))), 0)) for t in self._inputs)


def refuse_second(name: str, tensors: Sequence[Any]) -> None:
    """NotImplementedError where the tape would have to record a backward pass.

    Args:
        name: of the op.
        tensors: that the pass reads, or None.
    """
    if _C.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise NotImplementedError(
            f"the second derivative of aten::{name} for classes with __torch_dispatch__ is not implemented; "
            "write the op with others"
        )


def _pass(outputs: list[Tensor], inputs: list[Tensor]) -> None:
    from ..autograd import grad

    grad(outputs, inputs, [_without_data(t) for t in outputs], retain_graph=True, allow_unused=True)


def _nodes_behind(roots: list[Any]) -> list[Any]:
    nodes: dict[int, Any] = {}
    while roots:
        node = roots.pop()
        if id(node) not in nodes:
            nodes[id(node)] = node
            roots += [after for after, _ in node.next_functions if after is not None]
    return [*nodes.values()]


def _without_data(t: Tensor) -> Tensor:
    return _C._functions.empty_strided(tuple(t.shape), t.stride(), dtype=t.dtype, device="meta")


def _place(t: Tensor, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[str, int] | None:
    for kind, among in (("in", inputs), ("out", outputs)):
        for number, other in enumerate(among):
            same = _C._storage_address(t) == _C._storage_address(other)
            if same and t.shape == other.shape and t.stride() == other.stride():
                return kind, number
    return None


def _recorded(func: OpOverload, tensors: list[Tensor], args: Any, kwargs: Any) -> NativeTape | None:
    stand_ins = [_without_data(t).requires_grad_(t.requires_grad) for t in tensors]
    order = iter(stand_ins)
    args, kwargs = tree_map(lambda v: next(order) if isinstance(v, Tensor) else v, (args, kwargs))
    kept: list[Tensor] = []
    holder: list[NativeTape] = []

    def pack(t: Tensor) -> int:
        kept.append(t)
        return len(kept) - 1

    try:
        with saved_tensors_hooks(pack, lambda at: holder[0].saved(at)):
            out = func(*args, **kwargs)
    except (NotImplementedError, RuntimeError, TypeError):
        return None
    outputs = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, Tensor)]
    if not any(t.grad_fn is not None for t in outputs):
        return None
    holder.append(NativeTape(func.overloadpacket.__name__, stand_ins, outputs, kept))
    return holder[0]


def records(func: OpOverload, tensors: list[Tensor], args: Any, kwargs: Any) -> bool:
    """Whether the tape has a node of an op for tensors like these.

    Args:
        func: the op, which changes nothing in place.
        tensors: among the arguments, in order.
        args, kwargs: of the op.
    """
    return _recorded(func, tensors, args, kwargs) is not None


class _Probe(Tensor):
    """Says of each op that it can be asked for; it has a tensor without data."""

    held: Tensor
    __torch_function__ = _C._disabled_torch_function_impl

    @staticmethod
    def of(t: Tensor) -> _Probe:
        probe = make_wrapper_subclass(_Probe, t.shape, t.stride(), dtype=t.dtype)
        probe.held = t
        return probe

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = tree_map(lambda v: v.held if isinstance(v, _Probe) else v, (args, kwargs or {}))
        out = func(*bare[0], **bare[1])
        return tree_map(lambda v: _Probe.of(v) if isinstance(v, Tensor) else v, out)


_made_of_ops: dict[tuple[str, bool], bool] = {}  # by the op's name


def record(func: OpOverload, tensors: list[Tensor], args: Any, kwargs: Any) -> NativeTape | None:
    """The tape of an op, or None where its backward is not made of ops.

    Args:
        func: the op, which changes nothing in place.
        tensors: among the arguments, in order.
        args, kwargs: of the op.
    """
    key = func.name(), all(t.requires_grad for t in tensors)
    if _made_of_ops.get(key) is False:
        return None
    tape = _recorded(func, tensors, args, kwargs)
    if tape is None or not all(tape.places):
        return None
    if key not in _made_of_ops:
        _made_of_ops[key] = tape.probed()
    return tape if _made_of_ops[key] else None


class _Backward:
    """Computes an op's gradients from its arguments, on plain tensors."""

    def __init__(self, func: OpOverload) -> None:
        self._func = func

    def __call__(self, gradients: Any, needed: Sequence[bool], *args: Any, **kwargs: Any) -> list[Any]:
        from ..autograd import grad

        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        # What has no gradient may be written to, as the averages of batch_norm are.
        leaves = [
            t.detach().requires_grad_() if want else t.detach().clone()
            for t, want in zip(tensors, needed, strict=True)
        ]
        order = iter(leaves)
        args, kwargs = tree_map(lambda v: next(order) if isinstance(v, Tensor) else v, (args, kwargs))
        with enable_grad():
            out = self._func(*args, **kwargs)
        outputs = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, Tensor)]
        slopes = [t for t in outputs if t.dtype.is_floating_point or t.dtype.is_complex]
        pairs = [(t, g) for t, g in zip(slopes, gradients) if g is not None and t.requires_grad]
        wanted = [t for t in leaves if t.requires_grad]
        grads = iter(grad([t for t, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        return [next(grads) if t.requires_grad else None for t in leaves]


@functools.cache
def backward_of(func: OpOverload) -> OpOverload:
    """The op `<op>_backward(gradients, needed, *arguments)`: the gradient of each tensor among the arguments,
    or None.

    Args:
        func: the op.
    """
    name = f"warptape::{func.overloadpacket.__name__}_backward"
    return OpOverloadPacket(name, _Backward(func)).default
