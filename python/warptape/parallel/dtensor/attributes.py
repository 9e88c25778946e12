"""What a DTensor says of itself, and what takes its values out: of the full tensor, not of the shard."""

from __future__ import annotations

import math
from typing import Any

from ... import _C
from ... import core as wt
from ...core import Tensor
from ...core.by_name import map_tensors, name_of
from .calls import to_full_tensor, without_partial
from .layout import Layout, normalized
from .placement import Replicate
from .tensor import HANDLERS, DTensor, plain, wrap
from .transfer import moved, of_gradient

_handles = HANDLERS.handles


@_handles("get.dtype get.device get.layout get.is_meta get.is_cuda get.is_cpu get.is_sparse get.is_quantized")
@_handles("get.is_mkldnn get.is_mps get.is_xpu get.is_nested get.names get.itemsize get.is_inference")
def _of_shard(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The same for the shard and the full tensor: dtype, device, history."""
    args, kwargs = map_tensors((args, kwargs), plain)
    return func(*args, **kwargs)


@_handles("get.requires_grad get.is_leaf get.grad_fn get.retains_grad get._version get.output_nr")
@_handles("register_hook register_post_accumulate_grad_hook backward storage untyped_storage")
def _of_object(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)  # of this tensor, not of a view of it


@_handles("requires_grad_ retain_grad")
def _changes_object(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    func(*args, **kwargs)
    return args[0]


@_handles("get.shape")
def _shape(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    return wt.Size(args[0]._spec.shape)


@_handles("size")
def _size(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    shape = wt.Size(args[0]._spec.shape)
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return shape if dim is None else shape[dim]


@_handles("get.ndim dim ndimension")
def _ndim(func: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    return args[0]._spec.ndim


@_handles("numel nelement")
def _numel(func: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    return math.prod(args[0]._spec.shape)


@_handles("get.nbytes")
def _nbytes(func: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    return math.prod(args[0]._spec.shape) * plain(args[0]).element_size()


@_handles("stride")
def _stride(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Of the full tensor, if it lay in memory in the order of the shard."""
    local, shape = plain(args[0]).stride(), args[0]._spec.shape
    order = sorted(range(len(shape)), key=lambda d: (local[d], -d))
    out, step = [0] * len(shape), 1
    for d in order:
        out[d] = step
        step *= max(shape[d], 1)
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return tuple(out) if dim is None else out[dim]


@_handles("storage_offset")
def _storage_offset(func: Any, args: tuple, kwargs: dict[str, Any]) -> int:
    return 0


@_handles("detach")
def _detach(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    return wrap(_C.TensorBase.detach(args[0]), args[0]._spec)


@_handles("type_as")
def _type_as(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Only the dtype is the other's, wherever either lies."""
    t, other = (*args, *kwargs.values())
    dtype = plain(other).dtype
    return HANDLERS.other(_C.TensorBase.to, (t, dtype), {}) if isinstance(t, DTensor) else t.to(dtype)


@_handles("get.grad get._grad")
def _gradient(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    g = func(*args)
    if g is None or isinstance(g, DTensor):
        return g
    spec = args[0]._spec
    g = wrap(g, spec.with_placements(of_gradient(spec.placements)))
    args[0].grad = g  # the same object next time
    return g


@_handles("get.T get.mT get.H get.mH numpy_T matrix_H mH mT")
def _transposed(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    t, name = args[0], name_of(func).removeprefix("get ")
    n = t._spec.ndim
    if name in ("numpy_T", "T"):
        return HANDLERS.other(_C.TensorBase.permute, (t, list(reversed(range(n)))), {})
    out = HANDLERS.other(_C.TensorBase.transpose, (t, n - 2, n - 1), {})
    return HANDLERS.other(_C.TensorBase.conj, (out,), {}) if "H" in name and plain(t).is_complex() else out


@_handles("item is_nonzero allclose nonzero")
@_handles("argwhere unique masked_select")
def _of_full(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What reads values reads those of the full tensor."""
    args, kwargs = map_tensors((args, kwargs), to_full_tensor)
    return func(*args, **kwargs)


@_handles("equal")
def _equal(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    a, b = args[0], args[1] if len(args) > 1 else kwargs["other"]
    return bool(func(to_full_tensor(a), to_full_tensor(b)))


@_handles("zeros_like ones_like empty_like full_like")
def _like(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    t = without_partial(args[0])
    return t.like_local(func(plain(t), *args[1:], **kwargs))


def _blank(t: DTensor) -> Tensor:
    local = plain(t)
    return wt.empty(t._spec.shape, dtype=local.dtype, device=local.device)


@_handles("dropout")
def _dropout(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The mask of the full tensor is drawn, as one process draws it, and each rank takes its shard."""
    t = without_partial(args[0])
    named = dict(zip(("p", "training", "inplace"), args[1:], strict=False)) | kwargs
    if not named.get("training", named.get("train", True)) or named.get("p", 0.5) == 0:
        return t
    replicated = Layout(t._spec.mesh, (Replicate(),) * t._spec.mesh.ndim, t._spec.shape, t._spec.dtype)
    mask = func(_blank(t).fill_(1), named.get("p", 0.5), True)
    return wrap(plain(t) * moved(mask, replicated, t.placements), t._spec)


@_handles("new_empty new_zeros new_ones new_full new_tensor")
def _new(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """New tensors are replicated."""
    mesh = args[0]._spec.mesh
    out = func(plain(args[0]), *args[1:], **kwargs)
    return wrap(
        out, Layout(mesh, normalized(None, mesh, out.ndim, func.__name__), tuple(out.shape), out.dtype)
    )


@_handles("autograd.grad")
def _autograd(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """autograd.grad, whose results lie as the inputs do."""
    names = ("outputs", "inputs", "grad_outputs")
    more = ("retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched")
    named = dict(zip((*names, *more, "materialize_grads"), args, strict=False)) | kwargs
    listed = {
        k: [v] if isinstance(v, Tensor) else v for k, v in named.items() if k in names and v is not None
    }
    outputs = [_seedable(t) for t in listed["outputs"]]
    if "grad_outputs" in listed:
        pairs = zip(listed["grad_outputs"], outputs, strict=True)
        named["grad_outputs"] = [_aligned(g, out) for g, out in pairs]
    named.update(outputs=[plain(t) for t in outputs], inputs=listed["inputs"])
    grads = func(**named)
    inputs = zip(grads, listed["inputs"], strict=True)
    return tuple(
        wrap(g, t._spec.with_placements(of_gradient(t.placements)))
        if isinstance(t, DTensor) and g is not None
        else g
        for g, t in inputs
    )


def _seedable(t: Tensor) -> Tensor:
    return t.redistribute(placements=of_gradient(t.placements)) if isinstance(t, DTensor) else t


def _aligned(g: Any, out: Tensor) -> Any:
    if not (isinstance(g, DTensor) and isinstance(out, DTensor)):
        return g
    return moved(plain(g), g._spec, out.placements)


@_handles("_fused_sgd_ _fused_adam_ _fused_adamw_ _foreach_zero_")
def _per_shard(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An optimizer's step: parameters, gradients and states lie alike, so parts do for the full tensor."""
    first = args[0]
    lists = [a for a in args if isinstance(a, list | tuple) and len(a) == len(first)]
    for items in zip(*lists, strict=True):
        owner = items[0]
        for t in items[1:]:
            if isinstance(owner, DTensor) and isinstance(t, DTensor) and t.placements != owner.placements:
                raise RuntimeError(
                    f"{func.__name__}: a parameter is {list(owner.placements)} and its gradient or state "
                    f"{list(t.placements)}; redistribute them alike"
                )
    args, kwargs = map_tensors((args, kwargs), plain)
    return func(*args, **kwargs)
