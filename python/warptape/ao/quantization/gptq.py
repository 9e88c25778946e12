"""GPTQ: codes chosen column by column, each column's error made up for by those that follow ("GPTQ: Accurate
Post-Training Quantization for Generative Pre-trained Transformers", Frantar et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warptape import core as wt
from warptape import nn
from warptape.core.namespaces import linalg

from ._calibration import (
    batches_of,
    check_grid,
    coded,
    codes_on,
    grid_of,
    layers_of,
    restoring,
    run,
    watching,
)
from .quant_api import Filter


def gptq_codes(
    weight: wt.Tensor, hessian: wt.Tensor, bits: int, group: int, damp: float = 0.01, block: int = 128
) -> tuple[wt.Tensor, wt.Tensor, wt.Tensor]:
    """Algorithm 1 of the paper.

    Args:
        weight: [O, I]; hessian: 2 X X^T of the layer's inputs, [I, I]. Both are taken in float64.
        damp: what is added to the diagonal, as a share of its mean.
        block: columns after which the rest of the matrix is brought up to date.

    Returns: codes [O, I], scales and zeros [O, I / group], in float64.

    Raises: what linalg.cholesky raises where the damped Hessian has no inverse.
    """
    w, h = weight.double().clone(), hessian.double().clone()
    outputs, inputs = w.shape
    dead = h.diagonal() == 0
    h.diagonal()[dead] = 1.0
    w[:, dead] = 0.0
    h.diagonal().add_(damp * h.diagonal().mean())
    inverse = wt.cholesky_inverse(linalg.cholesky(h))
    upper = linalg.cholesky(inverse).t().contiguous()  # row i: what column i's error does to others
    codes = wt.zeros_like(w)
    scales = wt.zeros(outputs, inputs // group, dtype=w.dtype)
    zeros = wt.zeros_like(scales)
    for first in range(0, inputs, block):
        last = min(first + block, inputs)
        errors = wt.zeros(outputs, last - first, dtype=w.dtype)
        for i in range(first, last):
            if i % group == 0:
                # Columns beyond the block have not seen its errors yet: groups lie within blocks.
                scale, zero = grid_of(w[:, i : i + group], bits)
                scales[:, i // group], zeros[:, i // group] = scale[:, 0], zero[:, 0]
            column = w[:, i : i + 1]
            code = codes_on(column, scale, zero, bits)
            codes[:, i] = code[:, 0]
            error = (column - scale * (code - zero)) / upper[i, i]
            w[:, i:last] -= error * upper[i : i + 1, i:last]
            errors[:, i - first] = error[:, 0]
        w[:, last:] -= errors @ upper[first:last, last:]
    return codes, scales, zeros


def gptq_(
    model: nn.Module,
    data: Iterable[Any],
    bits: int = 4,
    group_size: int = 128,
    *,
    damp: float = 0.01,
    filter_fn: Filter | None = None,
) -> nn.Module:
    """Quantises linear layers by GPTQ, in place; layers that are called first come first, and those after
    them see what the quantised ones give.

    Args:
        data: batches: tensors, tuples of arguments or dicts of keyword arguments of the model.
        bits: 2, 3, 4 or 8; codes of 2 and 3 bits are kept in 4.
        group_size: inputs that share a scale and a zero: 32, 64 or 128.
        damp: see gptq_codes.
        filter_fn: see quantize_.

    Raises: ValueError for other bits and groups, groups that do not divide a layer's inputs, data without
    batches or with values that are not finite, and layers that the data never reach. The model is unchanged
    then.
    """
    layers = layers_of(model, filter_fn, "gptq_")
    check_grid(layers, bits, group_size, "gptq_")
    batches = batches_of(data, "gptq_")
    order: dict[str, None] = {}
    with watching(layers, lambda name, x: order.setdefault(name), "gptq_"):
        run(model, batches[:1])
    unseen = [name for name in layers if name not in order]
    if unseen:
        raise ValueError(f"gptq_: the calibration data never reach {', '.join(unseen)}")
    with restoring(*layers.values()), wt.no_grad():
        for name in order:
            layer = layers[name]
            hessian = wt.zeros(layer.in_features, layer.in_features, dtype=wt.float64)

            def see(_: str, x: wt.Tensor, to: wt.Tensor = hessian) -> None:
                to += 2 * (x.t() @ x).double().cpu()

            with watching({name: layer}, see, "gptq_"):
                run(model, batches)
            result = gptq_codes(layer.weight.detach().cpu(), hessian, bits, group_size, damp)
            weight = coded(*result, bits, layer.weight.dtype)
            layer.weight = nn.Parameter(weight.to(layer.weight.device), requires_grad=False)
    return model
