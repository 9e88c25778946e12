"""What works on Python objects, so that it cannot be declared in C++.

All other public functions are ops of csrc/ops; tests/python/test_declarations.py checks that by the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _C
from .tensor_class import Tensor

__all__ = ["typename"]

# Why they are no ops, and their names.
NOT_DECLARED = {
    "calls a Python function": """
        compile cond vmap while_loop lobpcg nn.functional.triplet_margin_with_distance_loss Tensor.apply_
        Tensor.map_ Tensor.register_hook Tensor.register_post_accumulate_grad_hook""",
    "reads or makes nested lists, arrays, other tensor types": """
        as_tensor asarray from_dlpack from_file from_numpy frombuffer tensor
        Tensor.new Tensor.new_tensor Tensor.numpy Tensor.tolist""",
    "makes or asks for sparse tensors, which are objects of Python": """
        sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor
        Tensor.ccol_indices Tensor.coalesce Tensor.col_indices Tensor.crow_indices Tensor.indices
        Tensor.is_coalesced Tensor.row_indices Tensor.values Tensor.dense_dim Tensor.sparse_dim
        Tensor.sparse_mask Tensor.to_dense Tensor.to_sparse
        Tensor.to_sparse_coo Tensor.to_sparse_csc Tensor.to_sparse_csr""",
    "asks for or changes a Python type": "is_storage is_tensor typename Tensor.as_subclass Tensor.type",
    "tells how a tensor lies in memory": "Tensor.dim_order",
    "overridden by subclasses, for load_state_dict": "Tensor.module_load",
    "reads or writes files": "load save",
    "reads or sets what all later calls go by": """
        are_deterministic_algorithms_enabled clear_autocast_cache get_autocast_dtype get_default_device
        get_default_dtype get_device_module get_float32_matmul_precision get_num_threads get_rng_state
        initial_seed
        is_autocast_cache_enabled is_autocast_enabled is_grad_enabled is_inference_mode_enabled manual_seed
        seed set_autocast_cache_enabled set_autocast_dtype set_autocast_enabled set_default_device
        set_default_dtype set_default_tensor_type set_float32_matmul_precision set_num_threads
        set_printoptions set_rng_state set_warn_always is_deterministic_algorithms_warn_only_enabled
        is_warn_always_enabled
        get_deterministic_debug_mode set_deterministic_debug_mode use_deterministic_algorithms""",
    "runs the tape, whose hooks are Python's": "Tensor.backward Tensor.retain_grad",
    "hands out the memory or names a stream, both objects of Python": """
        Tensor.is_pinned Tensor.is_set_to Tensor.is_shared Tensor.pin_memory Tensor.record_stream Tensor.set_
        Tensor.share_memory_ Tensor.storage Tensor.storage_type Tensor.untyped_storage""",
    "computes with Python's numbers": "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum",
}


def typename(obj: object) -> str:
    """The type's full name: of a tensor its dtype's, as "torch.FloatTensor".

    Args:
        obj: of any class.

    >>> torch.typename(torch.ones(1)), torch.typename(1)
    ('torch.FloatTensor', 'int')
    """
    if isinstance(obj, Tensor):
        return obj.type()
    kind = obj if hasattr(obj, "__qualname__") else type(obj)
    home = "" if kind.__module__ in ("builtins", "", None) else f"{kind.__module__}."
    return home + kind.__qualname__


def _filled(self: Tensor, values: list[Any]) -> Tensor:
    return self.copy_(_C._tensor(values, self.dtype, self.device, False, True).reshape(self.shape))


def apply_(self: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Replaces each element by what a Python function makes of it. Slow.

    Args:
        callable: of one number.
    """
    return _filled(self, [callable(x) for x in self.reshape(-1).tolist()])


def map_(self: Tensor, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
    """Replaces each element by what a Python function makes of it and of `tensor`'s. Slow.

    Args:
        tensor: of a shape that expands to this one's.
        callable: of two numbers.
    """
    other = tensor.expand(self.shape)
    return _filled(
        self, [callable(x, y) for x, y in zip(self.reshape(-1).tolist(), other.reshape(-1).tolist())]
    )


def _assert(condition: object, message: str) -> None:
    """An assert that tracers record (`warptape.fx`)."""
    if type(condition) is not Tensor and _C._has_torch_function((condition,)):
        _C._handle_torch_function(_assert, (condition,), condition, message)
    elif not condition:
        raise AssertionError(message)


for _method in (apply_, map_):
    setattr(Tensor, _method.__name__, _method)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """The triplet loss over a distance of one's own; with `swap` the positive may stand in for the anchor.

    max(0, distance(anchor, positive) - distance(anchor, negative) + margin).

    Args:
        anchor, positive, negative: [N, D].
        distance_function: maps two of them to [N]; pairwise_distance if None.
        margin: how much further the negative must be; positive.
        swap: whether the distance of positive and negative counts where it is less than anchor to negative.
        reduction: 'mean', 'sum' or 'none'.

    >>> x = torch.zeros(1, 2)
    >>> F.triplet_margin_with_distance_loss(x, x, x + 3, margin=1.0)
    tensor(0.)
    """
    for name, tensor in (("anchor", anchor), ("positive", positive), ("negative", negative)):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                "triplet_margin_with_distance_loss(): "
                f"argument '{name}' must be Tensor, not {type(tensor).__name__}"
            )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise RuntimeError(
            "The anchor, positive, and negative tensors are expected to have the same number of dimensions, "
            f"but got: anchor {anchor.ndim}D, positive {positive.ndim}D, and negative {negative.ndim}D inputs"
        )
    distance = _C._nn.pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = _C._functions.minimum(far, distance(positive, negative))
    loss = (near - far + margin).clamp(min=0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
