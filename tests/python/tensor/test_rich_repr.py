"""What a notebook shows of tensors and modules."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import warptape as torch
from warptape import nn
from warptape.core.rich import picture


def words(text: str) -> str:
    return " ".join(
        "".join(
            ElementTree.fromstring(text.replace("<br>", " ").replace("details open", "details")).itertext()
        ).split()
    )


def test_a_tensor_has_a_summary_a_picture_and_its_values() -> None:
    x = torch.tensor([[1.0, -2.0, float("nan")], [4.0, float("inf"), 0.0]], requires_grad=True)
    text = x._repr_html_()
    assert text is not None
    said = words(text)
    finite = np.array([1.0, -2.0, 4.0, 0.0])
    assert "Tensor [2, 3] float32 on cpu, requires grad" in said
    assert (
        f"mean {finite.mean():.4g}, std {finite.std():.4g} min -2, max 4, 1 NaN, 1 inf".replace(
            " min", ", min"
        )
        in said
    )
    assert text.count("<rect") == 6
    assert " ".join(repr(x).split()) in said
    assert repr(x) == str(x) and "<" not in repr(x).replace("grad_fn=<", "")


def test_the_pictures_colors_are_the_values() -> None:
    colors = re.findall(r'fill="(#\w+)"', picture([[0.0, 2.0, -2.0, 1.0, float("nan")]]))
    assert colors == ["#ffffff", "#b2182b", "#2166ac", "#d88c95", "#888"]


def test_tensors_of_all_kinds() -> None:
    assert torch.empty(3, device="meta")._repr_html_() is None
    assert torch.empty(0)._repr_html_() is None
    assert torch.eye(3).to_sparse()._repr_html_() is None
    for each in (
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.ones(2, 3, 4, dtype=torch.bfloat16),
        nn.Parameter(torch.zeros(2)),
    ):
        assert words(each._repr_html_() or "").startswith(f"{type(each).__name__} {list(each.shape)}")
    large = torch.zeros(100, 100)._repr_html_()
    assert large is not None and large.count("<rect") == 24 * 48 and "picture: [24, 48] of it" in large


def test_a_module_is_a_tree_with_shapes_and_counts() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()))
    text = model._repr_html_()
    said = words(text)
    assert said.startswith("Sequential() 15 parameters")
    for part in (
        "0: Linear(in_features=2",
        "9 parameters",
        "weight [3, 2] float32",
        "running_mean [3] float32",
    ):
        assert part in said
    assert "1: ReLU() no parameters" in said
    assert text.count("<details") == 4
