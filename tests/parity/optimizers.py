"""One entry of PyTorch's optim_db in both libraries: the same parameters after several steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import warptape
from torch.testing._internal.common_optimizers import optim_db

from .compare import text, values_differ
from .convert import find, our_tensor, our_value, their_tensor
from .ops import Failure, error_text, raised

DTYPES = (torch.float32, torch.float64)
STEPS = 5


def entries() -> list[Any]:
    """The compared entries of optim_db: all but those for sparse gradients."""
    return [entry for entry in optim_db if not entry.only_supports_sparse_grads]


def name_of(entry: Any) -> str:
    """'optim.Adam'."""
    return f"optim.{entry.optim_cls.__name__}"


class OptimizerParity:
    """The comparisons of one optimizer class."""

    def __init__(self, entry: Any, limits: dict[str, int] | None = None) -> None:
        self.entry, self.name = entry, name_of(entry)

    def failures(self, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[Failure]:
        """Everything that differs."""
        if find(warptape, self.name) is None:
            yield Failure(self.name, "missing", "-", "no such class")
            return
        for dtype in (dtype for dtype in dtypes if dtype in DTYPES):
            inputs = [(sample.kwargs, sample.desc) for sample in self.entry.optim_inputs_func("cpu", dtype)]
            inputs += [({flag: True}, flag) for flag in self.entry.supported_impls]
            for options, described in inputs:
                cause = self.compare(options, dtype)
                if cause:
                    aspect, _, cause = cause.partition(" ")
                    where = f"{described}: {text(options)}"
                    yield Failure(self.name, aspect, str(dtype).rpartition(".")[2], cause, where)
        yield from self.errors()

    def compare(self, options: dict[str, Any], dtype: torch.dtype) -> str:
        generator = torch.Generator().manual_seed(3)
        shapes = [(4, 3), (3, 4)] if "Muon" in self.name else [(4, 3), (3,)]
        start = [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]
        theirs = [torch.nn.Parameter(t.clone()) for t in start]
        ours = [warptape.nn.Parameter(our_tensor(t)) for t in start]
        expected, refused = raised(lambda: run(self.entry.optim_cls, theirs, dict(options)))
        if refused is not None:
            return ""
        found, error = raised(lambda: run(find(warptape, self.name), ours, our_value(dict(options))))
        if error is not None:
            return f"raises {error_text(error)}"
        for a, b in zip(theirs, ours):
            bad = values_differ(a.detach(), their_tensor(b))
            if bad:
                return f"value {bad}"
        states = [sorted(map(str, s["state"].get(0, {}))) for s in (expected, found)]
        groups = [sorted(s["param_groups"][0]) for s in (expected, found)]
        if states[0] != states[1] or groups[0] != groups[1]:
            return f"state ours {states[1]} {groups[1]}, theirs {states[0]} {groups[0]}"
        return ""

    def errors(self) -> Iterator[Failure]:
        for wrong in self.entry.optim_error_inputs_func("cpu", torch.float32):
            sample = wrong.optimizer_error_input
            _, refused = raised(lambda sample=sample: self.entry.optim_cls(sample.params, **sample.kwargs))
            if refused is None:
                continue
            options = our_value(sample.kwargs)
            params = sample.params
            params = list(params) if params is not None and not torch.is_tensor(params) else params
            _, error = raised(
                lambda params=params, options=options: find(warptape, self.name)(our_value(params), **options)
            )
            if error is None:
                yield Failure(
                    self.name, "error", "-", f"not refused; theirs {error_text(refused)}", sample.desc
                )
            elif not isinstance(error, wrong.error_type):
                cause = f"ours {error_text(error)}; theirs {error_text(refused)}"
                yield Failure(self.name, "error", "-", cause, sample.desc)


def run(build: Any, params: list[Any], options: dict[str, Any]) -> Any:
    """Some steps on sum((p - 1) ** 2 * p): the state_dict afterwards."""
    optimizer = build(params, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum((((p - 1) ** 2) * p).sum() for p in params)
        loss.backward()
        return loss

    for _ in range(STEPS):
        if type(optimizer).__name__ == "LBFGS":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return optimizer.state_dict()
