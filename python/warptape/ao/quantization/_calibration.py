"""What GPTQ, AWQ and SmoothQuant share: the layers of a model, what goes into them, the grid of codes.

O outputs, I inputs, G groups of inputs, n rows of calibration data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from warptape import _C, nn
from warptape import core as wt
from warptape.core import Tensor
from warptape.models import Codes

from ...core.coded import GROUPS, QuantizedTensor
from .quant_api import Filter, _reason_against, is_linear

BITS = (2, 3, 4, 8)


def layers_of(model: nn.Module, filter_fn: Filter | None, call: str) -> dict[str, Any]:
    """The linear layers that are meant, by path. Raises: ValueError where there are none."""
    wanted = filter_fn or is_linear
    layers = {
        name: module
        for name, module in model.named_modules()
        if _reason_against(module) is None and wanted(module, name)
    }
    if not layers:
        raise ValueError(f"{call}: the model has no linear layer that filter_fn takes")
    return layers


def check_grid(layers: Mapping[str, Any], bits: int, group: int, call: str) -> None:
    """Raises: ValueError for other bits and groups than there are, and groups that do not divide."""
    if bits not in BITS or group not in GROUPS[1:]:
        raise ValueError(
            f"{call}: expected bits of {BITS} and groups of {GROUPS[1:]}, got bits={bits}, group_size={group}"
        )
    uneven = [f"{n} ({m.in_features} inputs)" for n, m in layers.items() if m.in_features % group]
    if uneven:
        raise ValueError(
            f"{call}: groups of {group} do not divide the inputs of {', '.join(uneven)}; take another "
            "group_size, or leave these layers out by filter_fn"
        )


def batches_of(data: Iterable[Any], call: str) -> list[Any]:
    """The calibration batches. Raises: ValueError where there are none, or one holds what is not finite."""
    batches = [data] if isinstance(data, Tensor) else list(data)
    if not batches:
        raise ValueError(f"{call}: the calibration data have no batches")
    for i, batch in enumerate(batches):
        parts = batch.values() if isinstance(batch, Mapping) else batch
        for part in [parts] if isinstance(parts, Tensor) else parts:
            if isinstance(part, Tensor) and part.is_floating_point():
                if not bool(wt.isfinite(part).all()):
                    raise ValueError(f"{call}: batch {i} of the calibration data holds NaN or infinity")
    return batches


def run(model: nn.Module, batches: Sequence[Any]) -> None:
    """The model on each batch: a tensor, arguments, or keyword arguments."""
    was = model.training
    model.eval()
    try:
        with wt.no_grad():
            for batch in batches:
                if isinstance(batch, Mapping):
                    model(**batch)
                else:
                    model(*batch) if isinstance(batch, tuple | list) else model(batch)
    finally:
        model.train(was)


@contextlib.contextmanager
def watching(layers: Mapping[str, Any], see: Callable[[str, Tensor], None], call: str) -> Iterator[None]:
    """Calls see(path, input [n, I] in float32) before each call of a layer.

    Raises: ValueError where an input is not finite.
    """

    def hook_of(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            x = args[0].detach().reshape(-1, args[0].shape[-1]).float()
            if not bool(wt.isfinite(x).all()):
                raise ValueError(f"{call}: the input of {name} holds NaN or infinity on the calibration data")
            see(name, x)

        return hook

    handles = [layer.register_forward_pre_hook(hook_of(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def restoring(*modules: nn.Module) -> Iterator[None]:
    """Gives modules their parameters back where the block fails."""
    before = [
        (m, dict(m._parameters), {k: p.data.clone() for k, p in m._parameters.items() if p is not None})
        for m in modules
    ]
    try:
        yield
    except BaseException:
        for module, parameters, values in before:
            module._parameters.update(parameters)
            _C._module_changed()
            for name, value in values.items():
                parameters[name].data = value
        raise


# ---- the grid ----


def grid_of(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale and integer zero [O, 1] for the values of one group [O, k], between the least and the greatest
    (and zero): w = scale * (q - zero). The scale is one of float16, as files keep it."""
    least = weight.amin(dim=1, keepdim=True).clamp(max=0.0)
    most = weight.amax(dim=1, keepdim=True).clamp(min=0.0)
    scale = ((most - least) / (2**bits - 1)).clamp(min=1e-5)
    scale = scale.to(wt.float16).to(weight.dtype)
    return scale, wt.round(-least / scale).clamp(0, 2**bits - 1)


def codes_on(weight: Tensor, scale: Tensor, zero: Tensor, bits: int) -> Tensor:
    """The nearest codes, as floats."""
    return (wt.round(weight / scale) + zero).clamp(0, 2**bits - 1)


def nearest(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [O, I], scales and zeros [O, G], each group by itself."""
    outputs, inputs = weight.shape
    rows = weight.reshape(outputs * (inputs // group), group)
    scale, zero = grid_of(rows, bits)
    codes = codes_on(rows, scale, zero, bits).reshape(outputs, inputs)
    return codes, scale.reshape(outputs, -1), zero.reshape(outputs, -1)


def value_of(codes: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """The matrix [O, I]."""
    group = codes.shape[1] // scales.shape[1]
    return scales.repeat_interleave(group, dim=1) * (codes - zeros.repeat_interleave(group, dim=1))


def coded(codes: Tensor, scales: Tensor, zeros: Tensor, bits: int, dtype: wt.dtype) -> Any:
    """The parameter of these codes; those of 2 and 3 bits are kept in 4."""
    matrix = Codes(8 if bits == 8 else 4, codes.to(wt.uint8), scales.float(), (-scales * zeros).float())
    return nn.Parameter(QuantizedTensor.from_codes(matrix, dtype), requires_grad=False)


def round_to_nearest_(
    model: nn.Module, bits: int = 4, group_size: int = 128, filter_fn: Filter | None = None
) -> nn.Module:
    """Rounds linear layers to the grid that gptq_ and awq_ use (a scale and an integer zero for each group),
    each weight to the nearest code, in place: what these two are measured by.

    Raises: ValueError for other bits and groups, and groups that do not divide a layer's inputs.
    """
    layers = layers_of(model, filter_fn, "round_to_nearest_")
    check_grid(layers, bits, group_size, "round_to_nearest_")
    with wt.no_grad():
        rounded = {
            name: coded(*nearest(layer.weight.detach().float(), bits, group_size), bits, layer.weight.dtype)
            for name, layer in layers.items()
        }
    for name, layer in layers.items():
        layer.weight = rounded[name]
    return model
