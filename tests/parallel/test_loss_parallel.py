"""cross_entropy within loss_parallel against that of whole logits in one process."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from tensor_models import simulate
from warptape import nn
from warptape.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from warptape.distributed.tensor.parallel import loss_parallel
from warptape.parallel.dtensor import transfer

R, S = Replicate(), Shard
# (shape of the logits, sizes of the mesh, placements of the logits, of the target)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any, Any]] = {
    "rows whole": ((6, 8), (2,), [S(1)], [R]),
    "uneven": ((6, 11), (3,), [S(1)], [R]),
    "rows split": ((6, 8), (2, 2), [S(0), S(1)], [S(0), R]),
    "rows uneven": ((5, 8), (2, 2), [S(1), S(0)], [R, S(0)]),
    "sequences": ((2, 8, 6), (2, 2), [S(2), S(1)], [S(1), R]),
    "one row": ((8,), (2,), [S(0)], [R]),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "smoothing": {"label_smoothing": 0.1},
    "ignored": {"ignore_index": 3},
    "weight": {"weight": True, "ignore_index": 3},
}


def values(shape: tuple[int, ...]) -> tuple[wt.Tensor, wt.Tensor]:
    generator = wt.Generator().manual_seed(2)
    classes = shape[min(1, len(shape) - 1)]
    rest = (shape[0], *shape[2:]) if len(shape) > 1 else ()
    logits = wt.randn(shape, generator=generator, dtype=wt.float64)
    return logits, wt.randint(0, classes, rest, generator=generator)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient(case: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, sizes, where, lies = CASES[case]
    whole, target = values(shape)
    how = dict(OPTIONS[options])
    if how.get("weight"):
        how["weight"] = wt.linspace(0.5, 2, shape[min(1, len(shape) - 1)], dtype=wt.float64)
    whole.requires_grad_()
    want = F.cross_entropy(whole, target, **how)
    factor = wt.linspace(1, 2, want.numel(), dtype=wt.float64).reshape(want.shape)
    (want * factor).sum().backward()

    def no_gather(*args: Any) -> Any:
        raise AssertionError("logits were gathered")

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", sizes)
        logits = distribute_tensor(whole.detach(), mesh, where).requires_grad_()
        labels = distribute_tensor(target, mesh, lies)
        monkeypatch.setattr(transfer, "_gather", no_gather)
        with loss_parallel():
            loss = F.cross_entropy(logits, labels, **how)
        monkeypatch.undo()
        assert isinstance(loss, DTensor) and loss.shape == want.shape
        if options == "sum":
            assert all(
                isinstance(p, Partial) == q.is_shard() for p, q in zip(loss.placements, lies, strict=True)
            )
        assert (loss.full_tensor() - want).abs().max() < 1e-12
        (loss * distribute_tensor(factor, mesh)).sum().backward()
        assert logits.grad.placements == logits.placements
        assert (logits.grad.full_tensor() - whole.grad).abs().max() < 1e-12

    simulate(dist_size(sizes), rank)


def dist_size(sizes: tuple[int, ...]) -> int:
    return sizes[0] if len(sizes) == 1 else sizes[0] * sizes[1]


def test_a_module_and_a_plain_target() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,))
        logits = distribute_tensor(whole.detach(), mesh, [S(1)])
        with loss_parallel():
            loss = nn.CrossEntropyLoss()(logits, target)
            plain = F.cross_entropy(whole, target)  # no DTensor: as outside
        assert abs(loss.item() - plain.item()) < 1e-12
        outside = F.cross_entropy(logits, distribute_tensor(target, mesh))
        assert abs(outside.item() - plain.item()) < 1e-12

    whole, target = values((6, 8))
    simulate(2, rank)


ERRORS: dict[str, tuple[tuple[int, ...], Any, Any, dict[str, Any], type, str]] = {
    "classes whole": ((6, 8), [S(0), R], None, {}, ValueError, "one axis is to split dim 1"),
    "both axes": ((6, 8), [S(1), S(1)], None, {}, ValueError, "one axis is to split dim 1"),
    "plain target": ((6, 8), [S(0), S(1)], None, {}, ValueError, "make the target a DTensor"),
    "too few classes": ((6, 1), [R, S(1)], None, {}, ValueError, "1 classes leave ranks"),
    "weight and smoothing": (
        (6, 8),
        [R, S(1)],
        None,
        {"weight": wt.ones(8), "label_smoothing": 0.1},
        NotImplementedError,
        "together are not supported",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_refused(case: str) -> None:
    shape, where, _, how, kind, text = ERRORS[case]

    def rank() -> None:
        whole, target = values(shape)
        logits = distribute_tensor(whole, dist.init_device_mesh("cpu", (2, 2)), where)
        with pytest.raises(kind, match=text), loss_parallel():
            F.cross_entropy(logits, target, **how)

    simulate(4, rank)
