"""Matrix products and convolutions on the device against NumPy and the CPU's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape.parallel.experts import MixtureOfExperts

pytestmark = pytest.mark.cuda

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
REFUSED = ["matmul", "algorithm", "algorithms"]


def values(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if dtype in INTEGERS:
        return torch.tensor(rng.integers(-100, 100, shape)).to(dtype)
    return torch.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def close(got: Any, expected: Any, tolerance: float) -> None:
    x, y = expected.double().numpy(), got.cpu().double().numpy()
    assert x.shape == y.shape
    assert np.abs(x - y).max(initial=0) <= tolerance * max(1, np.abs(x).max(initial=0))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("shape", [(3, 4, 5), (33, 70, 50), (1, 1, 1), (4, 0, 5), (40, 17, 1)])
def test_integers_wrap(shape: tuple[int, int, int], dtype: Any) -> None:
    m, k, n = shape
    a, b, c = values((m, k), dtype), values((k, n), dtype, 1), values((n,), dtype, 2)
    expected = a.numpy() @ b.numpy()  # NumPy's wrap too
    np.testing.assert_array_equal((a.to("cuda") @ b.to("cuda")).cpu().numpy(), expected)
    got = torch.addmm(c.to("cuda"), a.to("cuda"), b.to("cuda"), beta=2, alpha=3).cpu().numpy()
    scaled = expected * expected.dtype.type(3) + c.numpy() * c.numpy().dtype.type(2)
    np.testing.assert_array_equal(got, scaled)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "layout",
    ["rows", "columns", "steps", "repeated row", "batch", "broadcast batch", "two batches", "vector"],
)
def test_layouts(layout: str, dtype: Any) -> None:
    def product(device: str) -> Any:
        a, b = values((6, 40, 24), dtype).to(device), values((6, 24, 17), dtype, 1).to(device)
        match layout:
            case "rows":
                return a[0] @ b[0]
            case "columns":
                return b[0].t() @ a[0].t()
            case "steps":
                return a[0, ::2, ::2] @ b[0, ::2]
            case "repeated row":
                return a[0, :1].expand(9, 24) @ b[0]
            case "batch":
                return a @ b
            case "broadcast batch":
                return a[0] @ b
            case "two batches":  # neither dim is evenly apart in both operands
                return a.reshape(2, 3, 40, 24).transpose(0, 1) @ b.reshape(3, 2, 24, 17)
            case _:
                return a[0] @ b[0, :, 3]

    close(product("cuda"), product("cpu"), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("sizes", [(3, 4, 5), (130, 68, 200), (129, 67, 201)], ids=str)
@pytest.mark.parametrize("flip", ["", "a", "b", "ab"])
@pytest.mark.parametrize("refused", REFUSED)
def test_where_the_library_refuses(
    sizes: tuple[int, int, int], flip: str, dtype: Any, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another algorithm, or the plain kernels: of float32 a step of the GEMM ladder. On a GPU: neither."""
    monkeypatch.setenv("WARPTAPE_EMULATED_REFUSE", refused)
    m, k, n = sizes
    n += 8 * REFUSED.index(refused)  # the plugin remembers what was refused of a shape

    def product(device: str) -> Any:
        a, b = values((2, m, k), dtype).to(device), values((2, k, n), dtype, 1).to(device)
        c = values((2, m, n), dtype, 2).to(device)
        a = a.transpose(1, 2).contiguous().transpose(1, 2) if "a" in flip else a
        b = b.transpose(1, 2).contiguous().transpose(1, 2) if "b" in flip else b
        return torch.baddbmm(c, a, b, beta=2, alpha=0.5), a[:, :, 1:] @ b[:, 1:], a[0, ::2] @ b[1, :, ::2]

    for got, expected in zip(product("cuda"), product("cpu"), strict=True):
        close(got, expected, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("rows", [(), (1,), (5,), (2, 3)])
def test_linear(rows: tuple[int, ...], dtype: Any) -> None:
    results = []
    for device in ("cpu", "cuda"):
        leaves = [
            values(shape, dtype, i).to(device) for i, shape in enumerate([(*rows, 24), (10, 24), (10,)])
        ]
        for leaf in leaves:
            leaf.requires_grad_(True)
        out = F.linear(*leaves)
        out.backward(values((*rows, 10), dtype, 7).to(device))
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for expected, got in zip(*results, strict=True):
        close(got, expected, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("wanted", ["weight", "bias", "bias of one", "expanded gradient", "columns"])
def test_gradients_of_linear_wanted(wanted: str, dtype: Any) -> None:
    """Weight's and bias's gradients come from one product where both are wanted, whatever the layout."""
    results = []
    for device in ("cpu", "cuda"):
        x, w = values((33, 24), dtype).to(device), values((10, 24), dtype, 1).to(device)
        b = values((1 if wanted == "bias of one" else 10,), dtype, 2).to(device)
        if wanted == "columns":
            x = x.t().contiguous().t()
        w.requires_grad_(wanted != "bias")
        b.requires_grad_(wanted != "weight")
        out = F.linear(x, w, b)
        grad = values((33, 10), dtype, 3).to(device)
        out.backward(grad[:1].expand(33, 10) if wanted == "expanded gradient" else grad)
        results.append([t.grad for t in (w, b) if t.requires_grad])
    for expected, got in zip(*results, strict=True):
        assert got.dtype == dtype
        close(got, expected, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("wanted", ["all", "input", "weights", "biases", "last", "no biases"])
@pytest.mark.parametrize("rows", [(), (5,), (2, 3)])
def test_linear_gelu_linear(rows: tuple[int, ...], wanted: str, dtype: Any) -> None:
    """The fused form on the device against layer, GELU and layer on the CPU."""
    shapes = {"input": (*rows, 24), "w1": (40, 24), "b1": (40,), "w2": (10, 40), "b2": (10,)}
    chosen = {
        "all": list(shapes),
        "input": ["input"],
        "weights": ["w1", "w2"],
        "biases": ["b1", "b2"],
        "last": ["w2", "b2"],
        "no biases": ["input", "w1", "w2"],
    }[wanted]
    results = []
    for device in ("cpu", "cuda"):
        leaves: dict[str, Any] = {
            name: (values(shape, dtype, i) * 0.5).to(device) for i, (name, shape) in enumerate(shapes.items())
        }
        if wanted == "no biases":
            leaves["b1"] = leaves["b2"] = None
        for name in chosen:
            leaves[name].requires_grad_(True)
        if device == "cuda":
            out = F.linear_gelu_linear(*leaves.values(), approximate="tanh")
            assert out.grad_fn.name() == "LinearGeluLinearBackward0"
        else:
            hidden = F.gelu(F.linear(leaves["input"], leaves["w1"], leaves["b1"]), approximate="tanh")
            out = F.linear(hidden, leaves["w2"], leaves["b2"])
        out.backward(values((*rows, 10), dtype, 7).to(device))
        results.append([out.detach(), *(leaves[name].grad for name in chosen)])
    for expected, got in zip(*results, strict=True):
        assert got.dtype == dtype
        close(got, expected, 2 * TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_depth_gives_the_bias(dtype: Any) -> None:
    bias = values((5,), dtype)
    out = F.linear(
        torch.ones(3, 0, dtype=dtype, device="cuda"),
        torch.ones(5, 0, dtype=dtype, device="cuda"),
        bias.to("cuda"),
    )
    np.testing.assert_array_equal(out.cpu().float().numpy(), np.tile(bias.float().numpy(), (3, 1)))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stride": 2, "padding": 1},
        {"padding": (0, 2), "dilation": (1, 2)},
        {"groups": 2, "padding": 1},
        {"padding": "same"},
        {"stride": 3},
    ],
    ids=str,
)
def test_conv2d(settings: dict[str, Any], dtype: Any) -> None:
    groups = settings.get("groups", 1)
    shapes = [(2, 4, 9, 10), (6, 4 // groups, 3, 2), (6,)]
    results = []
    for device in ("cpu", "cuda"):
        leaves = [values(shape, dtype, i).to(device).requires_grad_(True) for i, shape in enumerate(shapes)]
        out = F.conv2d(*leaves, **settings)
        out.backward(torch.ones_like(out))
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for expected, got in zip(*results, strict=True):
        close(got, expected, TOLERANCES[dtype])


def test_conv1d_and_transposed() -> None:
    for device, keep in (("cpu", expected := []), ("cuda", got := [])):
        x, w = values((2, 4, 11), torch.float32).to(device), values((4, 3, 5), torch.float32, 1).to(device)
        keep.append(F.conv1d(x, w.transpose(0, 1), padding=2))
        keep.append(F.conv_transpose1d(x, w, stride=3, padding=1, output_padding=2))
    for x, y in zip(expected, got, strict=True):
        close(y, x, 1e-5)


# ---- groups


def gradients(x: Any, weight: Any, offs: Any, seed: Any) -> list[Any]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = F.grouped_mm(x, weight, offs=offs)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), seed)]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("sizes", [(136, 24), (21, 35)], ids=str)
@pytest.mark.parametrize("ends", [(0, 70, 71, 203), (203, 203, 203, 203), (10, 20, 30, 40)], ids=str)
def test_groups_and_their_gradients(ends: tuple[int, ...], sizes: tuple[int, int], dtype: Any) -> None:
    k, n = sizes
    x, weight, seed = values((203, k), dtype), values((4, k, n), dtype, 1), values((203, n), dtype, 2)
    offs = torch.tensor(ends, dtype=torch.int32)
    expected = gradients(x.double(), weight.double(), offs, seed.double())
    for got, want in zip(gradients(x.cuda(), weight.cuda(), offs.cuda(), seed.cuda()), expected, strict=True):
        assert got.dtype == dtype
        close(got, want, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_what_is_not_finite_stays_in_its_group(dtype: Any) -> None:
    """Tiles reach beyond a group, into the rows and the matrix of the next one."""
    x, weight, seed = values((40, 16), dtype), values((2, 16, 24), dtype, 1), values((40, 24), dtype, 2)
    x[30:], weight[1], seed[30:] = float("nan"), float("nan"), float("inf")
    offs = torch.tensor([30, 40], dtype=torch.int32)
    y, dx, dw = (t.cpu() for t in gradients(x.cuda(), weight.cuda(), offs.cuda(), seed.cuda()))
    for inside, outside in ((y[:30], y[30:]), (dx[:30], dx[30:]), (dw[0], dw[1])):
        assert torch.isfinite(inside).all() and not torch.isfinite(outside).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_offsets_stay_on_the_device(dtype: Any) -> None:
    """A captured product and its gradients follow other offsets: nobody on the host read the first ones."""
    x, weight, seed = (values(s, dtype, i).cuda() for i, s in enumerate([(90, 16), (3, 16, 24), (90, 24)]))
    offs = torch.tensor([30, 60, 90], dtype=torch.int32).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(x, weight, offs, seed)
    for ends in ([30, 60, 90], [0, 1, 90], [90, 90, 90]):
        offs.copy_(torch.tensor(ends, dtype=torch.int32))
        graph.replay()
        for got, want in zip(captured, gradients(x, weight, offs, seed), strict=True):
            assert torch.equal(got.cpu(), want.cpu())


def test_a_mixture_is_captured() -> None:
    """Routing, counting and the experts' products wait for nothing."""
    torch.manual_seed(0)
    layer = MixtureOfExperts(16, 32, 4, 2, shared=1).cuda()
    x = values((40, 16), torch.float32).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        layer(x)
        with torch.cuda.graph(graph):
            captured = layer(x)
        for seed in (1, 2):
            x.copy_(values((40, 16), torch.float32, seed))
            graph.replay()
            close(captured, layer(x).cpu(), 1e-6)


def test_bad_offsets_raise_at_the_next_synchronisation() -> None:
    x, weight = values((9, 8), torch.float32).cuda(), values((2, 8, 4), torch.float32).cuda()
    for ends in ([3, 10], [5, 3], [-1, 9]):
        F.grouped_mm(x, weight, offs=torch.tensor(ends).cuda())
        with pytest.raises(IndexError, match="grouped_mm: index"):
            torch.cuda.synchronize()


def test_switches_of_tf32_choose_the_compute_type() -> None:
    """1 + 2**-12 is no number of TF32, which has 10 bits of mantissa: its product with 1 tells. float64 and
    the highest precision are left alone."""
    matmul = torch.backends.cuda.matmul
    fine = 1 + 2.0**-12
    x, one = torch.full((64, 64), fine, device="cuda"), torch.eye(64, device="cuda")
    try:
        for precision, expected in (("highest", fine), ("high", 1.0), ("medium", 1.0), ("highest", fine)):
            torch.set_float32_matmul_precision(precision)
            assert matmul.allow_tf32 == (precision != "highest")
            assert set((x @ one).cpu().unique().tolist()) == {expected}
            assert set((x.double() @ one.double()).cpu().unique().tolist()) == {fine}
        matmul.allow_tf32 = True
        assert (x @ one)[3, 5].item() == 1.0
        matmul.allow_tf32 = False
        assert (x @ one)[3, 5].item() == fine
    finally:
        torch.set_float32_matmul_precision("highest")
