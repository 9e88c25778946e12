"""What a smaller model costs and gains beside the one it was made of."""

from __future__ import annotations

import html
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from warptape import core as wt

from ..nn import Module
from ..nn import functional as F

__all__ = ["LayerError", "Report", "model_bytes", "report"]


@dataclass(frozen=True)
class LayerError:
    """How far a layer's output is from the reference's: 10 log10(sum r^2 / sum (x - r)^2), in decibels.

    Args:
        name: its path.
        signal_to_noise: decibels.
    """

    name: str
    signal_to_noise: float


@dataclass(frozen=True)
class Report:
    """A model beside its reference; pairs are (model, reference). `str` is a table, notebooks show a picture.

    Attributes:
        bytes: of parameters and buffers.
        seconds: the least time of a pass over the data's first batch.
        loss: its mean over all targets.
        accuracy: the share of targets that are the likeliest class; None for targets that are no classes.
        layers: the layers that both models have by one name and whose outputs have one shape, in order.
        unmatched: the model's other layers.
    """

    bytes: tuple[int, int]
    seconds: tuple[float, float]
    loss: tuple[float, float]
    accuracy: tuple[float, float] | None
    layers: list[LayerError]
    unmatched: list[str]

    @property
    def worst(self) -> LayerError | None:
        """The layer with the least signal to noise; None where no layers could be compared."""
        return min(self.layers, key=lambda layer: layer.signal_to_noise, default=None)

    def _rows(self) -> list[tuple[str, str, str, str]]:
        def row(name: str, pair: tuple[float, float], form: str, scale: float = 1) -> tuple[str, ...]:
            a, b = pair
            share = f"{a / b:.3f}" if b else "-"
            return (name, format(a * scale, form), format(b * scale, form), share)

        rows = [row("bytes", self.bytes, ",d"), row("milliseconds", self.seconds, ".3f", 1e3)]
        rows.append(row("loss", self.loss, ".4f"))
        if self.accuracy is not None:
            rows.append(row("accuracy", self.accuracy, ".4f"))
        return rows  # type: ignore[return-value]

    def __str__(self) -> str:
        rows = [("", "model", "reference", "ratio"), *self._rows()]
        widths = [max(len(r[i]) for r in rows) for i in range(4)]
        lines = [
            "  ".join([name.ljust(widths[0]), *(x.rjust(w) for x, w in zip(rest, widths[1:]))])
            for name, *rest in rows
        ]
        worst = self.worst
        if worst is not None:
            wide = max(len(layer.name) for layer in self.layers)
            lines += ["", f"signal to noise by layer, in dB; the worst is {worst.name}"]
            lines += [f"{layer.name.ljust(wide)}  {layer.signal_to_noise:7.1f}" for layer in self.layers]
        if self.unmatched:
            lines += ["", f"layers without a counterpart of the same shape: {', '.join(self.unmatched)}"]
        return "\n".join(lines)

    def svg(self) -> str:
        """The table and a bar for each layer's signal to noise, the worst in red, as an SVG image."""
        texts = [
            f'<text x="10" y="{24 + 18 * i}">{html.escape(": ".join((name, f"{a} of {b} ({share})")))}</text>'
            for i, (name, a, b, share) in enumerate(self._rows())
        ]
        top = 40 + 18 * len(texts)
        worst = self.worst
        finite = [x.signal_to_noise for x in self.layers if math.isfinite(x.signal_to_noise)]
        most = max([*finite, 1.0])
        for i, layer in enumerate(self.layers):
            y, ratio = top + 18 * i, layer.signal_to_noise
            wide = 300 * min(max(ratio / most, 0.0), 1.0) if math.isfinite(ratio) else 300
            colour = "#c0392b" if worst is not None and layer.name == worst.name else "#4878a8"
            texts.append(f'<text x="10" y="{y + 12}">{html.escape(layer.name)}</text>')
            texts.append(f'<rect x="230" y="{y + 2}" width="{wide:.1f}" height="12" fill="{colour}"/>')
            texts.append(f'<text x="{236 + wide:.1f}" y="{y + 12}">{ratio:.1f} dB</text>')
        height = top + 18 * len(self.layers) + 8
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{height}" font-family="sans-serif" '
            f'font-size="12">\n<rect width="640" height="{height}" fill="white"/>\n'
            + "\n".join([*texts, "</svg>\n"])
        )

    _repr_svg_ = svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture. Raises: ValueError for a name that does not end in .svg.

        Args:
            path: of the file.
        """
        if not os.fspath(path).endswith(".svg"):
            raise ValueError(f"Report.save: expected a path that ends in .svg, got {os.fspath(path)!r}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg())


def model_bytes(model: Module) -> int:
    """Bytes of a model's parameters and buffers, each counted once.

    Args:
        model: any module.

    >>> from warptape.ao.report import model_bytes
    >>> model_bytes(nn.Linear(2, 3))
    36
    """
    tensors = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    return sum(t.nbytes for t in tensors.values())


def _default_loss(output: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
    if target.is_floating_point():
        return F.mse_loss(output, target)
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))


def _seconds(model: Module, inputs: Any, rounds: int) -> float:
    best = math.inf
    for _ in range(rounds + 1):  # the first warms up
        start = time.perf_counter()
        model(*inputs)
        best = min(best, time.perf_counter() - start)
    return best


def _leaves(model: Module) -> dict[str, Module]:
    return {name: m for name, m in model.named_modules() if not m._modules and name}


class _Outputs:
    """The outputs of a model's layers in one pass."""

    def __init__(self, model: Module, names: Iterable[str]) -> None:
        self.seen: dict[str, wt.Tensor] = {}
        modules = dict(model.named_modules())
        self.handles = [modules[n].register_forward_hook(self._keeper(n)) for n in names]

    def _keeper(self, name: str) -> Any:
        def keep(module: Module, args: object, output: object) -> None:
            if isinstance(output, wt.Tensor) and output.is_floating_point():
                self.seen[name] = output.detach().double()

        return keep

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()


def _compare(model: Module, reference: Module, batches: list[Any]) -> tuple[list[LayerError], list[str]]:
    of_model, of_reference = _leaves(model), _leaves(reference)
    common = [name for name in of_model if name in of_reference]
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    watch = [_Outputs(model, common), _Outputs(reference, common)]
    try:
        for inputs, _ in batches:
            model(*inputs)
            reference(*inputs)
            for name, r in watch[1].seen.items():
                x = watch[0].seen.get(name)
                if x is not None and x.shape == r.shape:
                    signal[name] = signal.get(name, 0.0) + float(r.square().sum())
                    noise[name] = noise.get(name, 0.0) + float((x - r).square().sum())
    finally:
        for each in watch:
            each.close()

    def decibels(s: float, n: float) -> float:
        return math.inf if n == 0 else 10 * math.log10(s / n) if s > 0 else -math.inf

    layers = [LayerError(n, decibels(signal[n], noise[n])) for n in common if n in signal]
    return layers, [name for name in of_model if name not in signal]


@wt.no_grad()
def report(
    model: Module,
    reference: Module,
    data: Iterable[Any],
    *,
    loss: Callable[[Any, wt.Tensor], wt.Tensor] | None = None,
    rounds: int = 5,
) -> Report:
    """Runs both models on the data, in evaluation mode, and compares bytes, time, loss and each layer.

    Args:
        data: batches (inputs, targets); inputs are a tensor or a tuple of arguments.
        loss: takes outputs and targets, means over these; None: cross-entropy over the last dim for integer
            targets, the mean squared error for others.
        rounds: how often the first batch is timed; the least counts.

    Raises: ValueError for data without batches, or for which the reference's loss is not finite.
    """
    batches = [(x if isinstance(x, tuple) else (x,), y) for x, y in data]
    if not batches:
        raise ValueError("report: expected batches (inputs, targets), got none")
    modes = [(m, m.training) for each in (model, reference) for m in each.modules()]
    model.eval()
    reference.eval()
    measure = loss or _default_loss
    results: list[tuple[float, float | None, float]] = []
    try:
        for each in (model, reference):
            total, right, count = 0.0, 0, 0
            classes = all(not y.is_floating_point() for _, y in batches)
            for inputs, y in batches:
                out = each(*inputs)
                total, count = total + float(measure(out, y)) * y.numel(), count + y.numel()
                if classes and isinstance(out, wt.Tensor) and out.shape[:-1] == y.shape:
                    right += int((out.argmax(-1) == y).sum())
                else:
                    classes = False
            seconds = _seconds(each, batches[0][0], rounds)
            results.append((total / count, right / count if classes else None, seconds))
        if not math.isfinite(results[1][0]):
            raise ValueError(f"report: the reference's loss is {results[1][0]}; look for NaN in the data")
        layers, unmatched = _compare(model, reference, batches)
    finally:
        for module, mode in modes:
            module.training = mode
    (a, right_a, time_a), (b, right_b, time_b) = results
    accuracy = None if right_a is None or right_b is None else (right_a, right_b)
    sizes = model_bytes(model), model_bytes(reference)
    return Report(sizes, (time_a, time_b), (a, b), accuracy, layers, unmatched)
