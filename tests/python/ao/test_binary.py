"""Layers of one bit and of three values: values, gradients, the kernel's counts, errors."""

import numpy as np
import pytest
import warptape as torch
from warptape import _C, ao, nn
from warptape.nn import functional as F

ops = _C._private


def signs(x):
    return np.where(x.double().numpy() < 0, -1.0, 1.0)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n, k", [(1, 1), (16, 32), (17, 33), (100, 65), (70, 4101)])
def test_the_kernel_counts_as_float64_does(n, k, dtype):
    torch.manual_seed(n)
    weight, x, bias = (torch.randn(s).to(dtype) for s in ((n, k), (13, k), (n,)))
    x.view(-1)[::5] = 0
    x.view(-1)[1::7] = -0.0
    scale = weight.float().abs().mean(1)
    words = ops._pack_signs(weight)
    for scaled in (True, False):
        out = ops._binary_linear(x, words, scale, bias, scaled).double().numpy()
        b = np.abs(x.double().numpy()).mean(1, keepdims=True) if scaled else 1.0
        exact = signs(x) @ signs(weight).T * scale.double().numpy() * b + bias.double().numpy()
        error = 1e-5 if dtype == torch.float32 else 8e-3
        np.testing.assert_allclose(out, exact, rtol=error, atol=error * np.abs(exact).max())
    ones = ops._binary_linear(x, words, torch.ones(n), None, False).float().numpy()
    if dtype == torch.float32:  # without scales they are counts, and exact
        np.testing.assert_array_equal(ones, signs(x) @ signs(weight).T)


def test_a_row_depends_on_itself_alone(threads):
    words, scale = ops._pack_signs(torch.randn(130, 1000)), torch.rand(130)
    x = torch.randn(500, 1000)
    torch.set_num_threads(1)
    whole = ops._binary_linear(x, words, scale)
    for many in (1, 2, 3):
        torch.set_num_threads(many)
        for m in (1, 2, 5, 6, 7, 13, 499):
            assert torch.equal(ops._binary_linear(x[:m], words, scale), whole[:m])


def test_shapes_and_dtypes_that_do_not_fit():
    words, scale, x = ops._pack_signs(torch.randn(8, 64)), torch.rand(8), torch.randn(2, 64)
    for error, call in [
        (_C.ShapeError, lambda: ops._binary_linear(torch.randn(2, 96), words, scale)),
        (_C.ShapeError, lambda: ops._binary_linear(x, words, torch.rand(17))),
        (_C.ShapeError, lambda: ops._binary_linear(x, words.float(), scale)),
        (_C.ShapeError, lambda: ops._binary_linear(x, words, scale, torch.rand(7))),
        (_C.DtypeError, lambda: ops._binary_linear(x.double(), words, scale)),
        (_C.DtypeError, lambda: ops._pack_signs(torch.ones(2, 2, dtype=torch.int64))),
        (_C.ShapeError, lambda: ops._pack_signs(torch.ones(2))),
        (NotImplementedError, lambda: ops._binary_linear(x.requires_grad_(), words, scale)),
        (ValueError, lambda: ao.pack_binary_(nn.Sequential(nn.Linear(2, 2)))),
        (TypeError, lambda: ao.pack_binary_(ao.BinaryLinear(2, 2))),
        (ValueError, lambda: ao.BinaryConv2d(4, 4, 3, groups=2)),
        (_C.ShapeError, lambda: ao.PackedBinaryLinear(ao.BinaryLinear(40, 2))(torch.randn(1, 41))),
    ]:
        with pytest.raises(error):
            call()
    assert ops._binary_linear(torch.randn(0, 64), words, scale).shape == (0, 8)
    assert ops._binary_linear(torch.randn(2, 64, device="meta"), words.to("meta"), scale.to("meta")).is_meta


def test_the_gradient_is_the_clipped_straight_through_estimators():
    x = torch.tensor([-2.0, -1.0, -0.3, 0.0, 0.4, 1.0, 1.5], requires_grad=True)
    g = torch.arange(1.0, 8.0)
    y = ao.binarize(x)
    assert y.tolist() == [-1, -1, -1, 1, 1, 1, 1]
    y.backward(g)
    assert x.grad.tolist() == [0, 2, 3, 4, 5, 6, 0]


def test_the_layers_formula_in_float64():
    layer = ao.BinaryLinear(20, 6, dtype=torch.float64)
    x = torch.randn(4, 20, dtype=torch.float64)
    w = layer.weight.detach()
    exact = signs(x) @ signs(w).T * w.abs().mean(1).numpy() * x.abs().mean(1, keepdim=True).numpy()
    np.testing.assert_allclose(layer(x).detach().numpy(), exact + layer.bias.detach().numpy(), rtol=1e-12)


def test_ternary_weights_in_float64():
    layer = ao.TernaryLinear(30, 5, dtype=torch.float64)
    x = torch.randn(3, 30, dtype=torch.float64)
    w = layer.weight.detach().numpy()
    expected = np.zeros_like(w)
    for i, row in enumerate(w):
        over = np.abs(row) > 0.7 * np.abs(row).sum() / len(row)
        expected[i, over] = np.sign(row[over]) * np.abs(row[over]).sum() / over.sum()
    np.testing.assert_allclose(ao.ternarize(layer.weight).detach().numpy(), expected, rtol=1e-12)
    layer(x).square().sum().backward()
    exact = x.numpy() @ expected.T + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(x).detach().numpy(), exact, rtol=1e-10)
    scale = np.abs(expected).max(1, keepdims=True)
    np.testing.assert_allclose(layer.weight.grad.numpy(), (2 * exact.T @ x.numpy()) * scale, rtol=1e-9)
    assert ao.ternarize(torch.zeros(2, 3)).tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("more", [{}, {"padding": 1}, {"stride": 2, "padding": (2, 1), "dilation": 2}])
@pytest.mark.parametrize("scaled", [True, False])
def test_a_packed_convolution_is_the_layer(more, scaled):
    layer = ao.BinaryConv2d(5, 7, 3, scale_input=scaled, **more)
    x = torch.randn(2, 5, 9, 11)
    model = ao.pack_binary_(nn.Sequential(layer))
    with torch.no_grad():
        torch.testing.assert_close(model(x), layer(x), rtol=1e-5, atol=1e-5)
        padded = F.pad(x, (layer.padding[1],) * 2 + (layer.padding[0],) * 2)
        patches = F.unfold(padded, 3, layer.dilation, 0, layer.stride).double()  # [B, 45, L]
        w = layer.weight.double().flatten(1)
        exact = np.einsum("ok,bkl->bol", signs(w) * w.abs().mean(1, keepdim=True).numpy(), signs(patches))
        exact = exact * (patches.abs().mean(1, keepdim=True).numpy() if scaled else 1)
        exact = exact + layer.bias.double().numpy()[:, None]
        np.testing.assert_allclose(layer(x).flatten(2).numpy(), exact, rtol=1e-4, atol=1e-5)


def test_a_binary_net_trains_packs_saves_and_exports(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(ao.BinaryLinear(16, 64), nn.BatchNorm1d(64), ao.BinaryLinear(64, 2))
    x = torch.randn(256, 16)
    y = (x[:, 0] * x[:, 1] > 0).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.6  # of 0.69 by chance
    with torch.no_grad():
        expected = model.eval()(x)
        words = ao.pack_binary_(model)[2].words
        assert words.numel() * 32 == 16 * 64  # bits, of 2 outputs in a panel of 16
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
        assert "scale_input=True" in repr(model)
        torch.export.save(torch.export.export(model, (x,)), tmp_path / "binary.safetensors")
        again = torch.export.load(tmp_path / "binary.safetensors").module()(x)
        assert torch.equal(again, model(x))
        other = ao.pack_binary_(
            nn.Sequential(ao.BinaryLinear(16, 64), nn.BatchNorm1d(64), ao.BinaryLinear(64, 2))
        )
        other.load_state_dict(model.state_dict())
        assert torch.equal(other.eval()(x), model(x))
