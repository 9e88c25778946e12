"""Function: an op with a forward and a backward written in Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import _C
from ..core import no_grad
from ..core.wrappers import is_wrapper

if TYPE_CHECKING:
    from ..core import Tensor

__all__ = ["Function", "FunctionCtx", "once_differentiable"]


dual_levels: list[int] = []  # of forward_ad
in_transforms: list[Callable[..., Any]] = []  # of function_transforms, which what begins a transform imports


class FunctionCtx:
    """What forward leaves for backward: tensors by save_for_backward, anything else as attributes.

    `ctx`, the first argument of both, is one.
    """

    _function: type[Function]
    needs_input_grad: tuple[bool, ...] = ()
    _tensor_inputs: list[int]  # positions of the tensors among forward's arguments
    _output_meta: list[tuple[Any, ...] | None]  # (shape, dtype, device) per output that is a tensor
    _recorded: list[int]  # positions of the outputs that have gradients
    _saved: tuple[Tensor | None, ...] = ()
    _saved_for_forward: tuple[Tensor | None, ...] = ()
    _dirty: tuple[Tensor, ...] = ()
    _non_differentiable: tuple[Tensor, ...] = ()
    _materialize = True
    _node: Any = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keeps inputs, outputs or intermediate tensors; backward checks that they were not changed since.

        Args:
            *tensors: found in `ctx.saved_tensors` in this order; None stays None.

        Raises: TypeError for anything else.
        """
        for t in tensors:
            if t is not None and not isinstance(t, _C.TensorBase):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument is of type {type(t).__name__}"
                )
        self._saved = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keeps tensors for jvp, which finds them in `saved_tensors`.

        Args:
            *tensors: in the order in which jvp finds them.

        Raises: TypeError for anything else.
        """
        for t in tensors:
            if t is not None and not isinstance(t, _C.TensorBase):
                raise TypeError(
                    f"save_for_forward can only save tensors, but argument is of type {type(t).__name__}"
                )
        self._saved_for_forward = tensors

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Says which input forward changed in place (at most one); it must be returned.

        Args:
            *tensors: inputs.
        """
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Says which outputs have no gradient.

        Args:
            *tensors: outputs, as indices.
        """
        self._non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (True, the default) or None for outputs that nothing flowed into.

        Args:
            value: False for None.
        """
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What `save_for_backward` kept, in that order; None for what was None.

        Raises: RuntimeError where a tensor was changed in place since, or a backward pass has freed it.
        """
        return self._saved if self._node is None else _C._function_saved(self._node)

    @property
    def saved_variables(self) -> tuple[Tensor | None, ...]:
        """The older name of `saved_tensors`."""
        warnings.warn(
            "'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2
        )
        return self.saved_tensors

    # ---- called by the engine ----

    def _backward(self, gradients: tuple[Any, ...], wanted: tuple[bool, ...]) -> tuple[Any, ...]:
        """Runs the class's backward on the gradients of the recorded outputs: one gradient a tensor input."""
        full: list[Any] = [None] * len(self._output_meta)
        for place, g in zip(self._recorded, gradients, strict=True):
            full[place] = g
        if self._materialize:
            for i, meta in enumerate(self._output_meta):
                if full[i] is None and meta is not None:
                    full[i] = _C._functions.zeros(meta[0], dtype=meta[1], device=meta[2])
        function = self._function
        name = function.__name__
        call = function.vjp if function.backward is Function.backward else function.backward
        grads = call(self, *full)
        grads = grads if isinstance(grads, tuple | list) else (grads,)
        count = len(self.needs_input_grad)
        if len(grads) > count and all(g is None for g in grads[count:]):
            grads = grads[:count]
        if len(grads) != count:
            raise RuntimeError(
                f"function {name}Backward returned an incorrect number of gradients (expected {count}, "
                f"got {len(grads)})"
            )
        out = []
        for i in self._tensor_inputs:
            if grads[i] is not None and not isinstance(grads[i], _C.TensorBase):
                raise TypeError(f"{name}Backward: expected Variable or None (got {type(grads[i]).__name__})")
            out.append(grads[i])
        return tuple(out)


class Function:
    """Base of custom ops: define `forward(ctx, *args)` and `backward(ctx, *gradients)`, call `apply(*args)`.

    `forward(*args)` with `setup_context(ctx, inputs, output)` works as well, and function transforms need it.

    >>> class Double(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    ...     @staticmethod
    ...     def backward(ctx, grad):
    ...         return 2 * grad
    >>> x = torch.ones(2, requires_grad=True)
    >>> Double.apply(x).sum().backward()
    >>> x.grad
    tensor([2., 2.])
    """

    _backward_cls: type[FunctionCtx]
    generate_vmap_rule = False  # whether vmap maps forward, backward and jvp; they must be made of ops

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Computes the outputs; ops inside are not recorded.

        It takes `ctx` first unless the class has setup_context.

        Args:
            *args, **kwargs: what `apply` was given.
        """
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        """Leaves in ctx what backward needs.

        Args:
            ctx: for backward.
            inputs: of forward.
            output: of forward.
        """
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Returns one gradient (or None) per argument of forward.

        Args:
            ctx: as forward left it.
            *grad_outputs: one for each output.
        """
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function."
        )

    vjp = backward

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Returns one tangent per output, given one (or None) per argument of forward.

        Args:
            ctx: as forward left it.
            *grad_inputs: tangents.
        """
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        """Returns (output, out_dims) for arguments whose dim in_dims is mapped, None for those without.

        Args:
            info: batch size and randomness.
            in_dims: of the arguments.
            *args: of forward.
        """
        raise NotImplementedError(
            "To use autograd.Function with vmap, you must either override the vmap static method or set "
            "generate_vmap_rule=True."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses the objects of old PyTorch, which were called."""
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated: make forward and "
            f"backward static methods and call {type(self).__name__}.apply(*args)"
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Runs forward, and records it where an argument requires a gradient.

        Args:
            *args, **kwargs: of forward.
        """
        if _C._is_transforming():
            return in_transforms[0](cls, args, kwargs)
        if _C._tracer() is not None:
            return _apply_in_graph(cls, args, kwargs)
        return apply_on_tape(cls, args, kwargs)[0]


def _forward(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """A new context, and what forward gives with it, without gradients."""
    ctx = context_class(cls)()
    ctx._tensor_inputs = [i for i, a in enumerate(args) if isinstance(a, _C.TensorBase)]
    ctx.needs_input_grad = tuple([isinstance(a, _C.TensorBase) and a.requires_grad for a in args])
    with no_grad():
        if cls.setup_context is Function.setup_context:
            return ctx, cls.forward(ctx, *args, **kwargs)
        out = cls.forward(*args, **kwargs)
        cls.setup_context(ctx, args, out)
    return ctx, out


def _apply_in_graph(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output while a graph is recorded: it has the calls of forward, and no part of backward."""
    ctx, out = _forward(cls, args, kwargs)
    of = [args[i] for i in ctx._tensor_inputs]

    def learned(o: Any) -> Any:
        learns = isinstance(o, _C.TensorBase) and (o.dtype.is_floating_point or o.dtype.is_complex)
        if not learns or _has(ctx._non_differentiable, o) or _has(ctx._dirty, o):
            return o
        return _C._private._without_derivative(o, of, cls.__name__)

    if not isinstance(out, (tuple, list)):
        return learned(out)
    return type(out)(*map(learned, out)) if hasattr(out, "_fields") else tuple(map(learned, out))


def apply_on_tape(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """(output, context) of cls on plain tensors.

    Args:
        cls: the Function's class.
        args, kwargs: of forward.
    """
    ctx, out = _forward(cls, args, kwargs)
    if cls.setup_context is not Function.setup_context:
        _check_saved(ctx, args, out)
    recorded = _C.is_grad_enabled() and True in ctx.needs_input_grad
    return _finish(cls, ctx, args, out, recorded), ctx


def context_class(cls: type[Function]) -> type[FunctionCtx]:
    """The class of cls's contexts, made once: one for each call would be work for the collector.

    Args:
        cls: the Function's class.
    """
    backward_class = cls.__dict__.get("_backward_cls")
    if backward_class is None:
        backward_class = type(f"{cls.__name__}Backward", (FunctionCtx,), {"_function": cls})
        cls._backward_cls = backward_class
    return backward_class


def _has(items: Sequence[Any], item: object) -> bool:
    """Whether the very object is among the items: `in` would compare tensors by value."""
    for i in items:  # noqa: SIM110, a generator would double the time of a call
        if i is item:
            return True
    return False


def _check_saved(ctx: Any, args: tuple[Any, ...], out: Any) -> None:
    outputs = out if isinstance(out, (tuple, list)) else [out]
    for t in (*ctx._saved, *ctx._saved_for_forward):
        if t is not None and _has(args, t) and _has(outputs, t) and not _has(ctx._dirty, t):
            raise RuntimeError(
                "An input that has been returned as-is as output is being saved for backward. This is not "
                "supported if you override setup_context. You should return and save a view of the input "
                "instead, e.g. with x.view_as(x) or setup ctx inside the forward function itself."
            )


def _finish(cls: type[Function], ctx: Any, args: tuple[Any, ...], out: Any, recorded: bool) -> Any:
    outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    dirty = list(ctx._dirty)
    if len(dirty) > 1:
        raise NotImplementedError(f"{cls.__name__}: at most one input may be marked dirty, got {len(dirty)}")
    if dirty and not _has(outputs, dirty[0]):
        raise RuntimeError(f"{cls.__name__}: an input marked dirty must be returned")
    saved = list(ctx._saved)
    for i, o in enumerate(outputs):
        if isinstance(o, _C.TensorBase) and not _has(dirty, o):
            given = _has(args, o)
            if is_wrapper(o):
                fresh: Any = o.view_as(o) if given else o  # type: ignore[arg-type]  # one of Python's class
            else:
                fresh = _C._function_output(o, given)
            if fresh is not o and not given:
                saved = [fresh if s is o else s for s in saved]
            outputs[i] = fresh
    if recorded:
        _record(cls, ctx, args, outputs, dirty, saved, out)
    if not isinstance(out, (tuple, list)):
        return outputs[0]
    return type(out)(*outputs) if hasattr(out, "_fields") else tuple(outputs)


def _record(
    cls: type[Function],
    ctx: Any,
    args: tuple[Any, ...],
    outputs: list[Any],
    dirty: list[Any],
    saved: list[Any],
    out: Any,
) -> None:
    raw = list(out) if isinstance(out, (tuple, list)) else [out]
    ctx._output_meta = [
        (o.shape, o.dtype, o.device) if isinstance(o, _C.TensorBase) else None for o in outputs
    ]
    first = [i for i, o in enumerate(outputs) if _has(dirty, o)]
    rest = [
        i
        for i, o in enumerate(outputs)
        if isinstance(o, _C.TensorBase)
        and i not in first
        and (o.dtype.is_floating_point or o.dtype.is_complex)
        and not _has(ctx._non_differentiable, raw[i])
    ]
    ctx._recorded = [*first, *rest]
    inputs = tuple(args[i] for i in ctx._tensor_inputs)
    ctx._saved = ()
    ctx._node = _C._function_record(
        ctx,
        f"{cls.__name__}Backward",
        inputs,
        dirty[0] if dirty else None,
        tuple(outputs[i] for i in rest),
        tuple(saved),
    )


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a backward whose result cannot be differentiated again: doing so raises.

    Args:
        backward: the method.
    """

    def wrapper(ctx: Any, *gradients: Any) -> Any:
        with no_grad():
            grads = backward(ctx, *gradients)
        if not _C.is_grad_enabled() or not any(
            isinstance(g, _C.TensorBase) and g.requires_grad for g in gradients
        ):
            return grads
        several = isinstance(grads, tuple)
        out = tuple(
            _Refusal.apply(g) if isinstance(g, _C.TensorBase) else g for g in (grads if several else (grads,))
        )
        return out if several else out[0]

    return wrapper


class _Refusal(Function):
    """An identity that requires a gradient and raises when one arrives."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        (gradient,) = args
        variable = gradient.detach()
        variable.requires_grad = True
        return super().apply(variable)

    @staticmethod
    def forward(ctx: Any, gradient: Any) -> Any:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )
