"""Hooks on the gradients of several tensors, and versions that are set by hand."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
from warptape.autograd import forward_ad, graph


class Raises(wt.autograd.Function):
    """A backward that fails."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        raise RuntimeError("no gradient")


def test_all() -> None:
    leaves = [wt.ones(2, requires_grad=True) for _ in range(3)]
    t1, t2, t3 = (leaf * 2 for leaf in leaves)
    seen: list[list[bool]] = []
    handle = graph.register_multi_grad_hook(
        (t1, t2, t3), lambda found: seen.append([g is not None for g in found])
    )
    out = t2 * t3
    out.sum().backward(retain_graph=True)
    assert seen == [[False, True, True]]
    t1.sum().backward(retain_graph=True)
    assert seen[1:] == [[True, False, False]]
    with pytest.raises(RuntimeError, match="no gradient"):
        (Raises.apply(t2) * t3).sum().backward(retain_graph=True)
    t1.sum().backward(retain_graph=True)  # knows nothing of the pass that failed
    assert seen[2:] == [[True, False, False]]
    handle.remove()
    out.sum().backward()
    assert len(seen) == 3


def test_all_comes_with_the_last_gradient() -> None:
    """A hook on what comes later in the pass runs after it; of one that gets none the end is waited for."""
    x, other = wt.ones(2, requires_grad=True), wt.ones(2, requires_grad=True)
    parts, order = (x * 2, x * 3), []
    x.register_hook(lambda g: order.append("x"))
    graph.register_multi_grad_hook(parts, lambda found: order.append("parts"))
    graph.register_multi_grad_hook((*parts, other), lambda found: order.append("with other"))
    (parts[0] + parts[1]).sum().backward()
    assert order == ["parts", "x", "with other"]


def test_any() -> None:
    x = wt.ones(2, requires_grad=True)
    parts = x * 2, x * 3
    seen: list[Any] = []
    with graph.register_multi_grad_hook(parts, seen.append, mode="any"):
        (parts[0] + parts[1]).sum().backward(retain_graph=True)
        assert len(seen) == 1 and seen[0].tolist() == [1.0, 1.0]
        (parts[0] + parts[1]).sum().backward(retain_graph=True)
        assert len(seen) == 2
    (parts[0] + parts[1]).sum().backward()
    assert len(seen) == 2
    with pytest.raises(ValueError, match=r"one of \('all', 'any'\) but got foo"):
        graph.register_multi_grad_hook(parts, seen.append, mode="foo")


def test_versions() -> None:
    x = wt.ones(2, requires_grad=True)
    y = x.exp()
    graph.increment_version([y])
    assert y._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with wt.inference_mode():
        z = wt.ones(2)
    with pytest.raises(RuntimeError, match="update to inference tensor outside InferenceMode"):
        graph.increment_version(z)


def test_the_current_level_of_dual_numbers() -> None:
    assert forward_ad._current_level == -1
    with forward_ad.dual_level():
        assert forward_ad._current_level == 0
    assert forward_ad._current_level == -1
