"""What `warptape.utils.summary` tells of a model, module by module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _C
from ..core import no_grad
from ..core.by_name import tensors_in
from ..core.tables import aligned
from ..nn import Module
from ..nn.modules.module import register_module_forward_hook
from ..nn.parameter import is_lazy
from .flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from warptape.core.types import Device


@dataclass
class SummaryRow:
    """One module.

    Attributes:
        name: its path in the model; "" of the model itself.
        kind: its class.
        depth: how many modules it is in.
        output_shapes: of the tensors that it returned when it ran last; None if it did not run.
        parameters, trainable: elements of its own parameters and those within it, each tensor once.
        flops: of one forward pass, as FlopCounterMode counts them; the multiplications are half of these.
        output_bytes: of what it returned, in all of its calls.
        calls: how often it ran.
    """

    name: str
    kind: str
    depth: int
    parameters: int
    trainable: int
    output_shapes: list[tuple[int, ...]] | None = None
    flops: int = 0
    output_bytes: int = 0
    calls: int = 0
    is_leaf: bool = False


def _count(numbers: float) -> str:
    return f"{numbers:,}" if numbers else "-"


@dataclass
class Summary:
    """What `summary` returns: `rows` in the order of the modules, the model first; `print` shows a table.

    Attributes:
        parameters, trainable: elements in all.
        flops: of one forward pass.
        parameter_bytes, buffer_bytes: what the model holds.
        activation_bytes: what modules without modules in them return in one forward pass.
    """

    rows: list[SummaryRow]
    parameter_bytes: int
    buffer_bytes: int
    depth: int | None

    @property
    def parameters(self) -> int:
        """Elements of all parameters; one that modules share counts once.

        >>> torch.utils.summary(nn.Linear(2, 3), input_size=(1, 2)).parameters
        9
        """
        return self.rows[0].parameters

    @property
    def trainable(self) -> int:
        """Elements of those that require grad."""
        return self.rows[0].trainable

    @property
    def flops(self) -> int:
        """Of one forward pass."""
        return self.rows[0].flops

    @property
    def activation_bytes(self) -> int:
        """What modules without modules in them return."""
        return sum(row.output_bytes for row in self.rows if row.is_leaf)

    def table(self) -> str:
        """The rows down to `depth`, and the totals."""
        head = ("module", "output", "parameters", "mult-adds", "MB out")
        lines = [head]
        for row in self.rows:
            if self.depth is not None and row.depth > self.depth:
                continue
            name = "  " * row.depth + (f"{row.name.rpartition('.')[2]}: " if row.name else "") + row.kind
            shapes = row.output_shapes
            shape = "not run" if shapes is None else " ".join(str(list(s)) for s in shapes) or "-"
            numbers = (_count(row.parameters), _count(row.flops // 2), f"{row.output_bytes / 1e6:.2f}")
            lines.append((name, shape, *numbers))
        frozen = self.parameters - self.trainable
        sizes = (self.parameter_bytes, self.buffer_bytes, self.activation_bytes)
        return "\n".join(
            [
                aligned(lines, left=2),
                f"parameters: {self.parameters:,} ({self.trainable:,} trainable, {frozen:,} not)",
                f"mult-adds of a forward pass: {self.flops // 2:,} ({self.flops:,} FLOP)",
                "MB of parameters {:.2f}, buffers {:.2f}, outputs {:.2f}".format(*(n / 1e6 for n in sizes)),
            ]
        )

    __str__ = table


def _bytes(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _made_inputs(model: Module, input_size: Any, dtypes: Any, device: Device) -> list[Any]:
    """Zeros, which are tokens as well, where the model lies."""
    sizes = [input_size] if all(isinstance(n, int) for n in input_size) else list(input_size)
    if not isinstance(dtypes, (list, tuple)):
        dtypes = [dtypes] * len(sizes)
    if len(dtypes) != len(sizes):
        raise ValueError(f"summary: expected a dtype for each of {len(sizes)} inputs, got {len(dtypes)}")
    place = next((p.device for p in model.parameters()), None) if device is None else device
    return [_C._functions.zeros(*s, dtype=t, device=place) for s, t in zip(sizes, dtypes, strict=True)]


class _Watch:
    """Fills the rows while it is entered. The model is in eval mode meanwhile."""

    def __init__(self, model: Module, rows: dict[Module, SummaryRow]) -> None:
        self.model, self.rows = model, rows
        self.modes = {module: module.training for module in rows}

    def _ran(self, module: Module, _: object, output: object) -> None:
        if (row := self.rows.get(module)) is not None:
            results = list(tensors_in(output))
            row.output_shapes = [tuple(t.shape) for t in results]
            row.output_bytes += _bytes(results)
            row.calls += 1

    def __enter__(self) -> None:
        self.handle = register_module_forward_hook(self._ran)
        self.model.eval()

    def __exit__(self, *error: Any) -> None:
        self.handle.remove()
        for module, mode in self.modes.items():
            module.training = mode


def summarize(
    model: Module,
    inputs: Sequence[Any],
    input_size: Any,
    dtypes: Any,
    device: Device,
    depth: int | None,
    kwargs: dict[str, Any],
) -> Summary:
    """See `warptape.utils.summary`."""
    if not isinstance(model, Module):
        raise TypeError(f"summary: expected a Module, got {type(model).__name__}")
    if (input_size is None) == (not inputs and not kwargs):
        raise ValueError("summary: expected inputs, or input_size= to make them; give one of the two")
    if any(is_lazy(p) for p in model.parameters()):
        raise ValueError("summary: the model has lazy parameters; run it once, so that they get their shapes")
    rows: dict[Module, SummaryRow] = {}
    for name, module in model.named_modules():
        own = list(module.parameters())
        trainable = sum(p.numel() for p in own if p.requires_grad)
        level = name.count(".") + 1 if name else 0
        rows[module] = SummaryRow(name, type(module).__name__, level, sum(p.numel() for p in own), trainable)
        rows[module].is_leaf = not any(True for _ in module.children())
    if input_size is not None:
        inputs = _made_inputs(model, input_size, dtypes, device)
    counter = FlopCounterMode(display=False)
    with _Watch(model, rows), counter, no_grad():
        model(*inputs, **kwargs)
    top = type(model).__name__
    for row in rows.values():
        row.flops = sum(counter.flop_counts.get(f"{top}.{row.name}" if row.name else top, {}).values())
    return Summary(list(rows.values()), _bytes(model.parameters()), _bytes(model.buffers()), depth)
