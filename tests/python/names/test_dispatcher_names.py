"""Ops of PyTorch's dispatcher beside the house's, by gradients, formulas and PyTorch 2.13's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import warptape as torch
from warptape.nn import functional as F

aten, codes = torch.ops.aten, torch.ops.quantized_decomposed


def like(found, wanted, **options):
    torch.testing.assert_close(found, wanted, **options)


def gradients(f, *inputs):
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = f(*leaves)
    g = torch.randn_like(out)
    return g, torch.autograd.grad(out, leaves, g)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# ---- gradients ---------------------------------------------------------------------------------------------


def test_gradients_of_activations():
    x = torch.randn(4, 5, dtype=torch.float64)
    for op, f, more in (
        (aten.gelu_backward, F.gelu, {}),
        (aten.gelu_backward, lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
        (aten.silu_backward, F.silu, {}),
    ):
        g, (wanted,) = gradients(f, x)
        like(op(g, x, **more), wanted)
    g, (wanted,) = gradients(lambda x: F.threshold(x, 0.2, 0.0), x)
    like(aten.threshold_backward(g, x, 0.2), wanted)
    g, (wanted,) = gradients(lambda x: x.softmax(-1), x)
    like(torch._softmax_backward_data(g, x.softmax(-1), -1, x.dtype), wanted)
    with pytest.raises(RuntimeError, match="none or tanh"):
        aten.gelu_backward(g, x, approximate="erf")
    assert "default" in aten.gelu_backward.overloads() and aten.gelu_backward.default(g, x).shape == x.shape


@pytest.mark.parametrize(("transposed", "groups"), [(False, 2), (False, 1), (True, 1)])
def test_the_gradient_of_a_convolution(transposed, groups):
    x = torch.randn(2, 4, 7, 7, dtype=torch.float64)
    w = torch.randn(*((4, 6) if transposed else (6, 4 // groups)), 3, 3, dtype=torch.float64)
    b = torch.randn(6, dtype=torch.float64)
    f = F.conv_transpose2d if transposed else F.conv2d
    g, wanted = gradients(lambda x, w, b: f(x, w, b, stride=2, padding=1, groups=groups), x, w, b)
    settings = ([2, 2], [1, 1], [1, 1], transposed, [0, 0], groups)
    found = aten.convolution_backward(g, x, w, [6], *settings, [True, True, True])
    for one, other in zip(found, wanted, strict=True):
        like(one, other)
    some = aten.convolution_backward(g, x, w, [6], *settings, [False, True, False])
    assert some[0] is None and some[2] is None
    like(some[1], wanted[1])


def test_norms_with_their_statistics():
    x = torch.randn(6, 4, 5, dtype=torch.float64)
    w, b = torch.randn(4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    mean, var = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    out, m, r = aten._native_batch_norm_legit(x, w, b, mean, var, True, 0.1, 1e-5)
    like(out, F.batch_norm(x, None, None, w, b, True))
    plain = x.numpy()
    like(m, torch.from_numpy(plain.mean((0, 2))))
    like(r, torch.from_numpy(1 / np.sqrt(plain.var((0, 2)) + 1e-5)))
    like(mean, 0.1 * m)  # the running mean moved
    like(aten._native_batch_norm_legit(x, w, b, True, 0.1, 1e-5)[0], out)
    assert len(aten.cudnn_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)) == 4
    still = aten._native_batch_norm_legit_no_training(x, w, b, mean, var, 0.1, 1e-5)
    like(still[0], F.batch_norm(x, mean, var, w, b))
    assert still[1].numel() == still[2].numel() == 0
    v = torch.randn(5, dtype=torch.float64)
    g, wanted = gradients(lambda x, v: F.rms_norm(x, [5], v, 1e-6), x, v)
    out, rstd = aten._fused_rms_norm(x, [5], v, 1e-6)
    like(out, F.rms_norm(x, [5], v, 1e-6))
    like(rstd, torch.from_numpy(1 / np.sqrt((plain**2).mean(-1, keepdims=True) + 1e-6)))
    for one, other in zip(
        aten._fused_rms_norm_backward(g, x, [5], rstd, v, [True, True]), wanted, strict=True
    ):
        like(one, other)


def test_attention_with_its_logsumexp():
    q, k, v = (torch.randn(2, 3, 4, 8) for _ in range(3))
    scores = (q @ k.transpose(-2, -1)).numpy() / math.sqrt(8)
    scores = np.where(np.tril(np.ones((4, 4), bool)), scores, -np.inf)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    lse = torch.from_numpy(np.log(np.exp(scores).sum(-1)))
    out, found, *_, max_q, max_k = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[:6]
    like(out, wanted)
    like(found, lse)
    assert (max_q, max_k) == (4, 4)
    like(aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[1][..., 0], lse)
    like(aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)[1], lse)
    assert aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[1].numel() == 0
    out, weights = aten._scaled_dot_product_attention_math(q, k, v, is_causal=True)
    like(out, wanted)
    like(weights.log().nan_to_num(neginf=0.0), torch.from_numpy(np.tril(scores - lse.numpy()[..., None])))
    g, grads = gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), q, k, v)
    rest = (None, None, 4, 4, 0.0, True, None, None)
    found = aten._scaled_dot_product_flash_attention_backward(g, q, k, v, wanted, lse, *rest)
    for one, other in zip(found, grads, strict=True):
        like(one, other)


# ---- checks and small ops ----------------------------------------------------------------------------------


def test_checks():
    x = torch.ones(2, 3)
    aten._assert_tensor_metadata(x, [2, 3], [3, 1], torch.float32, device="cpu", layout=torch.strided)
    for wrong in ({"size": [3, 2]}, {"dtype": torch.int64}, {"device": "meta"}):
        with pytest.raises(RuntimeError, match="mismatch! Expected"):
            aten._assert_tensor_metadata(x, **wrong)
    aten._assert_scalar(True, "text")
    with pytest.raises(RuntimeError, match="text"):
        aten._assert_scalar(False, "text")
    aten.sym_constrain_range_for_size(3, min=2, max=3)
    with pytest.raises(RuntimeError, match=r"Invalid value range for 3 between \[4"):
        aten.sym_constrain_range_for_size(3, min=4)
    assert aten._is_all_true(x > 0).item() is True
    with pytest.raises(ValueError, match="wrong"):
        torch._check_with(ValueError, 1 > 2, lambda: "wrong")
    with pytest.raises(TypeError, match="must be a bool"):
        torch._check_with(ValueError, 1, lambda: "wrong")


def test_small_ops():
    x = torch.arange(15.0).view(3, 5)
    copy = aten.slice_copy(x, 1, 1, 4, 2)
    assert copy.tolist() == x[:, 1:4:2].tolist() and copy.data_ptr() != x.data_ptr()
    assert aten._unsafe_index(x, [None, torch.tensor([4, 0])]).equal(x[:, [4, 0]])
    image = x.view(1, 1, 3, 5)
    like(aten.upsample_bilinear2d(image, [6, 7], False), F.interpolate(image, (6, 7), mode="bilinear"))
    like(aten.upsample_bilinear2d(image, None, True, [2.0, 2.0]).shape, torch.Size([1, 1, 6, 10]))
    assert torch.ops.prims.convert_element_type(x, torch.int32).dtype == torch.int32
    assert torch.ops.prim.layout(x) == torch.strided
    # By hand: 3 rows in 2 chunks are 2 and 1 and a row of zeros.
    parts = torch._chunk_cat([torch.tensor([1.0, 2, 3]), torch.tensor([[4.0, 5], [6, 7]])], 0, 2)
    assert parts.tolist() == [[1, 2, 4, 5], [3, 0, 6, 7]]
    assert torch._as_tensor_fullprec(1.5).dtype == torch.float64
    assert torch._as_tensor_fullprec(2).dtype == torch.int64
    assert torch._has_compatible_shallow_copy_type(x, x[0])
    assert not torch._has_compatible_shallow_copy_type(x, x.to_sparse())
    for gone in (torch.lstsq, torch.symeig, torch.matrix_rank):
        with pytest.raises(RuntimeError, match=r"now removed: torch\.\w+\. Use torch\.linalg\."):
            gone(x)


def test_control_flow_by_flat_operands():
    ops = torch.ops.higher_order
    x = torch.arange(3.0)
    assert ops.cond(torch.tensor(True), lambda x: (x + 1,), lambda x: (x * 1,), (x,))[0].tolist() == [1, 2, 3]
    assert ops.cond(False, lambda x: (x + 1,), lambda x: (x,), (x,))[0] is x
    i, total = ops.while_loop(
        lambda i, total, step: i < 4,
        lambda i, total, step: (i + 1, total + step),
        (torch.tensor(0), torch.tensor(0.0)),
        (torch.tensor(2.5),),
    )
    assert (i.item(), total.item()) == (4, 10.0)
    zero, two = torch.tensor(0.0), torch.tensor(2.0)
    carry, rows = ops.scan(lambda c, x, k: (c + k * x, (c + k * x) * 1), [zero], [x], [two])
    assert carry.item() == 6 and rows.tolist() == [0, 2, 6]


# ---- codes -------------------------------------------------------------------------------------------------


def test_codes_by_tensor_and_channel():
    x = torch.tensor([[-1.0, 0.26, 0.24], [3.0, 100.0, -0.25]])
    c = codes.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8)
    assert c.tolist() == [[-7, 6, 5], [33, 127, 1]]  # ties go to the even code: -2.5 is -2
    back = codes.dequantize_per_tensor(c, 0.1, 3, -128, 127, torch.int8)
    like(back, torch.tensor([[-1.0, 0.3, 0.2], [3.0, 12.4, -0.2]]))
    scales, zeros = torch.tensor([0.5, 0.1, 0.25]), torch.tensor([2, 0, 1])
    c = codes.quantize_per_channel(x, scales, zeros, 1, 0, 15, torch.uint8)
    assert c.tolist() == [[0, 3, 2], [8, 15, 0]]
    back = codes.dequantize_per_channel(c, scales, zeros, 1, 0, 15, torch.uint8)
    like(back, torch.tensor([[-1.0, 0.3, 0.25], [3.0, 1.5, -0.25]]))
    with pytest.raises(ValueError, match="out of bound"):
        codes.quantize_per_tensor(x, 0.1, 3, -129, 127, torch.int8)
    with pytest.raises(AssertionError, match="to have dtype"):
        codes.dequantize_per_tensor(c, 0.1, 3, -128, 127, torch.int8)
    # PyTorch 2.13's for the same values.
    assert [t.item() for t in codes.choose_qparams(x, -128, 127, 1e-6, torch.int8)] == [
        pytest.approx(101 / 255, rel=1e-6),
        -125,
    ]
    scale, zero = codes.choose_qparams_symmetric(x, -127, 127, 1e-6, torch.int8)
    assert scale.item() == pytest.approx(100 / 127, rel=1e-6) and zero.item() == 0


def test_products_with_codes():
    q = torch.randint(0, 16, (32, 64), dtype=torch.int32)
    told = torch.rand(2, 32, 2)
    packed = torch._convert_weight_to_int4pack_for_cpu(q, 2)
    assert packed.shape == (32, 32) and packed.dtype == torch.uint8
    x = torch.randn(4, 64)
    values = np.empty((32, 64), np.float32)
    for n in range(32):
        for group in range(2):
            scale, zero = told[group, n].tolist()
            at = slice(32 * group, 32 * group + 32)
            values[n, at] = (q[n, at].numpy() - 8) * scale + zero
    wanted = torch.from_numpy(x.numpy() @ values.T)
    like(torch._weight_int4pack_mm_for_cpu(x, packed, 32, told), wanted)
    like(aten._weight_int4pack_mm_for_cpu(x, packed, 32, told), wanted)
    w, s = torch.randint(-127, 128, (32, 64), dtype=torch.int8), torch.rand(32)
    like(torch._weight_int8pack_mm(x, w, s), x @ (w.float() * s[:, None]).T, rtol=1e-4, atol=1e-3)
    with pytest.raises(RuntimeError, match="int8"):
        torch._weight_int8pack_mm(x, w.int(), s)
    with pytest.raises(NotImplementedError, match="GPUs"):
        torch._convert_weight_to_int4pack(q, 2)


def test_rounding_that_is_learned():
    """Esser et al., "Learned step size quantization", sec. 2; the zero point's gradient is -scale outside."""
    x = torch.tensor([-1.0, 0.13, 0.49, 3.0], requires_grad=True)
    scale = torch.tensor([0.1], requires_grad=True)
    zero = torch.tensor([3.2], requires_grad=True)
    y = torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, 0, 15, 0.5)
    like(y, torch.tensor([-0.3, 0.1, 0.5, 1.2]))
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 0]
    inside = (1 - 1.3) + (5 - 4.9)
    like(scale.grad, torch.tensor([0.5 * (-3 + inside + 12)]))
    like(zero.grad, torch.tensor([0.5 * -0.1 * 2]))
    x = torch.tensor([[-1.0, 0.13], [0.49, 3.0]], requires_grad=True)
    scale, zero = (torch.tensor(v, requires_grad=True) for v in ([0.1, 0.2], [3.0, 0.0]))
    y = torch._fake_quantize_learnable_per_channel_affine(x, scale, zero, 1, 0, 15, 1.0)
    like(y, torch.tensor([[-0.3, 0.2], [0.5, 3.0]]))
    y.sum().backward()
    assert x.grad.tolist() == [[0, 1], [1, 1]]
    like(zero.grad, torch.tensor([-0.1, 0.0]))
