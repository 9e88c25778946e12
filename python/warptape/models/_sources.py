"""Where weights come from that are not stored as a model has them: a source, and how a model is filled."""

from __future__ import annotations

from typing import Protocol

import warptape

from .. import nn
from .._tensor import Tensor
from ..distributed.checkpoint import CheckpointException, NameMap


class Source(Protocol):
    """A file or folder: names and shapes of its tensors, each of which is made when it is read; `names` from
    a model's, None for those of Hugging Face."""

    path: str
    names: NameMap | None
    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str) -> Tensor:
        """A tensor, on the CPU."""


def fill(model: nn.Module, names: NameMap, source: Source) -> None:
    """Reads a model's parameters, in place, one tensor after the other.

    Raises: CheckpointException, with nothing changed, for missing and for unknown names, and other shapes.
    """
    there, used, faults = source.shapes, set[str](), []
    plan: list[tuple[Tensor, list[str]]] = []
    p: Tensor
    for name, p in model.named_parameters(remove_duplicate=False):
        found = [next((n for n in names.candidates(b) if n in there), b) for b in names.theirs(name)]
        used.update(found)
        absent = [n for n in found if n not in there]
        if absent and name not in dict(model.named_parameters()):
            continue  # a second name of a parameter
        shapes = [there[n] for n in found if n in there]
        whole = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if not absent and all(shapes) else None
        if absent:
            faults.append(f"{', '.join(absent)} is missing there, for {name}")
        elif whole != tuple(p.shape) or len({shape[1:] for shape in shapes}) != 1:
            told = ", ".join(f"{n} {list(there[n])}" for n in found)
            faults.append(f"{name} is {list(p.shape)} here, and there {told}")
        plan.append((p, found))
    extra = [n for n in there if n not in used and not names.ignored(n)]
    faults += [f"nothing here is called {n}" for n in extra]
    if faults:
        raise CheckpointException(f"{source.path}: {'; '.join(faults[:8])}")
    with warptape.no_grad():
        for p, found in plan:
            start = 0
            for name in found:
                part = source.read(name) if not p.is_meta else p[: there[name][0]]
                p[start : start + part.shape[0]].copy_(part)
                start += part.shape[0]
