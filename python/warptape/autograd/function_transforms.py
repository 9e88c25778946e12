"""autograd.Function inside of function transforms.

A Function is opaque to them: vmap calls its `vmap`, or maps its forward and backward (`generate_vmap_rule`);
forward mode calls its `jvp`. What is left of the arguments then goes to the Function again, for the levels
further out, and at last to the tape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from .. import _C
from ..core.pytree import tree_flatten, tree_leaves, tree_unflatten
from .function import Function, apply_on_tape, context_class, dual_levels, in_transforms

_MORE = "For more details, please see https://pytorch.org/docs/main/notes/extending.func.html"


def in_function_transform() -> bool:
    """Whether one of torch.func's is active: dual numbers of forward_ad alone are none."""
    return _C._recording_transforms() > 0 or _C._transform_depth() > len(dual_levels)


class VmapInfo(NamedTuple):
    """What a Function's `vmap` is told of the vmap that calls it.

    Args:
        batch_size: size of the dim that is mapped.
        randomness: "error", "different" or "same".
    """

    batch_size: int
    randomness: str


def apply_in_transforms(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`cls.apply` while a transform is active.

    Args:
        cls: the Function's class.
        args, kwargs: of forward.
    """
    if in_function_transform() and cls.setup_context is Function.setup_context:
        raise RuntimeError(
            "In order to use an autograd.Function with functorch transforms (vmap, grad, jvp, jacrev, ...), "
            f"it must override the setup_context staticmethod. {_MORE}"
        )
    inside = [w for x in tree_leaves(args) if isinstance(x, _C.TensorBase) and (w := _C._wrapper(x))]
    kind, level, *_ = max(inside, key=lambda w: w[1]) if inside else ("", -1)
    if kind == "jvp":
        return _dual(cls, args, kwargs, level)
    if kind == "vmap":
        return _mapped(cls, args, kwargs, level)
    return _on_tape(cls, args, kwargs)[0]


def _on_tape(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """apply_on_tape, in which ops see the primals of dual numbers alone."""
    forward_grad = _C._set_forward_grad(False)
    try:
        return apply_on_tape(cls, args, kwargs)
    finally:
        _C._set_forward_grad(forward_grad)


# ---- vmap ----------------------------------------------------------------------------------------------


def _mapped(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any], level: int) -> Any:
    name, own = cls.__name__, cls.vmap is not Function.vmap
    if any(isinstance(x, _C.TensorBase) for x in tree_leaves(kwargs)):
        raise NotImplementedError(
            f"Run vmap over autograd.Function with kwarg-only Tensor args: {name} got one"
        )
    if cls.generate_vmap_rule and own:
        raise RuntimeError(
            f"You tried to vmap over {name}, but it has both generate_vmap_rule=True and an overridden vmap "
            "staticmethod. Please set generate_vmap_rule=False or delete the overridden vmap staticmethod to "
            f"avoid ambiguity. {_MORE}"
        )
    if not cls.generate_vmap_rule and not own:
        raise RuntimeError(
            f"You tried to vmap over {name}, but it does not have vmap support. Please override and "
            f"implement the vmap staticmethod or set generate_vmap_rule=True. {_MORE}"
        )
    info = VmapInfo(*_C._vmap_level(level))
    leaves, spec = tree_flatten(args)
    pairs = [_taken(x, level) for x in leaves]
    values = tree_unflatten([value for value, _ in pairs], spec)
    if own:
        out = cls.vmap(info, tree_unflatten([dim for _, dim in pairs], spec), *values, **kwargs)
        if not isinstance(out, tuple) or len(out) != 2:
            raise RuntimeError(
                "Expected the vmap staticmethod to have two returns, an output and out_dims with pytree "
                f"structure compatible with the output. Got a {type(out)} instead"
            )
        return _placed(*out, level)
    rule = _generated(cls, info, [dim for _, dim in pairs])
    output = rule.apply(*values, **kwargs)
    out_leaves, out_spec = tree_flatten(output)
    return tree_unflatten([_wrapped(x, dim, level) for x, dim in zip(out_leaves, rule.out_dims)], out_spec)


def _taken(x: Any, level: int) -> tuple[Any, int | None]:
    """The value of a tensor that the level maps, and 0, where its mapped dim is; else x, None."""
    wrapper = _C._wrapper(x) if isinstance(x, _C.TensorBase) else None
    return (wrapper[2], 0) if wrapper is not None and wrapper[1] == level else (x, None)


def _wrapped(x: Any, dim: int | None, level: int) -> Any:
    return x if dim is None or x is None else _C._add_batch_dim(x, dim, level)


def _placed(output: Any, out_dims: Any, level: int) -> Any:
    """The output of a Function's `vmap`, mapped by the level along out_dims."""
    leaves, spec = tree_flatten(output)
    dims = [out_dims] * len(leaves) if out_dims is None or isinstance(out_dims, int) else None
    if dims is None:
        dims, dims_spec = tree_flatten(out_dims)
        if dims_spec != spec:
            raise RuntimeError(
                "The autograd.Function's vmap staticmethod returned an incompatible (output, out_dims) "
                f"tuple. Expected out_dims={out_dims} to be compatible with the structure of `output`. "
                f"out_dims has structure {dims_spec} but output has structure {spec}. {_MORE}"
            )
    return tree_unflatten([_wrapped(x, dim, level) for x, dim in zip(leaves, dims)], spec)


@contextmanager
def _level(info: VmapInfo) -> Iterator[int]:
    level = _C._push_vmap(*info)
    try:
        yield level
    finally:
        _C._pop_transform(level)


def _wrap_all(items: Sequence[Any], dims: Sequence[int | None], level: int) -> list[Any]:
    return [_wrapped(x, dim, level) for x, dim in zip(items, dims)]


def _generated(cls: type[Function], info: VmapInfo, in_dims: list[int | None]) -> Any:
    """A Function of the values: forward, backward and jvp of `cls`, each mapped."""

    class Mapped(Function):
        out_dims: list[int | None]

        @staticmethod
        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = tree_flatten(args)
            with _level(info) as level:
                out = cls.forward(*tree_unflatten(_wrap_all(leaves, in_dims, level), spec), **kwargs)
                out_leaves, out_spec = tree_flatten(out)
                pairs = [_taken(x, level) for x in out_leaves]
            Mapped.out_dims = [dim for _, dim in pairs]
            return tree_unflatten([value for value, _ in pairs], out_spec)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            leaves, spec = tree_flatten(inputs)
            out_leaves, out_spec = tree_flatten(output)
            ctx.inner = inner = context_class(cls)()
            inner.needs_input_grad = ctx.needs_input_grad
            with _level(info) as level:
                inside = _wrap_all(leaves, in_dims, level)
                outside = _wrap_all(out_leaves, Mapped.out_dims, level)
                cls.setup_context(inner, tree_unflatten(inside, spec), tree_unflatten(outside, out_spec))
                # The inputs and outputs are the very tensors that were passed, not what stood for them.
                own = {id(x): value for x, value in zip([*outside, *inside], [*out_leaves, *leaves])}
                saved, forward, dirty, constant = (
                    [(own.get(id(x), _taken(x, level)[0]), _taken(x, level)[1]) for x in items]
                    for items in (
                        inner._saved,
                        inner._saved_for_forward,
                        inner._dirty,
                        inner._non_differentiable,
                    )
                )
            ctx.saved_dims = [dim for _, dim in saved]
            ctx.forward_dims = [dim for _, dim in forward]
            ctx.save_for_backward(*(x for x, _ in saved))
            ctx.save_for_forward(*(x for x, _ in forward))
            ctx.mark_dirty(*(x for x, _ in dirty))
            ctx.mark_non_differentiable(*(x for x, _ in constant))
            ctx.set_materialize_grads(inner._materialize)

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> Any:
            with _level(info) as level:
                ctx.inner._saved = tuple(_wrap_all(ctx.saved_tensors, ctx.saved_dims, level))
                grads = cls.backward(ctx.inner, *_wrap_all(grad_outputs, Mapped.out_dims, level))
                grads = grads if isinstance(grads, (tuple, list)) else (grads,)
                return tuple(_gradient(x, dim, level) for x, dim in zip(grads, in_dims))

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            with _level(info) as level:
                ctx.inner._saved = tuple(_wrap_all(ctx.saved_tensors, ctx.forward_dims, level))
                tangents_out = cls.jvp(ctx.inner, *_wrap_all(tangents, in_dims, level))
                several = isinstance(tangents_out, (tuple, list))
                pairs = zip(tangents_out if several else (tangents_out,), Mapped.out_dims)
                out = [x if dim is None else _C._remove_batch_dim(x, level, 0) for x, dim in pairs]
                return tuple(out) if several else out[0]

    Mapped.__name__ = f"Vmapped{cls.__name__}"
    return Mapped


def _gradient(x: Any, dim: int | None, level: int) -> Any:
    """The gradient of an input that is mapped (`dim`), or shared by the mapped calls: the sum of theirs."""
    if x is None:
        return None
    value, mapped = _taken(x, level)
    if dim is not None:
        return _C._remove_batch_dim(x, level, 0)
    return value if mapped is None else value.sum(0)


# ---- forward mode --------------------------------------------------------------------------------------


def _dual(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any], level: int) -> Any:
    parts = [_C._unpack_dual(x, level) if isinstance(x, _C.TensorBase) else (x, None) for x in args]
    primals = tuple(primal for primal, _ in parts)
    ctx: Any
    if cls.setup_context is Function.setup_context:
        out, ctx = _on_tape(cls, primals, kwargs)
    else:
        out, ctx = cls.apply(*primals, **kwargs), context_class(cls)()
        ctx.needs_input_grad = tuple(isinstance(x, _C.TensorBase) for x in args)
        cls.setup_context(ctx, primals, out)
    ctx._saved, ctx._node = ctx._saved_for_forward, None
    zeros: Any = _C._functions.zeros_like
    tangents = [
        zeros(p) if t is None and ctx._materialize and isinstance(p, _C.TensorBase) else t for p, t in parts
    ]
    along = cls.jvp(ctx, *tangents)
    several = isinstance(out, (tuple, list))
    outs = list(out) if several else [out]
    ends = list(along) if isinstance(along, (tuple, list)) else [along]
    if len(ends) != len(outs):
        raise RuntimeError(
            f"{cls.__name__}: jvp returned {len(ends)} tangents, expected one for each of {len(outs)} outputs"
        )
    results = [_joined(y, t, args, parts, level) for y, t in zip(outs, ends)]
    return type(out)(results) if several else results[0]


def _joined(y: Any, tangent: Any, args: Sequence[Any], parts: Sequence[Any], level: int) -> Any:
    """An output with its tangent; the argument itself where it was changed in place."""
    if not isinstance(y, _C.TensorBase) or tangent is None:
        return y
    for x, (primal, along) in zip(args, parts):
        if primal is y and along is not None:
            if along is not tangent:
                along.copy_(tangent)
            return x
    return _C._make_dual(y, tangent, level)


in_transforms.append(apply_in_transforms)
