"""The steps of warptape.cuda.gemm_ladder against sums in float64, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as torch
from warptape.cuda import GemmStep, gemm_ladder

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
CASES = [(step, dtype) for step in gemm_ladder.values() for dtype in step.dtypes]


def values(*shape: int, dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def supports(step: GemmStep) -> bool:
    has = tuple(torch.cuda.get_device_capability())
    return has == (9, 0) if step.min_capability == (9, 0) else has >= step.min_capability


def close(got: Any, expected: np.ndarray, dtype: Any) -> None:
    found = got.cpu().double().numpy()
    assert got.dtype == dtype and found.shape == expected.shape
    scale = np.maximum(1, np.abs(expected))
    assert np.abs((found - expected) / scale).max() <= TOLERANCES[dtype]


def test_the_table_describes_the_kernels() -> None:
    assert list(gemm_ladder)[:2] == ["naive", "coalesced"] and len(gemm_ladder) == 10
    for step in gemm_ladder.values():
        covered = np.array(step.block_tile) // np.array(step.warp_tile)
        warps = step.threads // 32 if step.name != "wgmma" else 2  # consumer warpgroups
        assert covered[0] * covered[1] == warps, step.name
        assert all(t % f == 0 for t, f in zip(step.warp_tile, step.fragment, strict=True)), step.name


@pytest.mark.cuda
@pytest.mark.parametrize(("step", "dtype"), CASES, ids=lambda x: getattr(x, "name", str(x)))
@pytest.mark.parametrize("sizes", [(1, 8, 8), (33, 40, 24), (150, 272, 72)], ids=str)
def test_a_step_multiplies(step: GemmStep, dtype: Any, sizes: tuple[int, int, int]) -> None:
    if not supports(step):
        pytest.skip(f"{step.name} needs compute capability {step.min_capability}")
    m, n, k = sizes
    if step.multiple_n == step.multiple_k == 1:
        n, k = n + 1, k + 1
    a, b = values(m, k, dtype=dtype), values(k, n, dtype=dtype, seed=1)
    close(step(a.cuda(), b.cuda()), a.double().numpy() @ b.double().numpy(), dtype)


@pytest.mark.cuda
@pytest.mark.parametrize(("has_bias", "gelu"), [(True, False), (False, True), (True, True)])
def test_the_epilogue(has_bias: bool, gelu: bool) -> None:
    step = gemm_ladder["wgmma"]
    if not supports(step):
        pytest.skip("WGMMA is Hopper's alone")
    a, b = values(70, 64, dtype=torch.bfloat16), values(64, 40, dtype=torch.bfloat16, seed=1)
    bias = values(40, dtype=torch.bfloat16, seed=2)
    x = a.double().numpy() @ b.double().numpy()
    if has_bias:
        x = x + bias.double().numpy()
    if gelu:
        x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    got = step(a.cuda(), b.cuda(), bias=bias.cuda() if has_bias else None, gelu=gelu)
    close(got, x, torch.bfloat16)


@pytest.mark.cuda
def test_views_are_copied_where_the_kernels_need_it() -> None:
    a, b = values(33, 41, dtype=torch.float32), values(40, 36, dtype=torch.float32, seed=1)
    step = gemm_ladder["vectorised"]
    got = step(a.cuda()[:, 1:], b.cuda().t().contiguous().t())
    close(got, a[:, 1:].double().numpy() @ b.double().numpy(), torch.float32)
    flat = values(1 + 16 * 8, dtype=torch.bfloat16).cuda()
    shifted = flat[1:].view(16, 8)  # at an address that 16-byte accesses do not take
    close(gemm_ladder["mma"](shifted, shifted[:8]), *of(shifted, shifted[:8]))


def of(a: Any, b: Any) -> tuple[np.ndarray, Any]:
    return a.cpu().double().numpy() @ b.cpu().double().numpy(), a.dtype


@pytest.mark.cuda
def test_nothing_to_do() -> None:
    for step in gemm_ladder.values():
        a, b = torch.ones(0, 8, dtype=step.dtypes[0]).cuda(), torch.ones(8, 16, dtype=step.dtypes[0]).cuda()
        assert step(a, b).shape == (0, 16)


@pytest.mark.parametrize(
    ("name", "change", "error", "says"),
    [
        ("mma", {"n": 12}, torch._C.ShapeError, "n must be a multiple of 8 and k of 8, got n 12 and k 16"),
        ("vectorised", {"k": 6}, torch._C.ShapeError, "k of 4"),
        ("naive", {"k": 0}, torch._C.ShapeError, "k of at least 1"),
        ("naive", {"b": (5, 4)}, torch._C.ShapeError, r"expected \[m, k\] and \[k, n\]"),
        ("wmma", {"dtype": torch.float32}, torch._C.DtypeError, "bfloat16 or float16, got"),
        ("naive", {"dtype": torch.float64}, torch._C.DtypeError, "float32, got"),
        ("mma", {"gelu": True}, ValueError, "has no epilogue"),
        ("wgmma", {"bias": 8}, torch._C.ShapeError, r"expected bias \[16\]"),
        ("naive", {"device": "cpu"}, torch._C.DeviceError, "tensors on the CPU"),
        ("naive", {"grad": True}, NotImplementedError, "has no gradient"),
    ],
)
def test_wrong_input(name: str, change: dict[str, Any], error: type[Exception], says: str) -> None:
    step = gemm_ladder[name]
    options: dict[str, Any] = {
        "dtype": change.get("dtype", step.dtypes[0]),
        "device": change.get("device", "meta"),
    }
    k, n = change.get("k", 16), change.get("n", 16)
    a = torch.ones(8, k, **options).requires_grad_("grad" in change)
    b = torch.ones(*change.get("b", (k, n)), **options)
    bias = torch.ones(change["bias"], **options) if "bias" in change else None
    with pytest.raises(error, match=says):
        step(a, b, bias=bias, gelu=change.get("gelu", False))


def test_meta_tensors() -> None:
    for step in gemm_ladder.values():
        a = torch.ones(3, 8, dtype=step.dtypes[0], device="meta")
        assert step(a, a.t().contiguous()[:, :1].expand(8, 16)).shape == (3, 16)
