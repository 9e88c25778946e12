"""torch.ops.higher_order: control flow by the arguments of PyTorch's dispatcher, which are flat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..compiler.higher_order_ops.cond import cond_op
from ..compiler.higher_order_ops.map import map_impl
from ..compiler.higher_order_ops.scan import scan_op
from ..compiler.higher_order_ops.while_loop import while_loop_op
from ..core import Tensor

if TYPE_CHECKING:
    from warptape import core as wt

__all__ = ["cond", "map_impl", "scan", "while_loop"]


def _flat(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _of_leaves(fn: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda *leaves: _flat(fn(*leaves))


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    """true_fn(*operands) where `pred` is true, else false_fn(*operands); a tuple of tensors."""
    if not isinstance(pred, Tensor):
        return _flat((true_fn if pred else false_fn)(*operands))
    return cond_op(pred, _of_leaves(true_fn), _of_leaves(false_fn), tuple(operands))


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> tuple[Any, ...]:
    """Carries values on by body_fn while cond_fn holds; both also get `additional_inputs`, which stay."""
    more = tuple(additional_inputs)
    return while_loop_op(
        lambda *carried: _flat(cond_fn(*carried, *more)),
        lambda *carried: _flat(body_fn(*carried, *more)),
        tuple(carried_inputs),
    )


def scan(
    combine_fn: Callable[..., Any],
    init: Sequence[Any],
    xs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> list[Any]:
    """The last carry and the stacked results of combine_fn(*carry, *slices, *additional_inputs)."""
    more = tuple(additional_inputs)
    carry, rows = scan_op(lambda *values: _flat(combine_fn(*values, *more)), tuple(init), tuple(xs))
    return [*carry, *rows]


def out_dtype(op: Callable[..., Any], output_dtype: wt.dtype, *args: Any) -> Any:
    """The op on arguments in another dtype, so that int8 products are summed in int32."""
    return op(*(a.to(output_dtype) if isinstance(a, Tensor) else a for a in args))
