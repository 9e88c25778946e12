"""grid_sample's kernels, which take runs of places and blocks of channels: sizes that fill none of them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F

KINDS = [
    (mode, padding, align, dims)
    for mode, padding, align, dims in product(
        ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True), (2, 3)
    )
    if (mode, dims) != ("bicubic", 3)
]


def drawn(*sizes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=sizes).astype("float32"))


@pytest.mark.parametrize(("mode", "padding", "align", "dims"), KINDS)
@pytest.mark.parametrize("channels", [3, 19])
def test_the_kernels_agree_with_the_composed_form(
    mode: str, padding: str, align: bool, dims: int, channels: int
) -> None:
    x = drawn(2, channels, *(5, 4, 6)[:dims], seed=1).requires_grad_()
    grid = (drawn(2, *(9, 8, 2)[:dims], dims, seed=2) * 0.9).requires_grad_()
    weights = drawn(2, channels, *(9, 8, 2)[:dims], seed=3)
    total = (F.grid_sample(x, grid, mode, padding, align) * weights).sum()
    found = torch.autograd.grad(total, (x, grid), retain_graph=True)
    composed = torch.autograd.grad(total, (x, grid), create_graph=True)
    for a, b in zip(found, composed, strict=True):
        assert torch.allclose(a, b.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mode", "padding", "align", "dims"), KINDS)
def test_a_place_and_a_channel_do_not_see_the_others(mode: str, padding: str, align: bool, dims: int) -> None:
    x = drawn(1, 18, *(5, 4, 6)[:dims], seed=1)
    grid = drawn(1, *(7, 11, 1)[:dims], dims, seed=2)
    together = F.grid_sample(x, grid, mode, padding, align)
    rows = [F.grid_sample(x, grid[:, i : i + 1], mode, padding, align) for i in range(7)]
    assert torch.equal(torch.cat(rows, 2), together)
    maps = [F.grid_sample(x[:, i : i + 1], grid, mode, padding, align) for i in range(18)]
    assert torch.equal(torch.cat(maps, 1), together)


@pytest.mark.parametrize("padding", ["border", "reflection"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_no_gradient_passes_on_the_border(padding: str, create_graph: bool) -> None:
    grid = torch.tensor([[[[-1.0, 0.25], [1.0, 0.25]]]]).requires_grad_()
    out = F.grid_sample(torch.arange(9.0).reshape(1, 1, 3, 3), grid, "bilinear", padding, True)
    (found,) = torch.autograd.grad(out.sum(), grid, create_graph=create_graph)
    assert found.tolist() == [[[[0.0, 3.0], [0.0, 3.0]]]]


def test_images_of_no_places_have_gradients_of_zeros() -> None:
    x = drawn(1, 2, 3, 3, seed=1).requires_grad_()
    F.grid_sample(x, torch.zeros(1, 0, 4, 2), align_corners=False).sum().backward()
    assert x.grad is not None and x.grad.tolist() == torch.zeros(1, 2, 3, 3).tolist()
