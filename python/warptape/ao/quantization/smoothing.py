"""AWQ and SmoothQuant: channels of a layer's input are scaled, and its weight by the inverse, so that
rounding loses less. The factor goes into the norm before the layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warptape import core as wt
from warptape import nn
from warptape.core import Tensor

from ._calibration import (
    batches_of,
    check_grid,
    coded,
    layers_of,
    nearest,
    restoring,
    run,
    value_of,
    watching,
)
from .quant_api import Filter

Mappings = Sequence[tuple[str, Sequence[str]]]
_NORMS = {
    "input_layernorm": ("self_attn.qkv_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_up_proj", "mlp.gate_proj", "mlp.up_proj"),
    "ln_1": ("attn.c_attn", "attn.qkv"),
    "ln_2": ("mlp.c_fc", "mlp.fc1"),
}
_ROWS = 2048  # of a layer's inputs that AWQ measures its error by


def find_mappings(model: nn.Module, layers: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Norms and the linear layers that read them alone, by the names that decoders have.

    Args:
        model: a decoder.
        layers: linear layers by path.
    """
    mappings = []
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        if last in _NORMS and isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is not None:
            readers = [f"{parent}.{reader}" if parent else reader for reader in _NORMS[last]]
            readers = [reader for reader in readers if reader in layers]
            if readers:
                mappings.append((name, readers))
    return mappings


def _checked(
    model: nn.Module, mappings: Mappings | None, layers: Mapping[str, Any], call: str
) -> list[tuple[Any, list[str]]]:
    if mappings is None:
        mappings = find_mappings(model, layers)
        if not mappings:
            raise ValueError(
                f"{call}: no norms before linear layers are known by name in this model; give mappings= "
                "[(norm, [linear, ..]), ..] with their paths"
            )
    out = []
    for norm, readers in mappings:
        unknown = [reader for reader in readers if reader not in layers]
        module: Any = model.get_submodule(norm)
        if unknown or getattr(module, "weight", None) is None or module.weight.ndim != 1:
            raise ValueError(
                f"{call}: mappings: expected a norm with a weight and linear layers, got {norm} and "
                f"{list(readers)}"
            )
        out.append((module, list(readers)))
    return out


def _scale(norm: Any, readers: Iterable[Any], factor: Tensor) -> None:
    """Divides what the norm gives by factor [I], and multiplies the readers' weights with it."""
    with wt.no_grad():
        norm.weight.div_(factor.to(norm.weight.dtype))
        if getattr(norm, "bias", None) is not None:
            norm.bias.div_(factor.to(norm.bias.dtype))
        for reader in readers:
            reader.weight.mul_(factor.to(reader.weight.dtype))


def smoothing_factor(most_input: Tensor, weights: Sequence[Tensor], alpha: float) -> Tensor:
    """s_j = max|X_j| ** alpha / max|W_j| ** (1 - alpha) of SmoothQuant, equation 4: [I].

    Args:
        most_input: [I], of calibration.
        weights: [O, I] each.
        alpha: from 0 (all to the input) to 1 (all to the weights).
    """
    most_weight = wt.stack([w.abs().amax(dim=0) for w in weights]).amax(dim=0).clamp(min=1e-5)
    return (most_input.clamp(min=1e-5) ** alpha / most_weight ** (1 - alpha)).clamp(min=1e-5)


def smooth_quant_(
    model: nn.Module,
    data: Iterable[Any],
    alpha: float = 0.5,
    *,
    mappings: Mappings | None = None,
    filter_fn: Filter | None = None,
) -> nn.Module:
    """Moves part of the range of activations into weights, in place ("SmoothQuant: Accurate and Efficient
    Post-Training Quantization for Large Language Models", Xiao et al. 2022). What the model computes stays,
    but for rounding; quantize_ with Int8DynamicActivationInt8WeightConfig comes next.

    Args:
        data: as for gptq_.
        alpha: from 0, all of the difficulty with activations, to 1, with weights.
        mappings: paths of a norm and of the linear layers that alone read it; None: found by the names of
            warptape.models.Decoder and the like.

    Raises: ValueError for alpha out of [0, 1], unknown mappings, data without batches or with values that are
    not finite. The model is unchanged then.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"smooth_quant_: alpha must be from 0 to 1, got {alpha}")
    layers = layers_of(model, filter_fn, "smooth_quant_")
    pairs = _checked(model, mappings, layers, "smooth_quant_")
    batches = batches_of(data, "smooth_quant_")
    most: dict[str, Tensor] = {}

    def see(name: str, x: Tensor) -> None:
        top = x.abs().amax(dim=0)
        most[name] = wt.maximum(most[name], top) if name in most else top

    with watching({r: layers[r] for _, readers in pairs for r in readers}, see, "smooth_quant_"):
        run(model, batches)
    with wt.no_grad():
        factors = [
            smoothing_factor(most[readers[0]], [layers[r].weight.detach().float() for r in readers], alpha)
            for _, readers in pairs
        ]
    for (norm, readers), factor in zip(pairs, factors):
        _scale(norm, [layers[r] for r in readers], factor)
    return model


def awq_factor(
    x: Tensor, mean_input: Tensor, weights: Sequence[Tensor], bits: int, group: int, steps: int = 20
) -> Tensor:
    """s = mean|X| ** a [I] with the a of 0, 1 / steps .. (steps - 1) / steps by which the layers' results on
    x [n, I] change least when W diag(s) is rounded: AWQ, equations 4 and 5. s is scaled so that its least and
    greatest value multiply to 1."""
    exact = [x @ w.t() for w in weights]
    best, chosen = float("inf"), wt.ones_like(mean_input)
    for step in range(steps):
        s = mean_input.clamp(min=1e-8) ** (step / steps)
        s = s.clamp(min=1e-4)
        s = s / (s.amax() * s.amin()).sqrt()
        loss = 0.0
        for w, y in zip(weights, exact):
            rounded = value_of(*nearest(w * s, bits, group)) / s
            loss += float(((x @ rounded.t() - y) ** 2).mean())
        if loss < best:
            best, chosen = loss, s
    return chosen


def awq_(
    model: nn.Module,
    data: Iterable[Any],
    bits: int = 4,
    group_size: int = 128,
    *,
    mappings: Mappings | None = None,
    filter_fn: Filter | None = None,
) -> nn.Module:
    """Quantises linear layers after scaling the channels that see large activations, in place ("AWQ:
    Activation-aware Weight Quantization for LLM Compression and Acceleration", Lin et al. 2023). Layers that
    read no norm are rounded as they are.

    Args:
        data: as for gptq_; the error is measured on up to 2,048 rows of a layer's inputs.
        bits, group_size: as for gptq_.
        mappings: as for smooth_quant_.

    Raises: as gptq_ and smooth_quant_. The model is unchanged then.
    """
    layers = layers_of(model, filter_fn, "awq_")
    check_grid(layers, bits, group_size, "awq_")
    pairs = _checked(model, mappings, layers, "awq_")
    batches = batches_of(data, "awq_")
    sums: dict[str, Tensor] = {}
    seen: dict[str, int] = {}
    samples: dict[str, list[Tensor]] = {}

    def see(name: str, x: Tensor) -> None:
        sums[name] = sums[name] + x.abs().sum(dim=0) if name in sums else x.abs().sum(dim=0)
        seen[name] = seen.get(name, 0) + len(x)
        samples.setdefault(name, []).append(x[:: max(len(x) * len(batches) // _ROWS, 1)])

    with watching({readers[0]: layers[readers[0]] for _, readers in pairs}, see, "awq_"):
        run(model, batches)
    norms = [norm for norm, _ in pairs]
    with restoring(*norms, *layers.values()), wt.no_grad():
        for norm, readers in pairs:
            x = wt.cat(samples[readers[0]])[:_ROWS]
            mean = sums[readers[0]] / seen[readers[0]]
            weights = [layers[r].weight.detach().float() for r in readers]
            _scale(norm, [layers[r] for r in readers], awq_factor(x, mean, weights, bits, group_size))
        for layer in layers.values():
            rounded = nearest(layer.weight.detach().float(), bits, group_size)
            layer.weight = coded(*rounded, bits, layer.weight.dtype)
    return model
