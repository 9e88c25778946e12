"""Values and gradients at infinities, NaN, zeros and the ends of the dtypes' ranges.

The numbers are PyTorch 2.13's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import warptape as torch

F = torch.nn.functional


def grad_of(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


GRADIENTS = [
    (
        lambda: grad_of(F.gelu, torch.tensor([-inf, -1e30, 0.0, 1e30, inf])),
        "float32",
        [nan, 0.0, 0.5, 1.0, nan],
    ),
    (
        lambda: grad_of(F.elu, torch.tensor([-inf, -1e30, 0.0, 1e30, inf])),
        "float32",
        [0.0, 0.0, 1.0, 1.0, 1.0],
    ),
    (
        lambda: grad_of(F.selu, torch.tensor([-inf, -1e30, 0.0, 1e30, inf])),
        "float32",
        [0.0, 0.0, 1.7580993, 1.050701, 1.050701],
    ),
    (
        lambda: grad_of(F.celu, torch.tensor([-inf, -1e30, 0.0, 1e30, inf])),
        "float32",
        [0.0, 0.0, 1.0, 1.0, 1.0],
    ),
    (lambda: grad_of(F.hardswish, torch.full((64,), nan))[:1], "float32", [nan]),
    (lambda: grad_of(torch.digamma, torch.tensor([inf])), "float32", [0.0]),
    (lambda: grad_of(torch.sinc, torch.tensor([1e-42, 0.0, 1e-20])), "float32", [0.0, 0.0, 0.0]),
    (lambda: grad_of(torch.angle, torch.tensor([nan, -1.0, 0.0])), "float32", [0.0, 0.0, 0.0]),
    (
        lambda: grad_of(lambda x: torch.logit(x, 1e-3), torch.tensor([nan, 0.0, 0.5, 2.0])),
        "float32",
        [nan, 0.0, 4.0, 0.0],
    ),
    (
        lambda: grad_of(
            lambda x: torch.copysign(x, torch.tensor([1.0, -1.0, 2.0])), torch.tensor([nan, 3.0, 0.0])
        ),
        "float32",
        [nan, -1.0, 0.0],
    ),
    (
        lambda: grad_of(
            lambda x: torch.atan2(x, torch.tensor([0.0, -0.0, 2.0])), torch.tensor([0.0, 0.0, 1.0])
        ),
        "float32",
        [0.0, -0.0, 0.40000001],
    ),
    (
        lambda: grad_of(
            lambda x: torch.atan2(torch.tensor([0.0, -0.0, 2.0]), x), torch.tensor([0.0, 0.0, 1.0])
        ),
        "float32",
        [-0.0, 0.0, -0.40000001],
    ),
    (
        lambda: torch.view_as_real(
            grad_of(lambda x: torch.view_as_real(torch.sgn(x)), torch.tensor([0j, 2j]))
        ),
        "float32",
        [[0.0, 0.0], [0.5, 0.0]],
    ),
    (lambda: grad_of(torch.std, torch.tensor([1e-30, 2e-30])), "float32", [-0.70710677, 0.70710677]),
    (lambda: grad_of(lambda x: torch.clamp(torch.tensor([1.0, 5.0]), x), torch.tensor(3.0)), "float32", 1.0),
    (
        lambda: grad_of(lambda x: torch.clamp_max(torch.tensor([1.0, 5.0]), x), torch.tensor(3.0)),
        "float32",
        1.0,
    ),
    (
        lambda: grad_of(lambda x: torch.special.xlog1py(x, torch.tensor([4.0, -1.0, -2.0])), torch.zeros(3)),
        "float32",
        [1.6094379, 0.0, 0.0],
    ),
    (
        lambda: grad_of(torch.special.i0e, torch.tensor([0.0, 2.5, -30.0], dtype=torch.float64)),
        "float64",
        [0.0, -0.063461792, 0.0012296159],
    ),
    (
        lambda: grad_of(torch.special.i1, torch.tensor([0.0, 2.5, -30.0], dtype=torch.float64)),
        "float64",
        [0.5, 2.2831526, 756054560000.0],
    ),
    (
        lambda: grad_of(torch.special.i1e, torch.tensor([0.0, 2.5, -30.0], dtype=torch.float64)),
        "float64",
        [0.5, -0.019172068, -0.0011675951],
    ),
    (
        lambda: grad_of(torch.special.ndtri, torch.tensor([0.001, 0.5, 0.9], dtype=torch.float64)),
        "float64",
        [296.99235, 2.5066283, 5.6980599],
    ),
    (
        lambda: grad_of(lambda x: torch.cdist(x, torch.ones(1, 2), p=0), torch.zeros(1, 2)),
        "float32",
        [[0.0, 0.0]],
    ),
    (
        lambda: grad_of(
            lambda x: F.nll_loss(x, torch.tensor([0, -100])), torch.tensor([[-1.0, -2.0], [nan, inf]])
        ),
        "float32",
        [[-1.0, 0.0], [0.0, 0.0]],
    ),
    (
        lambda: grad_of(
            lambda x: F.cosine_similarity(x, torch.tensor([[1.0, 2.0, 3.0]]), dim=0),
            torch.tensor([[-8.5], [-2.5]]),
        ),
        "float32",
        [[-0.045750208], [0.15555069]],
    ),
]

VALUES = [
    (
        lambda: torch.sgn(torch.tensor([complex(0, inf), complex(-inf, 0), 0j, 3 + 4j])),
        "complex64",
        [complex(nan, nan), complex(nan, nan), complex(0.0, 0.0), complex(0.60000002, 0.80000001)],
    ),
    (
        lambda: torch.angle(torch.tensor([-inf, -1.0, nan, 0.0], dtype=torch.float64)),
        "float64",
        [3.1415927, 3.1415927, nan, 0.0],
    ),
    (lambda: torch.logit(torch.tensor([0.0, 0.5, 1.0]), nan), "float32", [-inf, 0.0, inf]),
    (lambda: torch.logit(torch.tensor([0.25]), 0.75), "float32", [1.0986123]),
    (lambda: torch.tensor([0j, 2j]) ** 0, "complex64", [complex(1.0, 0.0), complex(1.0, 0.0)]),
    (lambda: torch.tensor([-inf, 4.0, nan]) ** 0.5, "float32", [nan, 2.0, nan]),
    (lambda: torch.tensor([-inf, 4.0]).pow_(-0.5), "float32", [nan, 0.5]),
    (lambda: torch.tensor([complex(-1, -0.0)]) ** 0.5, "complex64", [complex(0.0, -1.0)]),
    (lambda: torch.polygamma(1, torch.tensor([inf, 0.5])), "float32", [0.0, 4.9348021]),
    (lambda: torch.std(torch.tensor([1e-30, 2e-30])), "float32", 7.0710678e-31),
    (
        lambda: torch.std(torch.tensor([[1e30, 2e30], [1e-30, 3e-30], [1.0, 3.0]]), dim=1),
        "float32",
        [7.0710676e29, 1.4142136e-30, 1.4142135],
    ),
    (lambda: torch.var(torch.tensor([1e-30, 2e-30]), correction=2), "float32", inf),
    (lambda: torch.var(torch.tensor([]), correction=-1), "float32", nan),
    (lambda: torch.std_mean(torch.tensor([1e30, 2e30])), "float32", 7.0710676e29),
    (
        lambda: torch.frexp(torch.tensor([1e-45, -1e-40, 0.0, inf, 3e38])),
        "float32",
        [0.5, -0.54444885, 0.0, inf, 0.88162076],
    ),
    (lambda: torch.frexp(torch.tensor([6.0, 1e-40], dtype=torch.bfloat16)), "bfloat16", [0.75, 0.5]),
    (
        lambda: torch.ldexp(torch.tensor([1e-40, 1.0]), torch.tensor([140, -149])),
        "float32",
        [139.37891, 1.4012985e-45],
    ),
    (
        lambda: torch.nextafter(
            torch.tensor([1.0, 0.0, inf, nan], dtype=torch.bfloat16),
            torch.tensor([2.0, -1.0, 0.0, 0.0], dtype=torch.bfloat16),
        ),
        "bfloat16",
        [1.0078125, -9.1835496e-41, 3.3895314e38, nan],
    ),
    (lambda: torch.round(torch.tensor([-8.48, 2.5]), decimals=40), "float32", [nan, nan]),
    (lambda: torch.round(torch.tensor([1.5, 2.5], dtype=torch.float16), decimals=10), "float16", [1.5, 2.5]),
    (lambda: torch.round(torch.tensor([335.0, -8.0]), decimals=-400), "float32", [nan, nan]),
    (
        lambda: torch.special.i0e(torch.tensor([0.0, 1.0, -20.0, 1e10, 8e29, inf, -inf, nan])),
        "float32",
        [0.99999994, 0.46575963, 0.089780301, 3.9894226e-06, 4.4603098e-16, 0.0, 0.0, nan],
    ),
    (
        lambda: torch.special.i1e(torch.tensor([0.0, 1.0, -20.0, 1e10, 8e29, inf, -inf, nan])),
        "float32",
        [0.0, 0.20791042, -0.08750622, 3.989423e-06, 4.4603103e-16, 0.0, -0.0, nan],
    ),
    (
        lambda: torch.special.i1(torch.tensor([0.0, 1.0, -25.0, 80.0])),
        "float32",
        [0.0, 0.56515908, -5657865700.0, 2.4596597e33],
    ),
    (
        lambda: torch.special.i0(torch.tensor([0.0, 1.0, -25.0, 80.0], dtype=torch.float64)),
        "float64",
        [1.0, 1.2660659, 5774560600.0, 2.4751784e33],
    ),
    (
        lambda: torch.special.ndtri(torch.tensor([0.0, 1.0, 1e-30, 1e-40, 0.1, 0.9, -1.0, nan])),
        "float32",
        [-inf, inf, -11.464024, -13.310922, -1.2815516, 1.2815511, nan, nan],
    ),
    (
        lambda: torch.special.ndtri(torch.tensor([1e-300, 1e-10, 0.019, 0.021, 0.999], dtype=torch.float64)),
        "float64",
        [-37.047096, -6.3613409, -2.0748547, -2.0335201, 3.0902323],
    ),
    (lambda: torch.bucketize(inf, torch.tensor([5, 5, 7])), "int64", 3),
    (lambda: torch.bucketize(5.5, torch.tensor([5, 5, 7])), "int64", 2),
    (lambda: torch.searchsorted(torch.tensor([5, 5, 7]), 5.5), "int64", 2),
    (lambda: torch.gradient(torch.tensor([1.0, nan, 3.0, inf, 5.0])), "float32", [nan, 1.0, nan, 1.0, -inf]),
    (
        lambda: F.nll_loss(
            torch.tensor([[-1.0, -2.0], [nan, inf]]), torch.tensor([0, -100]), reduction="none"
        ),
        "float32",
        [1.0, 0.0],
    ),
    (
        lambda: F.cosine_similarity(torch.tensor([[-8.5], [-2.5]]), torch.tensor([[1.0, 2.0, 3.0]]), dim=1),
        "float32",
        [-0.92582005, -0.92582005],
    ),
    (
        lambda: F.cosine_similarity(
            torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]), torch.tensor([1.0, 2.0, 3.0])
        ),
        "float32",
        [0.99999988, 0.71428567],
    ),
    (
        lambda: F.cosine_similarity(torch.tensor([1, 2]), torch.tensor([1.0, 2.0]), dim=0),
        "float32",
        0.99999994,
    ),
    (
        lambda: F.grid_sample(
            torch.arange(9.0).reshape(1, 1, 3, 3),
            torch.tensor([[[[nan, 0.0], [inf, 0.0], [1e30, -1e30], [0.5, 0.5]]]]),
            mode="nearest",
            align_corners=False,
        ),
        "float32",
        [[[[0.0, 0.0, 0.0, 8.0]]]],
    ),
    (
        lambda: F.grid_sample(
            torch.arange(9.0).reshape(1, 1, 3, 3),
            torch.tensor([[[[nan, 0.0], [inf, 0.0], [1e30, -1e30], [0.5, 0.5]]]]),
            align_corners=False,
        ),
        "float32",
        [[[[nan, nan, 0.0, 7.0]]]],
    ),
    (
        lambda: F.grid_sample(
            torch.arange(9.0).reshape(1, 1, 3, 3),
            torch.tensor([[[[nan, 0.0], [inf, 0.0], [-inf, inf], [0.5, 0.5]]]]),
            padding_mode="border",
            align_corners=False,
        ),
        "float32",
        [[[[3.0, 5.0, 6.0, 7.0]]]],
    ),
    (
        lambda: F.grid_sample(
            torch.arange(9.0).reshape(1, 1, 3, 3),
            torch.tensor([[[[nan, 0.0], [inf, 0.0], [-inf, inf], [0.5, 0.5]]]]),
            padding_mode="reflection",
            align_corners=False,
        ),
        "float32",
        [[[[3.0, 3.0, 0.0, 7.0]]]],
    ),
    (
        lambda: F.interpolate(
            torch.arange(16, dtype=torch.uint8).mul(17).reshape(1, 1, 4, 4), (3, 5), mode="bilinear"
        ),
        "uint8",
        [[[[11, 23, 37, 50, 62], [102, 114, 128, 141, 153], [193, 205, 219, 232, 244]]]],
    ),
    (
        lambda: F.interpolate(
            torch.arange(16, dtype=torch.uint8).mul(17).reshape(1, 1, 4, 4), scale_factor=1.7, mode="bilinear"
        ),
        "uint8",
        [
            [
                [
                    [0, 6, 16, 27, 36, 46],
                    [26, 32, 42, 53, 62, 72],
                    [66, 72, 82, 93, 102, 112],
                    [106, 112, 122, 133, 142, 152],
                    [146, 152, 162, 173, 182, 192],
                    [186, 192, 202, 213, 222, 232],
                ]
            ]
        ],
    ),
    (
        lambda: F.interpolate(
            torch.tensor([[[[255, 0], [7, 90]]]], dtype=torch.uint8),
            (3, 4),
            mode="bilinear",
            align_corners=True,
        ),
        "uint8",
        [[[[255, 170, 85, 0], [131, 103, 74, 45], [7, 35, 62, 90]]]],
    ),
    (
        lambda: F.interpolate(torch.tensor([[[[255, 0], [7, 90]]]], dtype=torch.uint8), (3, 3)),
        "uint8",
        [[[[255, 255, 0], [255, 255, 0], [7, 7, 90]]]],
    ),
    (
        lambda: torch.tensor([1, 2]).index_add(0, torch.tensor([0]), torch.tensor([3]), alpha=2.5),
        "int64",
        [7, 2],
    ),
    (
        lambda: torch.gradient(
            torch.tensor([1.0, 2.0, inf, 4.0, 5.0]), spacing=(torch.tensor([0.0, 1.0, 2.0, 4.0, 8.0]),)
        ),
        "float32",
        [1.0, inf, inf, -inf, 0.25],
    ),
    (
        lambda: torch.round(torch.tensor([3.35, -8.14], dtype=torch.float16), decimals=1),
        "float16",
        [3.3007812, -8.1015625],
    ),
    (
        lambda: grad_of(lambda x: torch.round(x, decimals=400), torch.tensor([1.0, 2.0])),
        "float32",
        [0.0, 0.0],
    ),
    (lambda: torch.cumsum(torch.tensor(1 + 2j), 0), "complex64", complex(1.0, 2.0)),
    (lambda: torch.cumprod(torch.tensor(1 + 2j), -1), "complex64", complex(1.0, 2.0)),
    (
        lambda: torch.tensor([1 + 2j, 3 + 1j]).scatter_(
            0, torch.tensor([0, 1]), torch.tensor([2 + 1j, 1 - 1j]), reduce="multiply"
        ),
        "complex64",
        [complex(0.0, 5.0), complex(4.0, -2.0)],
    ),
    (
        lambda: torch.tensor([1 + 2j, 3 + 1j]).scatter_(0, torch.tensor([0, 0]), 2, reduce="multiply"),
        "complex64",
        [complex(4.0, 8.0), complex(3.0, 1.0)],
    ),
    (lambda: torch.any(torch.tensor([[0.0, 2.0]]), dim=()), "bool", [[False, True]]),
    (lambda: torch.all(torch.tensor([[0, 2]], dtype=torch.uint8), dim=[]), "uint8", [[0, 1]]),
    (lambda: torch.tensor([0j, 1j]).any(dim=(), keepdim=True), "bool", [False, True]),
]


@pytest.mark.parametrize("call, dtype, expected", GRADIENTS + VALUES)
def test_numbers(call: Callable[[], Any], dtype: str, expected: Any) -> None:
    torch.manual_seed(0)
    found = call()
    found = found if isinstance(found, torch.Tensor) else found[0]
    assert str(found.dtype) == f"torch.{dtype}"
    wide = np.asarray(found.detach().cpu().tolist())
    np.testing.assert_allclose(wide, np.asarray(expected), rtol=3e-6, atol=0)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, inf])
def test_cdist_by_blocks(p: float) -> None:
    """Many differences are made a block of rows at a time; values and gradients do not show it."""
    torch.manual_seed(0)
    a, b = torch.rand(2, 230, 3).requires_grad_(), torch.rand(1000, 3).requires_grad_()
    weights = torch.rand(2, 230, 1000)
    found = torch.cdist(a, b, p, "donot_use_mm_for_euclid_dist")
    whole = torch.linalg.vector_norm(a.unsqueeze(-2) - b, p, -1)
    torch.testing.assert_close(found, whole)
    for x, y in zip(
        torch.autograd.grad((found * weights).sum(), (a, b)),
        torch.autograd.grad((whole * weights).sum(), (a, b)),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_pdist_on_meta_has_a_gradient(p: float) -> None:
    x = torch.empty(5, 3, device="meta", requires_grad=True)
    found = F.pdist(x, p)
    assert found.shape == (10,)
    assert torch.autograd.grad(found.sum(), x)[0].shape == x.shape
    compiled, y = torch.compile(lambda x: F.pdist(x, p)), torch.randn(5, 3, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(y).sum(), y), torch.autograd.grad(F.pdist(y, p).sum(), y)
    )


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_interpolate_on_meta_makes_no_numbers(mode: str, dtype: torch.dtype) -> None:
    x = torch.empty(1, 3, 4, 4, device="meta", dtype=dtype)
    found = F.interpolate(x, (2**28, 2**28), mode=mode)
    assert found.is_meta and found.shape == (1, 3, 2**28, 2**28) and found.dtype is dtype
