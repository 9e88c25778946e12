"""Distillation: a small model that learns from a large one's outputs and features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from warptape import core as wt
from warptape import nn

from .. import _C
from ..core import Tensor
from ..nn import Module
from ..nn import functional as F

if TYPE_CHECKING:
    from warptape.optim import Optimizer

__all__ = ["Hint", "attention_map", "attention_transfer_loss", "distill", "hint_loss", "kd_loss"]


def kd_loss(
    student: Tensor,
    teacher: Tensor | tuple[Tensor, Tensor],
    targets: Tensor | None = None,
    *,
    temperature: float = 4.0,
    alpha: float = 0.9,
    ignore_index: int = -100,
    top_k: int | None = None,
) -> Tensor:
    """alpha T^2 KL(softmax(teacher / T) || softmax(student / T)) + (1 - alpha) cross-entropy of the targets.

    Hinton et al. 2015, "Distilling the knowledge in a neural network"; T^2 keeps the size of the gradients.
    The mean is over rows whose target is not `ignore_index`, which for language models are tokens. Gradients
    go to the student alone.

    Args:
        student: logits [.., C].
        teacher: logits [.., C], or the k largest of them with their indices, each [.., k].
        targets: [..] of int64; None: alpha counts as 1.
        top_k: compare over the teacher's k likeliest classes alone, both renormalised over these.

    Raises: ShapeError for shapes that do not fit, ValueError for a temperature not above 0, an alpha outside
    of 0 to 1, and a top_k outside of 1 to C.
    """
    if not temperature > 0 or not 0 <= alpha <= 1:
        raise ValueError(
            f"kd_loss: expected a temperature above 0 and alpha in 0 to 1, got {temperature} and {alpha}"
        )
    places: Tensor | None = None
    if isinstance(teacher, tuple):
        teacher, places = teacher
    elif student.shape != teacher.shape:
        raise _C.ShapeError(
            f"kd_loss: expected logits of one shape, got {list(student.shape)} and {list(teacher.shape)}"
        )
    elif top_k is not None:
        if not 1 <= top_k <= student.shape[-1]:
            raise ValueError(f"kd_loss: expected top_k in 1 to {student.shape[-1]}, got {top_k}")
        teacher, places = teacher.topk(top_k, -1)
    if teacher.shape[:-1] != student.shape[:-1] or (places is not None and places.shape != teacher.shape):
        raise _C.ShapeError(
            f"kd_loss: expected rows {list(student.shape[:-1])} of the teacher's logits and their indices, "
            f"got {list(teacher.shape)} and {None if places is None else list(places.shape)}"
        )
    if targets is not None and targets.shape != student.shape[:-1]:
        raise _C.ShapeError(
            f"kd_loss: expected targets {list(student.shape[:-1])}, got {list(targets.shape)}"
        )
    seen = student if places is None else student.gather(-1, places)
    teacher_log_p = (teacher.detach() / temperature).log_softmax(-1)
    rows = (teacher_log_p.exp() * (teacher_log_p - (seen / temperature).log_softmax(-1))).sum(-1)
    if targets is None:
        return temperature**2 * rows.mean()
    keep = targets != ignore_index
    soft = wt.where(keep, rows, 0.0).sum() / keep.sum().clamp(min=1)
    hard = F.cross_entropy(
        student.reshape(-1, student.shape[-1]), targets.reshape(-1), ignore_index=ignore_index
    )
    return alpha * temperature**2 * soft + (1 - alpha) * hard


def hint_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """1/2 ||teacher - student||^2 of features [B, ..], summed over an example and averaged over the batch.

    Romero et al. 2015, "FitNets", equation 3; the student's features pass a regressor first (`Hint`).
    """
    if student.shape != teacher.shape:
        raise _C.ShapeError(
            f"hint_loss: expected features of one shape, got {list(student.shape)} and "
            f"{list(teacher.shape)}; give the Hint a regressor"
        )
    return 0.5 * (teacher.detach() - student).flatten(1).square().sum(1).mean()


def attention_map(features: Tensor, p: float = 2.0) -> Tensor:
    """The sum over channels of |features|^p, of norm 1: [B, C, ..] -> [B, positions].

    From Zagoruyko and Komodakis, "Paying More Attention to Attention" (2016), section 3.1.

    Args:
        features: of a layer.
        p: the power.
    """
    q = features.abs().pow(p).sum(1).flatten(1)
    return q / q.norm(dim=1, keepdim=True).clamp(min=1e-12)


def attention_transfer_loss(student: Tensor, teacher: Tensor, p: float = 2.0) -> Tensor:
    """||Q_S - Q_T||_2 of the attention maps of features [B, C, ..], averaged over the batch.

    Zagoruyko & Komodakis 2017, "Paying more attention to attention", equation 2; channels may differ.
    """
    if student.shape[2:] != teacher.shape[2:] or student.ndim < 3:
        raise _C.ShapeError(
            "attention_transfer_loss: expected features [B, C, ..] with the same positions, got "
            f"{list(student.shape)} and {list(teacher.shape)}"
        )
    return (attention_map(student, p) - attention_map(teacher.detach(), p)).norm(dim=1).mean()


class Hint(NamedTuple):
    """A pair of modules, by name, whose outputs `distill` brings together.

    `loss` takes the student's and the teacher's features; `regressor`, which is trained if the optimizer has
    its parameters, is applied to the student's. `weight` multiplies the loss.
    """

    student: str
    teacher: str
    weight: float = 1.0
    loss: Callable[[Tensor, Tensor], Tensor] = hint_loss
    regressor: Module | None = None


@contextlib.contextmanager
def _outputs(model: Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """The last outputs of modules by name, while the block runs."""
    seen: dict[str, Tensor] = {}
    handles = []
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise ValueError(f"distill: {type(model).__name__} has no module {name!r}")

        def keep(module: Module, args: object, output: Any, name: str = name) -> None:
            seen[name] = output

        handles.append(modules[name].register_forward_hook(keep))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def distill(
    student: Module,
    teacher: Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: Optimizer,
    *,
    epochs: int = 1,
    scheduler: Any = None,
    hints: Sequence[Hint] = (),
    max_grad_norm: float | None = None,
    **options: Any,
) -> list[float]:
    """Trains the student by kd_loss(student(x), teacher(x), y, **options), plus hints; the means by epoch.

    Args:
        batches: (inputs, targets), gone through once an epoch.
        scheduler: stepped after each batch.
        max_grad_norm: the gradients are clipped to this norm.

    Raises: ValueError for batches that hold none, and for hints that name no module.
    """
    means, mode = [], teacher.training
    student.train()
    teacher.eval()
    try:
        with (
            _outputs(student, [h.student for h in hints]) as mine,
            _outputs(teacher, [h.teacher for h in hints]) as of_teacher,
        ):
            for _ in range(epochs):
                total, count = 0.0, 0
                for inputs, targets in batches:
                    with wt.no_grad():
                        taught = teacher(inputs)
                    loss = kd_loss(student(inputs), taught, targets, **options)
                    for hint in hints:
                        features = mine[hint.student]
                        features = features if hint.regressor is None else hint.regressor(features)
                        loss = loss + hint.weight * hint.loss(features, of_teacher[hint.teacher])
                    optimizer.zero_grad()
                    loss.backward()
                    if max_grad_norm is not None:
                        nn.utils.clip_grad_norm_(student.parameters(), max_grad_norm)
                    optimizer.step()
                    if scheduler is not None:
                        scheduler.step()
                    total, count = total + loss.item(), count + 1
                if count == 0:
                    raise ValueError("distill: expected batches (inputs, targets), got none")
                means.append(total / count)
    finally:
        teacher.train(mode)
    return means
