"""Cross entropy's gradient takes the logits' place in memory where nobody can look at them any more."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as wt
import warptape.nn.functional as F

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
pytestmark = pytest.mark.parametrize("device", DEVICES)
ROWS, CLASSES, WIDTH = 12, 30, 8


class Problem:
    """x [12, 8] @ w [8, 30] against targets; the logits' own gradient and where it lay are seen by a hook."""

    def __init__(self, device: str) -> None:
        rng = np.random.default_rng(0)
        self.x = wt.tensor(rng.standard_normal((ROWS, WIDTH)).astype(np.float32)).to(device)
        w = wt.tensor(rng.standard_normal((WIDTH, CLASSES)).astype(np.float32))
        self.w = w.to(device).requires_grad_(True)
        self.target = wt.tensor(rng.integers(0, CLASSES, ROWS)).to(device)
        self.lay = 0
        self.gradients: list[tuple[int, np.ndarray]] = []

    def logits(self) -> Any:
        z = self.x @ self.w
        self.lay = z.data_ptr()
        z.register_hook(self.see)
        return z

    def see(self, g: Any) -> None:
        self.gradients.append((g.data_ptr(), g.detach().cpu().numpy().copy()))

    def expected(self, factor: float = 1.0) -> np.ndarray:
        z = self.x.cpu().numpy() @ self.w.detach().cpu().numpy()
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(ROWS), self.target.cpu().numpy()] -= 1
        return p * factor / ROWS

    def check(self, in_place: bool, factor: float = 1.0) -> None:
        at, gradient = self.gradients.pop()
        np.testing.assert_allclose(gradient, self.expected(factor), rtol=1e-5, atol=1e-7)
        assert (at == self.lay) == in_place


def flat(z: Any) -> Any:
    """As in a language model: the loss is of a view of the logits."""
    return z.view(3, 4, CLASSES).view(-1, CLASSES)


@pytest.mark.parametrize("view", [lambda z: z, flat], ids=["logits", "view"])
def test_logits_that_nobody_has_are_overwritten(view: Callable[[Any], Any], device: str) -> None:
    problem = Problem(device)
    loss = F.cross_entropy(view(problem.logits()), problem.target)
    loss.backward()
    problem.check(in_place=True)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_retained_graph_gives_right_gradients_twice(device: str) -> None:
    problem = Problem(device)
    loss = F.cross_entropy(problem.logits(), problem.target)
    for _ in range(3):
        problem.w.grad = None
        loss.backward(retain_graph=True)
        problem.check(in_place=False)
        np.testing.assert_allclose(
            problem.w.grad.cpu().numpy(), problem.x.cpu().numpy().T @ problem.expected(), rtol=1e-4, atol=1e-6
        )
    (2 * loss).backward()
    problem.check(in_place=True, factor=2.0)


@pytest.mark.parametrize("hold", ["logits", "base", "view", "detached", "other node", "array"])
def test_logits_that_someone_has_stay(hold: str, device: str) -> None:
    problem = Problem(device)
    z = problem.logits()
    kept: list[Any] = []
    taken = z
    if hold == "logits":
        kept.append(z)
    elif hold == "base":
        kept.append(z)
        taken = z.view(ROWS, CLASSES)
    elif hold == "view":
        kept.append(z[2:5])
    elif hold == "detached":
        kept.append(z.detach())
    elif hold == "other node":
        kept.append((z * z).sum())  # saves z
    elif device == "cpu":
        kept.append(z.detach().numpy())
    else:
        kept.append(wt.from_dlpack(z.detach()))
    before = z.detach().clone()
    loss = F.cross_entropy(taken, problem.target)
    del z, taken
    gc.collect()
    loss.backward()
    problem.check(in_place=False)
    if hold in ("logits", "base", "detached", "array"):
        got = kept[0] if isinstance(kept[0], np.ndarray) else kept[0].detach().cpu().numpy()
        np.testing.assert_array_equal(got, before.cpu().numpy())
    if hold == "view":
        np.testing.assert_array_equal(kept[0].detach().cpu().numpy(), before[2:5].cpu().numpy())


def test_an_output_that_its_op_saved_stays(device: str) -> None:
    problem = Problem(device)
    results = []
    for hold in (False, True):
        problem.w.grad = None
        y = (problem.x @ problem.w).exp()  # keeps y for its own gradient, which is y times what comes
        held = y if hold else None
        loss = F.cross_entropy(y, problem.target)
        del y
        loss.backward()
        results.append(problem.w.grad.cpu().numpy())
        del held
    np.testing.assert_array_equal(*results)


def test_two_losses_of_the_same_logits(device: str) -> None:
    """The first to run must not take what the second still reads."""
    problem = Problem(device)
    z = problem.logits()
    loss = F.cross_entropy(z, problem.target) + 2 * F.cross_entropy(z, problem.target)
    del z
    loss.backward()
    _, gradient = problem.gradients.pop()
    np.testing.assert_allclose(gradient, problem.expected(3.0), rtol=1e-5, atol=1e-6)


def test_a_leaf_keeps_its_values(device: str) -> None:
    problem = Problem(device)
    leaf = (problem.x @ problem.w).detach().requires_grad_(True)
    before = leaf.detach().clone()
    F.cross_entropy(leaf, problem.target).backward()
    np.testing.assert_array_equal(leaf.detach().cpu().numpy(), before.cpu().numpy())
    np.testing.assert_allclose(leaf.grad.cpu().numpy(), problem.expected(), rtol=1e-5, atol=1e-7)


def test_a_recorded_backward_leaves_them(device: str) -> None:
    problem = Problem(device)
    loss = F.cross_entropy(problem.logits(), problem.target)
    (first,) = wt.autograd.grad(loss, problem.w, create_graph=True, retain_graph=False)
    np.testing.assert_allclose(
        first.detach().cpu().numpy(), problem.x.cpu().numpy().T @ problem.expected(), rtol=1e-4, atol=1e-6
    )
    problem.check(in_place=False)


def test_saved_tensor_hooks_keep_theirs(device: str) -> None:
    """What a hook gives back is its own: here, always the same tensor."""
    problem = Problem(device)
    held: list[Any] = []

    def pack(t: Any) -> int:
        held.append(t.detach())
        return len(held) - 1

    with wt.autograd.graph.saved_tensors_hooks(pack, lambda i: held[i]):
        loss = F.cross_entropy(problem.logits(), problem.target)
    before = [t.clone() for t in held]
    loss.backward()
    for t, value in zip(held, before, strict=True):
        np.testing.assert_array_equal(t.cpu().numpy(), value.cpu().numpy())
    problem.check(in_place=False)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_same_bits_in_and_out_of_place(reduction: str, smoothing: float, device: str) -> None:
    """Of batches with positions, too: the classes are moved last for the kernel, into a copy."""
    rng = np.random.default_rng(1)
    for shape, sizes in [((9, 7), (9,)), ((2, 7, 5), (2, 5))]:
        values = wt.tensor(rng.standard_normal(shape).astype(np.float32)).to(device)
        target = wt.tensor(rng.integers(0, 7, sizes)).to(device)
        target[0] = -100
        results = []
        for keep in (True, False):
            leaf = values.clone().requires_grad_(True)
            z = leaf * 1.5
            held = z if keep else None
            loss = F.cross_entropy(z, target, reduction=reduction, label_smoothing=smoothing)
            del z
            loss.sum().backward()
            results.append(leaf.grad.cpu().numpy())
            del held
        np.testing.assert_array_equal(*results)
