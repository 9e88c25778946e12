"""Which layers of a model would break on few bits, told without hardware that has them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from warptape import core as wt
from warptape import nn

from ...amp import autocast
from ...core import Tensor
from .formats import Encoded, decode
from .training import LowPrecisionLinear, Recipe, convert_to_low_precision_training

__all__ = ["LayerPrecision", "Lost", "PrecisionReport", "precision_report"]


@dataclass(frozen=True)
class Lost:
    """What rounding does to a factor of a product, in all the products that it is in.

    Attributes:
        underflow: the share of the numbers other than zero that became zero.
        saturation: the share of all that were clamped.
    """

    underflow: float
    saturation: float


@dataclass(frozen=True)
class LayerPrecision:
    """One layer on few bits.

    Attributes:
        name: its path.
        input, weight, gradient: what is lost of the factors; None where the recipe does not round one.
        cosine: between the gradients of its weight here and in bfloat16; nan where one of them is zero.
    """

    name: str
    input: Lost | None
    weight: Lost | None
    gradient: Lost | None
    cosine: float

    def reasons(self, underflow: float, saturation: float, cosine: float) -> list[str]:
        """Why it counts as broken, in words.

        Args:
            underflow, saturation: greatest shares that do not.
            cosine: the least one that does not.
        """
        texts = []
        for operand in ("input", "weight", "gradient"):
            lost = getattr(self, operand)
            for kind, limit in (("underflow", underflow), ("saturation", saturation)):
                if lost is not None and getattr(lost, kind) > limit:
                    texts.append(f"{100 * getattr(lost, kind):.1f} % {kind} of the {operand}")
        if not self.cosine >= cosine:
            texts.append(f"gradient's cosine {self.cosine:.4f}")
        return texts


@dataclass(frozen=True)
class PrecisionReport:
    """A model on few bits beside itself in bfloat16. `str` is a table.

    Attributes:
        loss: of the step, (few bits, bfloat16).
        layers: in the model's order.
    """

    loss: tuple[float, float]
    layers: list[LayerPrecision]

    def broken(
        self, *, underflow: float = 0.25, saturation: float = 0.05, cosine: float = 0.98
    ) -> dict[str, list[str]]:
        """The layers that break, each with its reasons.

        Args:
            underflow, saturation: greatest shares that a factor may lose.
            cosine: the least that the gradient of a weight may have.
        """
        by_layer = {layer.name: layer.reasons(underflow, saturation, cosine) for layer in self.layers}
        return {name: reasons for name, reasons in by_layer.items() if reasons}

    def __str__(self) -> str:
        operands = ("input", "weight", "gradient")
        rows = [("layer", *(f"{kind} {o}" for o in operands for kind in ("under", "over")), "cosine")]
        for layer in self.layers:
            cells: list[str] = []
            for operand in operands:
                lost = getattr(layer, operand)
                shares = ("-", "-") if lost is None else (lost.underflow, lost.saturation)
                cells += [s if isinstance(s, str) else f"{100 * s:.2f} %" for s in shares]
            rows.append((layer.name, *cells, f"{layer.cosine:.5f}"))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))])
            for row in rows
        ]
        lines.append(f"loss {self.loss[0]:.5f}, in bfloat16 {self.loss[1]:.5f}")
        lines += [f"breaks: {name}: {'; '.join(reasons)}" for name, reasons in self.broken().items()]
        return "\n".join(lines)


@dataclass
class _Counts:
    """Of one layer: by operand, how many numbers there were, how many of them not zero, and what was lost."""

    numbers: dict[str, list[int]] = field(default_factory=dict)

    def add(self, operand: str, x: Tensor, stored: Encoded) -> None:
        there = x != 0
        gone = there & (decode(stored) == 0)
        counts = [x.numel(), int(there.sum()), int(gone.sum()), stored.saturated]
        self.numbers[operand] = [a + b for a, b in zip(self.numbers.get(operand, [0] * 4), counts)]

    def lost(self, operand: str) -> Lost | None:
        if operand not in self.numbers:
            return None
        numel, there, gone, saturated = self.numbers[operand]
        return Lost(gone / max(there, 1), saturated / max(numel, 1))


def _gradients(
    model: nn.Module, step: Callable[[nn.Module], Tensor], names: list[str]
) -> tuple[float, dict[str, Tensor]]:
    """The loss, and the gradients of the weights of layers."""
    model.zero_grad(set_to_none=True)
    kind = next(model.parameters()).device.type
    with wt.enable_grad(), autocast(kind, dtype=wt.bfloat16):
        loss = step(model)
    loss.backward()
    weights = {name: model.get_submodule(name).weight for name in names}
    return float(loss.detach()), {n: w.grad for n, w in weights.items() if w.grad is not None}


def _cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double().flatten(), b.double().flatten()
    return float(a @ b / (a.norm() * b.norm()))


def precision_report(
    model: nn.Module,
    step: Callable[[nn.Module], Tensor],
    recipe: Recipe | str = "mxfp8",
    *,
    module_filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> PrecisionReport:
    """Runs one step of training on few bits and one in bfloat16, from the same weights, and compares layer by
    layer. The model is left as it is. Both steps run under autocast to bfloat16.

    Args:
        model: as it is trained, in any state of training: what breaks changes with it.
        step: gives the loss of a batch for a model. It is called twice, and draws the same random numbers.
        recipe: of convert_to_low_precision_training.
        module_filter_fn: likewise.

    Raises:
        ValueError: as convert_to_low_precision_training.

    Example::

        >>> from warptape.ao import low_precision
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        >>> x, y = torch.randn(96, 64), torch.randint(0, 8, (96,))
        >>> report = low_precision.precision_report(
        ...     model, lambda m: nn.functional.cross_entropy(m(x).float(), y), "mxfp8"
        ... )
        >>> [layer.name for layer in report.layers], report.broken()
        (['0', '2'], {})
    """
    plain = copy.deepcopy(model)
    rounded = convert_to_low_precision_training(
        copy.deepcopy(model), recipe, module_filter_fn=module_filter_fn
    )
    layers = [(n, m) for n, m in rounded.named_modules() if isinstance(m, LowPrecisionLinear)]
    counts = {name: _Counts() for name, _ in layers}
    for name, layer in layers:
        layer.observer = counts[name].add
        layer.generator = wt.Generator(device=layer.weight.device).manual_seed(0)
    names = [name for name, _ in layers]
    state = wt.get_rng_state()
    loss, gradients = _gradients(rounded, step, names)
    wt.set_rng_state(state)
    reference_loss, reference = _gradients(plain, step, names)
    return PrecisionReport(
        (loss, reference_loss),
        [
            LayerPrecision(
                name,
                counts[name].lost("input"),
                counts[name].lost("weight"),
                counts[name].lost("gradient"),
                _cosine(gradients[name], reference[name])
                if name in gradients and name in reference
                else wt.nan,
            )
            for name in names
        ],
    )
